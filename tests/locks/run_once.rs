//! Work that one node at a time runs: who skips it, for how long the key is kept, and when the
//! work is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ekbatan::lock::{
    KeyedLockProvider, Lease, LockError, LockKey, LockProvider, LockScope, LossCause, RunOnce,
    RunOnceError, run_once,
};
use tokio::sync::Notify;

use crate::providers::{Kind, LONG, TestLocks};

on_every_provider! {
    one_node_runs_the_work_and_the_others_skip_it,
    the_key_stays_held_until_at_least_has_passed,
    the_key_stays_held_when_the_work_fails_panics_or_is_dropped,
    without_at_least_the_key_is_free_at_once,
    work_is_stopped_at_at_most_and_its_key_is_free,
    work_is_stopped_when_its_lease_is_ended_by_force,
    a_key_held_after_its_work_can_be_freed_by_force,
    the_server_keeps_the_key_when_the_node_dies,
    closing_does_not_wait_for_at_least,
    impossible_durations_are_rejected,
    a_scope_runs_the_work_under_the_lease_that_it_holds,
}

const AT_LEAST: Duration = Duration::from_millis(900);

/// For as long as a test lasts.
const VERY_LONG: Duration = Duration::from_secs(3_600);

type Answer = Result<RunOnce<()>, RunOnceError<&'static str>>;

fn done(answer: &Answer) -> bool {
    match answer {
        Ok(RunOnce::Done(())) => true,
        Ok(RunOnce::Skipped) => false,
        Err(error) => panic!("{error:?}"),
    }
}

async fn short(locks: &LockProvider, key: &LockKey, at_least: Duration) -> Answer {
    locks.run_once(key, at_least, VERY_LONG, async |_| Ok(())).await
}

/// Asks again until the work runs.
pub async fn until_it_runs(locks: &LockProvider, key: &LockKey) {
    while !done(&short(locks, key, Duration::ZERO).await) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn one_node_runs_the_work_and_the_others_skip_it(t: &TestLocks) {
    let key = LockKey::named("k");
    let (begun, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (locks, of_task) = (t.locks.clone(), key.clone());
    let (has_begun, may_end) = (begun.clone(), end.clone());
    let running = tokio::spawn(async move {
        let work = async |lease: Lease| {
            has_begun.notify_one();
            may_end.notified().await;
            Ok::<_, ()>(lease.is_held())
        };
        // Also by one of whom no more is known than that it is a provider.
        let locks: Arc<dyn KeyedLockProvider> = Arc::new(locks);
        run_once(&*locks, &of_task, Duration::ZERO, VERY_LONG, work).await
    });
    begun.notified().await;
    let other = t.other_node().await;
    for node in [&t.locks, &other] {
        assert!(!done(&short(node, &key, Duration::ZERO).await), "it runs elsewhere");
    }
    end.notify_one();
    assert_eq!(running.await.unwrap().unwrap(), RunOnce::Done(true));
    until_it_runs(&other, &key).await;
}

async fn the_key_stays_held_until_at_least_has_passed(t: &TestLocks) {
    let other = t.other_node().await;
    for (name, node) in [("asked here", &t.locks), ("asked elsewhere", &other)] {
        let key = LockKey::named(name);
        let begun = Instant::now();
        assert!(done(&short(&t.locks, &key, AT_LEAST).await));
        until_it_runs(node, &key).await;
        assert!(begun.elapsed() >= AT_LEAST, "{name} after {:?}", begun.elapsed());
    }
    for (name, node) in [("waited for here", &t.locks), ("waited for elsewhere", &other)] {
        let key = LockKey::named(name);
        let begun = Instant::now();
        assert!(done(&short(&t.locks, &key, AT_LEAST).await));
        assert!(node.try_acquire(&key, LONG, LONG).await.unwrap().is_some());
        assert!(begun.elapsed() >= AT_LEAST, "{name} after {:?}", begun.elapsed());
    }
}

async fn the_key_stays_held_when_the_work_fails_panics_or_is_dropped(t: &TestLocks) {
    let other = t.other_node().await;
    let [failing, panicking, dropped] = ["failing", "panicking", "dropped"].map(LockKey::named);

    let begun = Instant::now();
    let work = async |_| Err::<(), _>("no");
    let failed = t.locks.run_once(&failing, AT_LEAST, VERY_LONG, work).await;
    assert!(matches!(failed, Err(RunOnceError::Work("no"))), "{failed:?}");
    until_it_runs(&other, &failing).await;
    assert!(begun.elapsed() >= AT_LEAST);

    let begun = Instant::now();
    let (locks, key) = (t.locks.clone(), panicking.clone());
    let task = tokio::spawn(async move {
        let work = async |_| -> Result<(), ()> { panic!("in the middle of the work") };
        locks.run_once(&key, AT_LEAST, VERY_LONG, work).await
    });
    assert!(task.await.unwrap_err().is_panic());
    until_it_runs(&other, &panicking).await;
    assert!(begun.elapsed() >= AT_LEAST);

    let begun = Instant::now();
    let running = Notify::new();
    let work = async |_| {
        running.notify_one();
        std::future::pending::<Result<(), ()>>().await
    };
    tokio::select! {
        biased;
        () = running.notified() => {}
        _ = t.locks.run_once(&dropped, AT_LEAST, VERY_LONG, work) => unreachable!(),
    }
    until_it_runs(&other, &dropped).await;
    assert!(begun.elapsed() >= AT_LEAST);
}

async fn without_at_least_the_key_is_free_at_once(t: &TestLocks) {
    let key = LockKey::named("k");
    for _ in 0..5 {
        assert!(done(&short(&t.locks, &key, Duration::ZERO).await));
    }
    t.is_free_in_the_end(&key).await;
}

/// Says when it is dropped.
struct Alive(Arc<AtomicBool>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

async fn work_is_stopped_at_at_most_and_its_key_is_free(t: &TestLocks) {
    let key = LockKey::named("k");
    let alive = Arc::new(AtomicBool::new(true));
    let work = {
        let alive = Alive(alive.clone());
        async move |_| {
            let _alive = alive;
            std::future::pending::<Result<(), ()>>().await
        }
    };
    let begun = Instant::now();
    match t.locks.run_once(&key, AT_LEAST, AT_LEAST, work).await {
        Err(RunOnceError::Stopped { key: of, cause }) => {
            assert_eq!((of, cause), (key.clone(), LossCause::Expired(AT_LEAST)));
        }
        other => panic!("{other:?}"),
    }
    assert!(begun.elapsed() >= AT_LEAST && !alive.load(Ordering::SeqCst));
    until_it_runs(&t.other_node().await, &key).await;
}

async fn work_is_stopped_when_its_lease_is_ended_by_force(t: &TestLocks) {
    let key = LockKey::named("k");
    let work = async |_| {
        assert!(t.locks.force_release(&key, "it hangs").await.unwrap());
        std::future::pending::<Result<(), ()>>().await
    };
    let stopped = t.locks.run_once(&key, VERY_LONG, VERY_LONG, work).await;
    let cause = LossCause::Forced("it hangs".to_owned());
    match stopped {
        Err(RunOnceError::Stopped { cause: by, .. }) => assert_eq!(by, cause),
        other => panic!("{other:?}"),
    }
    // Who forces it wants it free.
    until_it_runs(&t.other_node().await, &key).await;
}

async fn a_key_held_after_its_work_can_be_freed_by_force(t: &TestLocks) {
    let (key, other) = (LockKey::named("k"), t.other_node().await);
    for _ in 0..3 {
        assert!(done(&short(&t.locks, &key, VERY_LONG).await));
        assert!(!done(&short(&other, &key, Duration::ZERO).await));
        assert!(t.locks.force_release(&key, "again, please").await.unwrap());
        until_it_runs(&other, &key).await;
        t.is_free_in_the_end(&key).await;
    }
}

/// A server that frees keys by itself frees this one no sooner, whatever becomes of the node.
async fn the_server_keeps_the_key_when_the_node_dies(t: &TestLocks) {
    let key = LockKey::named("k");
    let begun = Instant::now();
    let work = async |_| {
        let holder = t.locks.inspect(&key).await.unwrap().expect("it is held");
        Ok::<_, ()>(holder.remaining.map(|remaining| remaining + begun.elapsed()))
    };
    let at_least = Duration::from_secs(600);
    let flight = t.locks.run_once(&key, at_least, VERY_LONG, work).await.unwrap();
    match (flight, t.kind()) {
        (RunOnce::Done(None), kind) if kind.is_session() => {}
        (RunOnce::Done(Some(until)), _) => assert!(until >= at_least, "{until:?}"),
        other => panic!("{other:?}"),
    }
}

async fn closing_does_not_wait_for_at_least(t: &TestLocks) {
    let (ended, runs) = (LockKey::named("ended"), LockKey::named("runs"));
    let other = t.other_node().await;
    assert!(done(&short(&t.locks, &ended, VERY_LONG).await));
    let running = Notify::new();
    let work = async |_| {
        running.notify_one();
        std::future::pending::<Result<(), ()>>().await
    };
    let closing = async {
        running.notified().await;
        t.locks.close().await;
    };
    let flight = t.locks.run_once(&runs, VERY_LONG, VERY_LONG, work);
    match tokio::join!(flight, closing).0 {
        Err(RunOnceError::Stopped { cause, .. }) => assert_eq!(cause, LossCause::Closed),
        other => panic!("{other:?}"),
    }
    for key in [&ended, &runs] {
        match t.kind() {
            Kind::Process => {
                let refused = short(&other, key, Duration::ZERO).await.unwrap_err();
                let closed = matches!(refused, RunOnceError::Lock(LockError::Closed { .. }));
                assert!(closed, "{refused:?}");
            }
            // A session's locks end with it.
            kind if kind.is_session() => until_it_runs(&other, key).await,
            _ => {
                assert!(!done(&short(&other, key, Duration::ZERO).await), "{key} is kept");
            }
        }
    }
}

async fn impossible_durations_are_rejected(t: &TestLocks) {
    let (short, long) = (Duration::from_secs(3), Duration::from_secs(5));
    for (at_least, at_most) in [(long, short), (Duration::ZERO, Duration::ZERO)] {
        let work = async |_| -> Result<(), LockError> { unreachable!("it is refused") };
        let refused = t.locks.run_once(&LockKey::named("k"), at_least, at_most, work).await;
        assert_eq!(
            refused.unwrap_err().to_string(),
            format!(
                "`k`: at_least is {at_least:?} and at_most {at_most:?}; at_most must be longer \
                 than zero, and no shorter than at_least"
            )
        );
    }
    assert_eq!(t.locks.inspect(&LockKey::named("k")).await.unwrap(), None);
}

async fn a_scope_runs_the_work_under_the_lease_that_it_holds(t: &TestLocks) {
    let key = LockKey::named("k");
    let begun = Instant::now();
    LockScope::run(async {
        let outer = t.hold(&key).await;
        let work = async |lease: Lease| Ok::<_, ()>(lease.token());
        let flight = t.locks.run_once(&key, AT_LEAST, VERY_LONG, work).await.unwrap();
        assert_eq!(flight, RunOnce::Done(outer.token()));
        assert!(outer.is_held());
    })
    .await;
    until_it_runs(&t.other_node().await, &key).await;
    assert!(begun.elapsed() >= AT_LEAST);
}
