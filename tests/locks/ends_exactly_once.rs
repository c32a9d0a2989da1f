//! A lease ends once: it is not brought back, its release counts once, and its term is its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LossCause};
use ekbatan::prelude::*;
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening};

use crate::database::TestDatabase;
use crate::providers::{Kind, LONG, TestLocks};

on_every_provider! {
    a_second_release_is_false,
    a_key_that_is_handed_on_is_kept_for_its_new_holder_only,
    an_extension_that_comes_late_does_not_bring_the_lease_back,
    closing_waits_for_the_holder,
    work_that_outlasts_the_close_keeps_its_key,
}
mod commits {
    use super::*;

    on_every_database! {
        a_fence_lasts_as_long_as_the_extended_lease,
    }
}

async fn a_second_release_is_false(t: &TestLocks) {
    let key = LockKey::named("k");
    let lease = t.hold(&key).await;
    let clone = lease.clone();
    assert!(lease.release().await);
    assert!(!lease.release().await && !clone.release().await);
}

/// A node that dies leaves its key for the time that its holder asked for, not for that of the
/// holder before.
async fn a_key_that_is_handed_on_is_kept_for_its_new_holder_only(t: &TestLocks) {
    let key = LockKey::named("k");
    let (hour, short) = (Duration::from_secs(3_600), Duration::from_secs(15));
    for _ in 0..3 {
        let first = t.try_for(&key, LONG, hour).await.unwrap();
        let (locks, of_task) = (t.locks.clone(), key.clone());
        let next = tokio::spawn(async move { locks.acquire(&of_task, short).await.unwrap() });
        while t.locks.inspect(&key).await.unwrap().is_none_or(|holder| holder.waiting_here == 0) {
            tokio::task::yield_now().await;
        }
        first.release().await;
        let next = next.await.unwrap();
        let there = t.locks.inspect(&key).await.unwrap().unwrap().remaining;
        assert!(there.is_none_or(|there| there < short * 2), "{there:?}");
        assert!(next.release().await);
    }
}

async fn an_extension_that_comes_late_does_not_bring_the_lease_back(t: &TestLocks) {
    let key = LockKey::named("k");
    for n in 0..20 {
        let hold = Duration::from_millis(20);
        let lease = t.try_for(&key, LONG, hold).await.unwrap();
        let extending = {
            let lease = lease.clone();
            tokio::spawn(async move {
                // About when the lease ends.
                tokio::time::sleep(hold.saturating_sub(Duration::from_micros(n * 150))).await;
                lease.extend(LONG).await
            })
        };
        tokio::select! {
            // The extension was in time.
            () = tokio::time::sleep(hold * 2) => {}
            cause = lease.lost() => {
                assert_eq!(cause, LossCause::Expired(hold));
                let extended = extending.await.unwrap();
                assert!(matches!(extended, Err(LockError::Lost { .. })), "{extended:?}");
                assert!(!lease.is_held(), "lost() has said that it was over");
            }
        }
        lease.release().await;
    }
    let lease = t.try_for(&key, LONG, Duration::from_millis(20)).await.unwrap();
    lease.lost().await;
    assert!(matches!(lease.extend(LONG).await, Err(LockError::Lost { .. })) && !lease.is_held());
}

async fn closing_waits_for_the_holder(t: &TestLocks) {
    let key = LockKey::named("k");
    let other = t.other_node().await;
    let lease = t.hold(&key).await;
    let mut closing = Box::pin(t.locks.close_within(LONG));
    let waited = tokio::time::timeout(Duration::from_millis(100), &mut closing).await;
    assert!(waited.is_err() && lease.is_held(), "the work under the lease still runs");
    if t.kind() != Kind::Process {
        assert!(other.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().is_none());
    }
    let (released, ()) = tokio::join!(lease.release(), closing);
    assert!(released);
    if t.kind() != Kind::Process {
        assert!(other.acquire(&key, LONG).await.unwrap().release().await);
    }
}

async fn work_that_outlasts_the_close_keeps_its_key(t: &TestLocks) {
    let key = LockKey::named("k");
    let other = t.other_node().await;
    let lease = t.hold(&key).await;
    t.locks.close_within(Duration::from_millis(10)).await;
    assert_eq!(lease.lost().await, LossCause::Closed);
    // The end of a session frees its locks.
    if t.kind() != Kind::Process && !t.kind().is_session() {
        let taken = other.try_acquire(&key, Duration::ZERO, LONG).await.unwrap();
        assert!(taken.is_none(), "the work may still run");
    }
}

/// On one thread, so that the worker stands still with the holder.
#[tokio::test]
async fn a_lease_whose_term_ended_during_a_standstill_is_not_held() {
    for kind in [Kind::Process, Kind::Sqlite, Kind::Redis, Kind::PostgresLease, Kind::MySqlLease] {
        let t = TestLocks::start(kind).await;
        let key = LockKey::named("k");
        let term = Duration::from_millis(200);
        let lease = t.take(&key, LockOptions::wait(LONG).hold(LONG).renewed(term)).await.unwrap();
        std::thread::sleep(term * 2);
        assert!(!lease.is_held() && lease.remaining().is_zero(), "{kind:?}");
        let error = lease.check().unwrap_err();
        assert!(matches!(error, LockError::Lost { .. }), "{kind:?}: {error}");
        lease.lost().await;
        assert!(!lease.release().await);
        assert!(t.hold(&key).await.release().await);
    }
}

async fn a_fence_lasts_as_long_as_the_extended_lease(db: &TestDatabase) {
    let t = TestLocks::start(Kind::Process).await;
    let executor = db.executor();
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let wallet = executor.execute(&OpenWallet, opening).await.unwrap().id;
    let mut hold = Duration::from_millis(1_000);
    let (lease, call) = loop {
        let lease = t.try_for(&LockKey::named("k"), LONG, hold).await.unwrap();
        // The call knows the lease since before it was extended.
        let deposit = Deposit { wallet, amount: Decimal::ONE };
        let call = executor.execute(&DepositMoney, deposit).fenced_by(&lease);
        if is_extended_in_time(&lease).await {
            break (lease, call);
        }
        assert!(hold < LONG, "it is never extended in time");
        hold *= 2;
    };
    tokio::time::sleep(hold + Duration::from_millis(200)).await;
    assert!(lease.is_held());
    call.await.unwrap();

    loop {
        let short = t.try_for(&LockKey::named("short"), LONG, hold).await.unwrap();
        let in_time = AtomicBool::new(true);
        let extended = crate::force::Meanwhile(|| async {
            in_time.store(is_extended_in_time(&short).await, Ordering::Relaxed);
            tokio::time::sleep(hold + Duration::from_millis(200)).await;
        });
        let deposit = Deposit { wallet, amount: Decimal::ONE };
        let deposited = executor.execute(&extended, deposit).fenced_by(&short).await;
        if in_time.load(Ordering::Relaxed) {
            return deposited.unwrap();
        }
        assert!(hold < LONG, "it is never extended in time");
        hold *= 2;
    }
}

/// Extends the lease. A busy machine may take longer than its hold.
async fn is_extended_in_time(lease: &Lease) -> bool {
    match lease.extend(LONG).await {
        Ok(()) => true,
        Err(LockError::Lost { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}
