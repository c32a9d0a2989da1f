//! `run_once_at`: each fire of a schedule runs on one node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan::lock::{
    KeyedLockProvider, LockError, LockKey, LockProvider, LockSource, LossCause, RunOnce,
    RunOnceError,
};
use ekbatan_testkit::{Dropped, drop_at_poll};
use support::until;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::late_extensions::SharedServer;
use crate::providers::{LONG, TestLocks};

on_every_provider! {
    a_late_node_skips_the_fire_and_the_next_fire_runs,
    other_fires_are_skipped_while_the_work_runs,
    a_fire_whose_work_failed_is_not_repeated,
    a_fire_is_taken_once_its_work_has_begun_and_free_otherwise,
    work_is_stopped_when_its_fire_is_ended_by_force,
    work_without_time_takes_no_fire,
}

/// Longer than a test, and longer than the work may take.
const AT_LEAST: Duration = Duration::from_secs(3_600);

const AT_MOST: Duration = Duration::from_secs(600);

fn key() -> LockKey {
    LockKey::named("report")
}

async fn ran(locks: &LockProvider, fire: &str) -> bool {
    let work = async |_| Ok::<_, ()>(());
    let ran = locks.run_once_at(&key(), fire, AT_LEAST, AT_MOST, work).await.unwrap();
    ran == RunOnce::Done(())
}

async fn runs_in_the_end(locks: &LockProvider, fire: &str) {
    until("it runs", async || ran(locks, fire).await).await;
}

async fn a_late_node_skips_the_fire_and_the_next_fire_runs(t: &TestLocks) {
    let other = t.other_node().await;
    for fire in ["03:00", "04:00", "05:00"] {
        assert!(ran(&t.locks, fire).await, "{fire} is a new fire");
        for late in [&t.locks, &other] {
            assert!(!ran(late, fire).await, "{fire} has run");
        }
    }
    assert!(!ran(&other, "03:00").await, "it is much too late");
}

async fn other_fires_are_skipped_while_the_work_runs(t: &TestLocks) {
    let other = t.other_node().await;
    let (begun, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (locks, has_begun, may_end) = (t.locks.clone(), begun.clone(), end.clone());
    let running = tokio::spawn(async move {
        let work = async |_| {
            has_begun.notify_one();
            may_end.notified().await;
            Ok::<_, ()>(())
        };
        locks.run_once_at(&key(), "03:00", AT_LEAST, AT_MOST, work).await
    });
    begun.notified().await;
    for node in [&t.locks, &other] {
        assert!(!ran(node, "03:00").await && !ran(node, "04:00").await);
    }
    end.notify_one();
    assert_eq!(running.await.unwrap().unwrap(), RunOnce::Done(()));
    // A fire that was skipped can still run.
    runs_in_the_end(&other, "04:00").await;
    assert!(!ran(&other, "03:00").await);
}

async fn a_fire_whose_work_failed_is_not_repeated(t: &TestLocks) {
    let work = async |_| Err::<(), _>("no");
    let failed = t.locks.run_once_at(&key(), 3, AT_LEAST, AT_MOST, work).await;
    assert!(matches!(failed, Err(RunOnceError::Work("no"))), "{failed:?}");
    assert!(!ran(&t.locks, "3").await && !ran(&t.other_node().await, "3").await);
    runs_in_the_end(&t.locks, "4").await;
}

async fn a_fire_is_taken_once_its_work_has_begun_and_free_otherwise(t: &TestLocks) {
    for poll in 1..60 {
        let (fire, begun) = (format!("at poll {poll}"), AtomicBool::new(false));
        let running = drop_at_poll(poll, async {
            let work = async |_| {
                begun.store(true, Ordering::SeqCst);
                tokio::task::yield_now().await;
                Ok::<_, ()>(())
            };
            t.locks.run_once_at(&key(), fire.as_str(), AT_LEAST, AT_MOST, work).await.unwrap()
        });
        let finished = running.await;
        // The key itself is free again in any case.
        runs_in_the_end(&t.locks, &format!("after poll {poll}")).await;
        if begun.load(Ordering::SeqCst) {
            assert!(!ran(&t.locks, &fire).await, "{fire} would run twice");
        } else {
            runs_in_the_end(&t.locks, &fire).await;
        }
        if let Dropped::Finished(ran) = finished {
            assert_eq!(ran, RunOnce::Done(()));
            break;
        }
    }
}

async fn work_is_stopped_when_its_fire_is_ended_by_force(t: &TestLocks) {
    let fire = LockKey::named("report#fire:03:00");
    let work = async |_| {
        assert!(t.locks.force_release(&fire, "run it again").await.unwrap());
        std::future::pending::<Result<(), ()>>().await
    };
    let stopped = t.locks.run_once_at(&key(), "03:00", AT_LEAST, LONG, work).await;
    match stopped {
        Err(RunOnceError::Stopped { key, cause }) => {
            assert_eq!((key, cause), (fire, LossCause::Forced("run it again".to_owned())));
        }
        other => panic!("{other:?}"),
    }
    assert!(ran(&t.locks, "03:00").await, "the key and the fire are free");
}

async fn work_without_time_takes_no_fire(t: &TestLocks) {
    let work = async |_| -> Result<(), LockError> { unreachable!("it has no time") };
    let refused = t.locks.run_once_at(&key(), "03:00", AT_LEAST, Duration::ZERO, work).await;
    let why = "`report`: at_most is 0ns; it must be longer than zero";
    assert_eq!(refused.map_err(|error| error.to_string()), Err(why.to_owned()));
    runs_in_the_end(&t.other_node().await, "03:00").await;
}

/// The server would free the fire by itself after an hour.
#[tokio::test(start_paused = true)]
async fn a_caller_whose_fire_cannot_be_given_back_is_answered() {
    let away_until = Some(Instant::now() + AT_LEAST);
    let server = SharedServer { away_until, ..SharedServer::default() };
    let locks = LockProvider::new(server, "test");
    let _busy = locks.acquire(&key(), AT_LEAST * 2).await.unwrap();
    let begun = Instant::now();
    assert!(!ran(&locks, "03:00").await);
    assert!(begun.elapsed() < AT_LEAST / 10, "{:?}", begun.elapsed());
}

/// The leases on the key and on the fire end while the caller waits for its server.
#[tokio::test(start_paused = true)]
async fn what_the_work_answered_is_not_lost_with_the_server() {
    let takes = Duration::from_secs(1);
    for answer in [Ok(7), Err("no")] {
        let away_until = Some(Instant::now() + AT_LEAST);
        let server = SharedServer { away_until, late: AT_LEAST, ..SharedServer::default() };
        let locks = LockProvider::new(server, "test");
        let work = async |_| {
            tokio::time::sleep(takes).await;
            answer
        };
        let answered = locks.run_once_at(&key(), 3, takes, AT_MOST, work).await;
        let answered = answered.map_err(|error| error.to_string());
        assert_eq!(answered, answer.map(RunOnce::Done).map_err(str::to_owned));
    }
}
