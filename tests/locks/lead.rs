//! `lead`: one process leads, and another one takes over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, Lease, LockKey, LockProvider, LockSource, WithLockError};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use crate::providers::{LONG, TestLocks};

on_every_provider! {
    one_process_leads_and_the_next_takes_over_when_its_work_is_done,
    a_leader_that_is_forced_out_drops_its_work_and_leads_again,
    a_leader_that_is_dropped_leads_no_more,
    the_error_of_the_work_ends_the_lead,
}

/// A process that leads until the test stops it. `works` is the number of works that run now.
struct Candidate {
    leads: mpsc::UnboundedReceiver<Lease>,
    stop: Arc<Notify>,
    works: Arc<AtomicUsize>,
    run: JoinHandle<Result<&'static str, WithLockError<&'static str>>>,
}

struct Work(Arc<AtomicUsize>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Candidate {
    fn start(locks: &LockProvider, key: &LockKey) -> Self {
        Self::beside(locks, key, Arc::default())
    }

    /// Shares the count of works with another one.
    fn beside(locks: &LockProvider, key: &LockKey, works: Arc<AtomicUsize>) -> Self {
        let (led, leads) = mpsc::unbounded_channel();
        let stop = Arc::new(Notify::new());
        let (locks, key) = (locks.clone(), key.clone());
        let (may_stop, counted) = (stop.clone(), works.clone());
        let run = tokio::spawn(async move {
            let work = async |lease: Lease| {
                assert_eq!(counted.fetch_add(1, Ordering::SeqCst), 0, "one work at a time");
                let _work = Work(counted.clone());
                led.send(lease).unwrap();
                may_stop.notified().await;
                Ok("done")
            };
            locks.lead(&key, LONG, work).await
        });
        Self { leads, stop, works, run }
    }

    /// Waits until it leads.
    async fn leads(&mut self) -> Lease {
        tokio::time::timeout(LONG, self.leads.recv()).await.expect("it leads").unwrap()
    }
}

async fn one_process_leads_and_the_next_takes_over_when_its_work_is_done(t: &TestLocks) {
    let (key, other) = (LockKey::named("k"), t.other_node().await);
    let mut first = Candidate::start(&t.locks, &key);
    let lease = first.leads().await;
    let mut second = Candidate::beside(&other, &key, first.works.clone());
    assert!(t.try_now(&key).await.is_none());
    assert!(lease.is_held() && second.leads.is_empty(), "one leads at a time");
    first.stop.notify_one();
    assert_eq!(first.run.await.unwrap().unwrap(), "done");
    let next = second.leads().await;
    assert!(next.token() > lease.token() && !lease.is_held());
    second.stop.notify_one();
    assert_eq!(second.run.await.unwrap().unwrap(), "done");
}

async fn a_leader_that_is_forced_out_drops_its_work_and_leads_again(t: &TestLocks) {
    let key = LockKey::named("k");
    let mut leader = Candidate::start(&t.locks, &key);
    let first = leader.leads().await;
    assert!(t.locks.force_release(&key, "it hangs").await.unwrap());
    let again = leader.leads().await;
    assert!(again.token() > first.token() && again.is_held() && !first.is_held());
    leader.stop.notify_one();
    assert_eq!(leader.run.await.unwrap().unwrap(), "done");
    assert_eq!(leader.works.load(Ordering::SeqCst), 0);
}

async fn a_leader_that_is_dropped_leads_no_more(t: &TestLocks) {
    let (key, other) = (LockKey::named("k"), t.other_node().await);
    let mut first = Candidate::start(&t.locks, &key);
    let lease = first.leads().await;
    first.run.abort();
    let mut second = Candidate::beside(&other, &key, first.works.clone());
    drop(second.leads().await);
    assert!(!lease.is_held());
    second.run.abort();
}

async fn the_error_of_the_work_ends_the_lead(t: &TestLocks) {
    let key = LockKey::named("k");
    let work = async |_| Err::<(), _>("it failed");
    match t.locks.lead(&key, Duration::MAX, work).await {
        Err(WithLockError::Work(error)) => assert_eq!(error, "it failed"),
        other => panic!("{other:?}"),
    }
    t.is_free_in_the_end(&key).await;
}
