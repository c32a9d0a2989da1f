//! A key has one holder at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockError, LockKey, LockLevel, LockSource, lock_key};
use support::until;

use crate::providers::{Kind, LONG, TestLocks};

/// A small part of the wait that a waiter was ready for, and more than a busy machine needs.
const PROMPT: Duration = Duration::from_secs(20);

on_every_provider! {
    read_modify_write_under_one_key_loses_no_update,
    a_key_excludes_itself_and_no_other_key,
    nodes_exclude_each_other,
    a_try_without_a_wait_gets_a_free_key_and_no_held_one,
    a_wait_ends_without_a_lease_at_its_timeout,
    a_wait_may_be_arbitrarily_short,
    a_waiter_gets_the_key_when_it_is_released,
    the_levels_of_one_key_are_separate_locks,
    tokens_always_grow,
    fifty_rounds_leave_nothing_behind,
    invalid_requests_are_rejected,
    inspect_names_the_holder,
}

async fn read_modify_write_under_one_key_loses_no_update(t: &TestLocks) {
    let key = LockKey::named("counter");
    let counter = Arc::new(AtomicI64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (locks, key, counter) = (t.locks.clone(), key.clone(), counter.clone());
        tasks.spawn(async move {
            for _ in 0..25 {
                let lease = locks.acquire(&key, LONG).await.unwrap();
                let read = counter.load(Ordering::Relaxed);
                tokio::task::yield_now().await;
                counter.store(read + 1, Ordering::Relaxed);
                lease.release().await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), 200);
    t.is_free_in_the_end(&key).await;
}

async fn a_key_excludes_itself_and_no_other_key(t: &TestLocks) {
    let (a, b) = (lock_key!("wallet", 1), lock_key!("wallet", 2));
    let held = t.hold(&a).await;
    assert!(t.try_now(&a).await.is_none());
    let other = t.try_now(&b).await.unwrap();
    assert!(held.is_held() && other.is_held());
}

async fn nodes_exclude_each_other(t: &TestLocks) {
    let key = LockKey::named("k");
    let other = t.other_node().await;
    let held = t.hold(&key).await;
    assert!(other.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().is_none());
    let of_waiter = key.clone();
    let waiter = tokio::spawn(async move { other.try_acquire(&of_waiter, LONG, LONG).await });
    assert!(held.release().await);
    let lease = waiter.await.unwrap().unwrap().unwrap();
    assert!(lease.token() > held.token());
    assert!(t.try_now(&key).await.is_none());
    assert!(lease.release().await);
    assert!(t.hold(&key).await.release().await);
}

async fn a_try_without_a_wait_gets_a_free_key_and_no_held_one(t: &TestLocks) {
    let key = LockKey::named("k");
    let held = t.try_now(&key).await.unwrap();
    assert!(t.try_now(&key).await.is_none());
    assert!(held.release().await, "the lease was held until its release");
    assert!(t.try_now(&key).await.is_some());
}

async fn a_wait_ends_without_a_lease_at_its_timeout(t: &TestLocks) {
    let key = LockKey::named("k");
    let held = t.hold(&key).await;
    let begun = std::time::Instant::now();
    assert!(t.try_for(&key, Duration::from_millis(120), LONG).await.is_none());
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(120) && waited < PROMPT, "{waited:?}");
    assert!(held.is_held());
    // A waiter that gave up is not served later.
    held.release().await;
    t.is_free_in_the_end(&key).await;
}

async fn a_wait_may_be_arbitrarily_short(t: &TestLocks) {
    let key = LockKey::named("k");
    let held = t.hold(&key).await;
    for wait in [Duration::from_nanos(1), Duration::from_micros(400), Duration::from_micros(999)] {
        assert!(t.try_for(&key, wait, LONG).await.is_none());
    }
    assert!(held.release().await);
    t.is_free_in_the_end(&key).await;
}

async fn a_waiter_gets_the_key_when_it_is_released(t: &TestLocks) {
    let key = LockKey::named("k");
    let held = t.hold(&key).await;
    let (locks, waited_for) = (t.locks.clone(), key.clone());
    let waiter = tokio::spawn(async move { locks.try_acquire(&waited_for, LONG, LONG).await });
    until("somebody waits", async || {
        let holder = t.locks.inspect(&key).await;
        holder.is_ok_and(|holder| holder.is_some_and(|holder| holder.waiting_here > 0))
    })
    .await;
    assert!(!waiter.is_finished());
    let released = std::time::Instant::now();
    drop(held);
    assert!(waiter.await.unwrap().unwrap().unwrap().is_held());
    let waited = released.elapsed();
    assert!(waited < PROMPT, "{waited:?}");
}

async fn the_levels_of_one_key_are_separate_locks(t: &TestLocks) {
    let key = LockKey::named("k");
    let _zone = t.hold(&key).await;
    let global = key.clone().at_level(LockLevel::Global);
    if matches!(t.kind(), Kind::Process | Kind::Sqlite | Kind::Aerospike) {
        // No other zone can reach them.
        let refused = t.locks.try_acquire(&global, Duration::ZERO, LONG).await.unwrap_err();
        assert!(matches!(refused, LockError::OneZone { .. }), "{refused}");
        let message = refused.to_string();
        assert!(message.contains("`k`") && message.contains("LockLevel::Zone"), "{message}");
    } else {
        assert!(t.try_now(&global).await.is_some());
    }
    assert!(t.try_now(&key.at_level(LockLevel::Zone)).await.is_none());
}

async fn tokens_always_grow(t: &TestLocks) {
    let key = LockKey::named("k");
    let mut last = 0;
    for round in 0..40 {
        let lease = t.hold(&key).await;
        assert!(lease.token() > last, "round {round}: {} after {last}", lease.token());
        last = lease.token();
        if round % 2 == 0 {
            lease.release().await;
        }
    }
    // Also from one waiter of this process to the next.
    let seen = Arc::new(AtomicU64::new(last.unsigned_abs()));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let (locks, key, seen) = (t.locks.clone(), key.clone(), seen.clone());
        tasks.spawn(async move {
            let lease = locks.acquire(&key, LONG).await.unwrap();
            let token = lease.token().unsigned_abs();
            assert!(seen.swap(token, Ordering::SeqCst) < token);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

async fn fifty_rounds_leave_nothing_behind(t: &TestLocks) {
    let key = LockKey::named("k");
    for _ in 0..50 {
        let lease = t.hold(&key).await;
        assert!(lease.release().await);
        // A second release changes nothing, neither now nor for the next holder.
        lease.release().await;
        let next = t.hold(&key).await;
        lease.release().await;
        drop(lease);
        assert!(next.is_held());
        assert!(t.try_now(&key).await.is_none(), "the key is free although it is held");
        assert!(next.release().await, "the lease was held until its release");
    }
    t.is_free_in_the_end(&key).await;
    if let Some(place) = t.place() {
        let connections = place.connections().await;
        assert!(connections <= place.most_connections(), "{connections} connections");
    }
}

async fn invalid_requests_are_rejected(t: &TestLocks) {
    let blank = t.locks.acquire(&LockKey::named(" "), LONG).await;
    assert!(matches!(blank, Err(LockError::BlankKey)), "{blank:?}");
    let key = LockKey::named("k");
    let error = t.locks.acquire(&key, Duration::ZERO).await.unwrap_err();
    assert_eq!(error.to_string(), "`k`: max_hold is 0ns; it must be longer than zero");
}

async fn inspect_names_the_holder(t: &TestLocks) {
    let key = LockKey::named("k");
    assert_eq!(t.locks.inspect(&key).await.unwrap(), None);
    let within = t.locks.with_lock(&key, Default::default(), async |_| t.locks.inspect(&key).await);
    let holder = within.await.unwrap().unwrap();
    assert!(holder.holder.contains(&std::process::id().to_string()), "{holder:?}");
    assert_eq!(holder.waiting_here, 0);
    // `with_lock` does not wait for its release.
    t.is_free_in_the_end(&key).await;
}
