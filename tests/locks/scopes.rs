//! Re-entry: a scope enters its own lock again, everything else waits.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockKey, LockOptions, LockScope, LockSource};

use crate::providers::{Kind, LONG, TestLocks};

on_every_provider! {
    a_scope_reenters_its_lock_at_once,
    the_lock_is_held_until_its_last_lease_ends,
    the_hold_of_the_first_lease_counts,
    a_task_spawned_within_a_scope_waits,
    outside_a_scope_no_lock_is_reentered,
}

async fn a_scope_reenters_its_lock_at_once(t: &TestLocks) {
    let key = LockKey::named("k");
    LockScope::run(async {
        let outer = t.hold(&key).await;
        let inner = t.try_now(&key).await.expect("the scope holds it");
        assert_eq!(inner.token(), outer.token());
        assert!(inner.release().await);
        assert!(!inner.is_held() && outer.is_held());
        // `with_lock` re-enters as well.
        let options = LockOptions::default();
        let again = t.locks.with_lock(&key, options, async |lease| Ok::<_, ()>(lease.token()));
        assert_eq!(again.await.unwrap(), outer.token());
        assert!(outer.is_held());
    })
    .await;
    t.is_free_in_the_end(&key).await;
}

async fn the_lock_is_held_until_its_last_lease_ends(t: &TestLocks) {
    let key = LockKey::named("k");
    let inner = LockScope::run(async {
        let outer = t.hold(&key).await;
        let inner = t.try_now(&key).await.unwrap();
        assert!(outer.release().await, "the inner lease is still held");
        assert!(!outer.release().await || inner.is_held(), "a second release counts once");
        inner
    })
    .await;
    assert!(inner.is_held());
    assert!(t.try_now(&key).await.is_none());
    drop(inner);
    t.is_free_in_the_end(&key).await;
}

async fn the_hold_of_the_first_lease_counts(t: &TestLocks) {
    let key = LockKey::named("k");
    let mut hold = Duration::from_millis(100);
    LockScope::run(async {
        let (outer, inner) = loop {
            let outer = t.try_for(&key, LONG, hold).await.unwrap();
            let inner = t.try_for(&key, LONG, LONG).await.unwrap();
            if inner.token() == outer.token() {
                break (outer, inner);
            }
            // On a slow machine the first lease expires before the second request.
            hold *= 2;
        };
        assert!(inner.remaining() <= hold);
        inner.lost().await;
        assert!(!outer.is_held() && !inner.is_held());
    })
    .await;
}

async fn a_task_spawned_within_a_scope_waits(t: &TestLocks) {
    let key = LockKey::named("k");
    LockScope::run(async {
        let _held = t.hold(&key).await;
        let (locks, of_task) = (t.locks.clone(), key.clone());
        let spawned =
            tokio::spawn(async move { locks.try_acquire(&of_task, Duration::ZERO, LONG).await });
        assert!(spawned.await.unwrap().unwrap().is_none());
    })
    .await;
}

/// On one thread, where the key's worker has not noticed that the hold is over.
#[tokio::test]
async fn a_hold_that_is_over_is_not_reentered() {
    let t = TestLocks::start(Kind::Process).await;
    let key = LockKey::named("k");
    LockScope::run(async {
        let dropped = t.hold(&key).await;
        let token = dropped.token();
        drop(dropped);
        let next = t.hold(&key).await;
        assert!(next.is_held(), "the scope entered a hold that had been released");
        assert!(next.token() > token);
        assert!(next.release().await);

        let hold = Duration::from_millis(20);
        let expired = t.try_for(&key, LONG, hold).await.unwrap();
        // Blocks the worker, too.
        std::thread::sleep(hold * 2);
        let next = t.hold(&key).await;
        assert!(next.is_held(), "the scope entered a hold that had expired");
        assert!(next.token() > expired.token());
    })
    .await;
}

async fn outside_a_scope_no_lock_is_reentered(t: &TestLocks) {
    let key = LockKey::named("k");
    let _held = t.hold(&key).await;
    assert!(t.try_now(&key).await.is_none());
}
