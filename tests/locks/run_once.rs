//! `run_once`: the nodes that skip the work, how long the key stays held, and when the work is
//! stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ekbatan::lock::{
    KeyedLockProvider, Lease, LockBackend, LockError, LockKey, LockProvider, LockScope, LockSource,
    LossCause, RunOnce, RunOnceError,
};
use support::until;
use tokio::sync::Notify;

use crate::late_extensions::SharedServer;
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

/// Longer than the work of a test takes.
const AT_LEAST: Duration = Duration::from_millis(250);

/// Longer than a test.
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

/// Repeats the call until the work runs.
pub async fn until_it_runs(locks: &LockProvider, key: &LockKey) {
    until("it runs again", async || done(&short(locks, key, Duration::ZERO).await)).await;
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
        // Any provider will do, also behind `dyn`.
        let locks: Arc<dyn KeyedLockProvider> = Arc::new(locks);
        locks.run_once(&of_task, Duration::ZERO, VERY_LONG, work).await
    });
    begun.notified().await;
    let other = t.other_node().await;
    for node in [&t.locks, &other] {
        assert!(!done(&short(node, &key, Duration::ZERO).await), "it runs on another node");
    }
    end.notify_one();
    assert_eq!(running.await.unwrap().unwrap(), RunOnce::Done(true));
    until_it_runs(&other, &key).await;
}

async fn the_key_stays_held_until_at_least_has_passed(t: &TestLocks) {
    let other = t.other_node().await;
    let retried = async |name: &str, node: &LockProvider| {
        let key = LockKey::named(name);
        let begun = Instant::now();
        assert!(done(&short(&t.locks, &key, AT_LEAST).await));
        until_it_runs(node, &key).await;
        assert!(begun.elapsed() >= AT_LEAST, "{name} after {:?}", begun.elapsed());
    };
    let waited_for = async |name: &str, node: &LockProvider| {
        let key = LockKey::named(name);
        let begun = Instant::now();
        assert!(done(&short(&t.locks, &key, AT_LEAST).await));
        assert!(node.try_acquire(&key, LONG, LONG).await.unwrap().is_some());
        assert!(begun.elapsed() >= AT_LEAST, "{name} after {:?}", begun.elapsed());
    };
    tokio::join!(
        retried("retried here", &t.locks),
        retried("retried on another node", &other),
        waited_for("waited for here", &t.locks),
        waited_for("waited for on another node", &other),
    );
}

async fn the_key_stays_held_when_the_work_fails_panics_or_is_dropped(t: &TestLocks) {
    let other = t.other_node().await;
    let [failing, panicking, dropped] = ["failing", "panicking", "dropped"].map(LockKey::named);
    let free_after_at_least = async |key: &LockKey, begun: Instant| {
        until_it_runs(&other, key).await;
        assert!(begun.elapsed() >= AT_LEAST, "{key} after {:?}", begun.elapsed());
    };

    let failing_begun = Instant::now();
    let work = async |_| Err::<(), _>("no");
    let failed = t.locks.run_once(&failing, AT_LEAST, VERY_LONG, work).await;
    assert!(matches!(failed, Err(RunOnceError::Work("no"))), "{failed:?}");

    let panicking_begun = Instant::now();
    let (locks, key) = (t.locks.clone(), panicking.clone());
    let task = tokio::spawn(async move {
        let work = async |_| -> Result<(), ()> { panic!("in the middle of the work") };
        locks.run_once(&key, AT_LEAST, VERY_LONG, work).await
    });
    assert!(task.await.unwrap_err().is_panic());

    let dropped_begun = Instant::now();
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
    tokio::join!(
        free_after_at_least(&failing, failing_begun),
        free_after_at_least(&panicking, panicking_begun),
        free_after_at_least(&dropped, dropped_begun),
    );
}

async fn without_at_least_the_key_is_free_at_once(t: &TestLocks) {
    let key = LockKey::named("k");
    for _ in 0..5 {
        assert!(done(&short(&t.locks, &key, Duration::ZERO).await));
    }
    t.is_free_in_the_end(&key).await;
}

/// Clears its flag when it is dropped.
struct Alive(Arc<AtomicBool>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

async fn work_is_stopped_at_at_most_and_its_key_is_free(t: &TestLocks) {
    let key = LockKey::named("k");
    // The lease is renewed before that. A busy server may answer too late now and then, but not always.
    for _ in 0..10 {
        let alive = Arc::new(AtomicBool::new(true));
        let work = {
            let alive = Alive(alive.clone());
            async move |_| {
                let _alive = alive;
                std::future::pending::<Result<(), ()>>().await
            }
        };
        let begun = Instant::now();
        let cause = match t.locks.run_once(&key, AT_LEAST, AT_LEAST, work).await {
            Err(RunOnceError::Stopped { key: of, cause }) if of == key => cause,
            // The answer came too late for a lease so short, which the server may still have.
            Err(RunOnceError::Lock(LockError::InDoubt { .. })) => {
                until_it_runs(&t.locks, &key).await;
                continue;
            }
            other => panic!("{other:?}"),
        };
        assert!(begun.elapsed() >= AT_LEAST && !alive.load(Ordering::SeqCst));
        until_it_runs(&t.other_node().await, &key).await;
        match cause {
            LossCause::Expired(after) => return assert_eq!(after, AT_LEAST),
            LossCause::NotRenewed(_) => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("its lease was never renewed");
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
    // A forced release frees the key at once.
    until_it_runs(&t.other_node().await, &key).await;
}

async fn a_key_held_after_its_work_can_be_freed_by_force(t: &TestLocks) {
    let (key, other) = (LockKey::named("k"), t.other_node().await);
    for _ in 0..3 {
        assert!(done(&short(&t.locks, &key, VERY_LONG).await));
        assert!(!done(&short(&other, &key, Duration::ZERO).await));
        assert!(t.locks.force_release(&key, "run it again").await.unwrap());
        until_it_runs(&other, &key).await;
        t.is_free_in_the_end(&key).await;
    }
}

/// A server that expires leases keeps this one until at_least has passed, even without the node.
async fn the_server_keeps_the_key_when_the_node_dies(t: &TestLocks) {
    let key = LockKey::named("k");
    let begun = Instant::now();
    let work = async |_| {
        let holder = t.locks.inspect(&key).await.unwrap().expect("it is held");
        Ok::<_, ()>(holder.remaining.map(|remaining| remaining + begun.elapsed()))
    };
    let at_least = Duration::from_secs(600);
    let ran = t.locks.run_once(&key, at_least, VERY_LONG, work).await.unwrap();
    match (ran, t.kind()) {
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
        t.locks.close_within(Duration::ZERO).await;
    };
    let ran = t.locks.run_once(&runs, VERY_LONG, VERY_LONG, work);
    match tokio::join!(ran, closing).0 {
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
            // The end of a session frees its locks.
            kind if kind.is_session() => until_it_runs(&other, key).await,
            _ => {
                assert!(!done(&short(&other, key, Duration::ZERO).await), "{key} is still held");
            }
        }
    }
}

async fn impossible_durations_are_rejected(t: &TestLocks) {
    let (short, long) = (Duration::from_secs(3), Duration::from_secs(5));
    for (at_least, at_most) in [(long, short), (Duration::ZERO, Duration::ZERO)] {
        let work =
            async |_| -> Result<(), LockError> { unreachable!("the durations are rejected") };
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
        let ran = t.locks.run_once(&key, AT_LEAST, VERY_LONG, work).await.unwrap();
        assert_eq!(ran, RunOnce::Done(outer.token()));
        assert!(outer.is_held());
    })
    .await;
    until_it_runs(&t.other_node().await, &key).await;
    assert!(begun.elapsed() >= AT_LEAST);
}

/// On one thread, where nothing notices that the lease is over while the work stands still.
#[tokio::test]
async fn work_that_stood_still_beyond_its_lease_does_not_go_on() {
    let t = TestLocks::start(Kind::Process).await;
    let at_most = Duration::from_millis(100);
    let went_on = AtomicBool::new(false);
    let key = LockKey::named("k");
    let answer = t.locks.run_once(&key, Duration::ZERO, at_most, async |_| {
        // Both times have passed when this thread goes on.
        tokio::spawn(async move { std::thread::sleep(at_most * 2) });
        tokio::time::sleep(at_most / 2).await;
        went_on.store(true, Ordering::SeqCst);
        Ok::<_, ()>(())
    });
    let answer = answer.await;
    assert!(matches!(answer, Err(RunOnceError::Stopped { .. })), "{answer:?}");
    assert!(!went_on.load(Ordering::SeqCst));
}

/// Runs work that does not end, closes its provider meanwhile, and returns for how long the server then
/// keeps the key.
async fn kept_after_closing(
    (at_least, at_most): (Duration, Duration),
    (after, grace): (Duration, Duration),
) -> Duration {
    let server = SharedServer::default();
    let locks = LockProvider::new(server.clone(), "test");
    let key = LockKey::named("k");
    let work = async |_: Lease| std::future::pending::<Result<(), ()>>().await;
    let closing = async {
        tokio::time::sleep(after).await;
        locks.close_within(grace).await;
    };
    let (ran, ()) = tokio::join!(locks.run_once(&key, at_least, at_most, work), closing);
    let closed = matches!(&ran, Err(RunOnceError::Stopped { cause: LossCause::Closed, .. }));
    assert!(closed, "{ran:?}");
    let holder = server.keys.inspect("DC#test#k").await.unwrap().expect("it is taken");
    holder.remaining.expect("the server ends terms")
}

/// A commit that was sent cannot be stopped.
#[tokio::test(start_paused = true)]
async fn closing_does_not_shorten_the_term_of_work_that_may_still_run() {
    let [at_least, at_most, after, grace] = [60, 600, 45, 10].map(Duration::from_secs);
    let kept = kept_after_closing((at_least, at_most), (after, grace)).await;
    // It was renewed 15 s ago. The rest of `at_least` is 5 s.
    assert!(kept > Duration::from_secs(30), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn closing_keeps_the_key_for_the_rest_of_at_least() {
    let at_once = (Duration::ZERO, Duration::ZERO);
    let kept = kept_after_closing((VERY_LONG, VERY_LONG), at_once).await;
    assert!(kept > VERY_LONG - LONG, "{kept:?}");
}
