//! How leases end: by their release, by expiry, by force, and with their holder.

use std::time::{Duration, Instant};

use ekbatan::lock::{
    KeyedLockProvider, LockError, LockKey, LockOptions, LockScope, LockSource, LossCause,
    WithLockError,
};

use crate::providers::{LONG, TestLocks};
use support::until;

const SHORT: Duration = Duration::from_millis(150);

/// Every machine renews a term of this length in time.
const LONGEST_TERM: Duration = Duration::from_secs(2);

on_every_provider! {
    a_lease_expires_after_its_hold_and_frees_the_key,
    a_late_release_is_harmless,
    a_renewed_lease_outlives_its_term,
    a_renewed_lease_ends_after_its_hold,
    an_extended_lease_lasts_longer,
    a_lease_that_is_handed_on_lasts_as_long_as_its_holder_asked,
    a_lease_can_be_ended_by_force,
    work_that_fails_panics_or_is_dropped_frees_the_key,
    work_does_not_start_while_the_key_is_busy,
    closing_ends_leases_and_rejects_waiters,
}

async fn a_lease_expires_after_its_hold_and_frees_the_key(t: &TestLocks) {
    let key = LockKey::named("k");
    let lease = t.try_for(&key, LONG, SHORT).await.unwrap();
    assert!(lease.remaining() <= SHORT);
    assert_eq!(lease.lost().await, LossCause::Expired(SHORT));
    assert!(!lease.is_held());
    assert_eq!(lease.remaining(), Duration::ZERO);
    let error = lease.check().unwrap_err();
    assert!(matches!(error, LockError::Lost { cause: LossCause::Expired(_), .. }), "{error}");
    assert!(t.try_for(&key, LONG, LONG).await.is_some());
}

async fn a_late_release_is_harmless(t: &TestLocks) {
    let key = LockKey::named("k");
    let late = t.try_for(&key, LONG, SHORT).await.unwrap();
    late.lost().await;
    let successor = t.hold(&key).await;
    assert!(successor.token() > late.token());
    assert!(!late.release().await, "the lease had expired");
    drop(late);
    assert!(successor.is_held());
    assert!(t.try_now(&key).await.is_none());
    assert!(successor.release().await);
}

async fn a_renewed_lease_outlives_its_term(t: &TestLocks) {
    let key = LockKey::named("k");
    let mut term = SHORT;
    loop {
        let options = LockOptions::wait(LONG).hold(LONG).renewed(term);
        let lease = t.take(&key, options).await.unwrap();
        tokio::time::sleep(term * 6).await;
        let was_held = lease.check().is_ok();
        let is_free = t.try_now(&key).await.is_some();
        assert!(!is_free || !lease.is_held(), "the key of a lease that is held is free");
        if was_held && !is_free && lease.release().await {
            break;
        }
        // A slow machine may renew a short term too late.
        assert!(term < LONGEST_TERM, "held: {was_held}, free: {is_free}, {:?}", lease.check());
        term *= 2;
    }
    t.is_free_in_the_end(&key).await;
}

async fn a_renewed_lease_ends_after_its_hold(t: &TestLocks) {
    let key = LockKey::named("k");
    let mut term = SHORT;
    loop {
        let options = LockOptions::wait(LONG).hold(term * 3).renewed(term);
        let lease = t.take(&key, options).await.unwrap();
        let cause = lease.lost().await;
        if cause == LossCause::Expired(term * 3) {
            break;
        }
        // A slow machine may renew a short term too late.
        assert!(term < LONGEST_TERM, "{cause:?}");
        term *= 2;
    }
    assert!(t.try_for(&key, LONG, LONG).await.is_some());
}

async fn an_extended_lease_lasts_longer(t: &TestLocks) {
    let key = LockKey::named("k");
    let mut hold = SHORT;
    let (lease, begun) = loop {
        let begun = Instant::now();
        let lease = t.try_for(&key, LONG, hold).await.unwrap();
        match lease.extend(LONG).await {
            Ok(()) => break (lease, begun),
            // On a slow machine the lease expires first.
            Err(LockError::Lost { .. }) => hold *= 2,
            Err(error) => panic!("{error}"),
        }
    };
    // The time that was left when it was extended counts too.
    assert!(lease.remaining() + begun.elapsed() >= LONG + hold);
    tokio::time::sleep(hold + SHORT).await;
    assert!(lease.is_held());
    assert!(t.try_now(&key).await.is_none());
    lease.release().await;
    let error = lease.extend(LONG).await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    assert!(error.to_string().ends_with("it was released"), "{error}");
    // One lease of a scope does not extend the other one.
    LockScope::run(async {
        let (outer, inner) = (t.hold(&key).await, t.hold(&key).await);
        inner.release().await;
        let error = inner.extend(LONG).await.unwrap_err();
        assert!(error.to_string().ends_with("it was released"), "{error}");
        outer.extend(LONG).await.unwrap();
        assert!(outer.release().await);
    })
    .await;
}

/// The grant of a short hold is not enough for the long one that follows it.
async fn a_lease_that_is_handed_on_lasts_as_long_as_its_holder_asked(t: &TestLocks) {
    let key = LockKey::named("k");
    let (short, long) = (LONG / 4, LONG * 4);
    until("a lease is handed on within this process", async || {
        let first = t.try_for(&key, LONG, short).await.unwrap();
        let (locks, of_task) = (t.locks.clone(), key.clone());
        let next = tokio::spawn(async move { locks.acquire(&of_task, long).await.unwrap() });
        until("somebody waits", async || {
            let holder = t.locks.inspect(&key).await;
            holder.is_ok_and(|holder| holder.is_some_and(|holder| holder.waiting_here > 0))
        })
        .await;
        first.release().await;
        let next = next.await.unwrap();
        assert!(next.remaining() > long / 2, "{:?}", next.remaining());
        // A server that ends leases has not kept the short term.
        let there = t.locks.inspect(&key).await.unwrap().unwrap().remaining;
        assert!(there.is_none_or(|there| there > long / 2), "{there:?}");
        assert!(next.release().await);
        // A process that held the key for too long asks the server again.
        t.locks.counters().handed_on > 0
    })
    .await;
}

async fn a_lease_can_be_ended_by_force(t: &TestLocks) {
    let key = LockKey::named("k");
    assert!(!t.locks.force_release(&key, "nothing is there").await.unwrap());
    let lease = t.hold(&key).await;
    assert!(t.locks.force_release(&key, "the operator said so").await.unwrap());
    assert_eq!(lease.lost().await, LossCause::Forced("the operator said so".to_owned()));
    assert!(!lease.is_held());
    let successor = t.hold(&key).await;
    assert!(successor.token() > lease.token());
}

async fn work_that_fails_panics_or_is_dropped_frees_the_key(t: &TestLocks) {
    let key = LockKey::named("k");
    let failed: Result<(), _> =
        t.locks.with_lock(&key, LockOptions::default(), async |_| Err("no")).await;
    assert!(matches!(failed, Err(WithLockError::Work("no"))));

    let (locks, of_task) = (t.locks.clone(), key.clone());
    let panicking = tokio::spawn(async move {
        locks
            .with_lock(&of_task, LockOptions::default(), async |_| -> Result<(), ()> {
                panic!("in the middle of the work")
            })
            .await
    });
    assert!(panicking.await.unwrap_err().is_panic());

    let mut dropped = Box::pin(t.locks.with_lock(&key, LockOptions::default(), async |_| {
        std::future::pending::<Result<(), ()>>().await
    }));
    while t.locks.inspect(&key).await.unwrap().is_none() {
        tokio::select! {
            _ = &mut dropped => unreachable!("the work never ends"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
    drop(dropped);
    t.is_free_in_the_end(&key).await;
}

async fn work_does_not_start_while_the_key_is_busy(t: &TestLocks) {
    let key = LockKey::named("k");
    let _held = t.hold(&key).await;
    let options = LockOptions::wait(Duration::from_millis(20));
    let done = t
        .locks
        .with_lock(&key, options, async |_| -> Result<(), ()> { unreachable!("the key is busy") });
    let error = done.await.unwrap_err();
    assert!(matches!(error, WithLockError::Busy { .. }), "{error:?}");
}

async fn closing_ends_leases_and_rejects_waiters(t: &TestLocks) {
    let (held, waited) = (LockKey::named("held"), LockKey::named("waited"));
    let lease = t.hold(&held).await;
    let other = t.hold(&waited).await;
    let (locks, key) = (t.locks.clone(), waited.clone());
    let waiter = tokio::spawn(async move { locks.acquire(&key, LONG).await });
    until("somebody waits", async || {
        let holder = t.locks.inspect(&waited).await;
        holder.is_ok_and(|holder| holder.is_some_and(|holder| holder.waiting_here > 0))
    })
    .await;
    t.locks.close_within(Duration::ZERO).await;
    assert!(!lease.is_held() && !other.is_held());
    assert_eq!(lease.lost().await, LossCause::Closed);
    let refused = waiter.await.unwrap();
    assert!(matches!(refused, Err(LockError::Closed { .. })), "{refused:?}");
    let refused = t.locks.acquire(&held, LONG).await;
    assert!(matches!(refused, Err(LockError::Closed { .. })), "{refused:?}");
}
