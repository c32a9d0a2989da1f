//! Calls beside each other in one task exclude each other. Only calls within a call re-enter.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, Lease, LockKey, LockScope};
use ekbatan::prelude::*;
use futures_util::future::join_all;

use crate::providers::{LONG, TestLocks};

on_every_provider! {
    calls_beside_each_other_exclude_each_other,
    leases_taken_beside_each_other_exclude_each_other,
    scopes_beside_each_other_exclude_each_other,
    calls_within_calls_reenter,
    calls_beside_each_other_in_one_scope_share_its_lock,
}

/// Counts those that are inside at the same time.
#[derive(Default)]
struct Inside(AtomicUsize);

impl Inside {
    async fn alone(&self) {
        assert_eq!(self.0.fetch_add(1, Ordering::SeqCst), 0, "a key has one holder");
        tokio::time::sleep(Duration::from_millis(5)).await;
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn options() -> LockOptions {
    LockOptions::wait(LONG).hold(LONG)
}

/// Begins at different times: some while another one waits, some while it is inside.
async fn begin(n: u64) {
    tokio::time::sleep(Duration::from_millis(n * 2)).await;
}

/// Runs six calls beside each other, under another lock.
async fn beside_each_other(t: &TestLocks, call: impl AsyncFn()) {
    let work = async |_: Lease| {
        let call = &call;
        let calls = (0..6).map(|n| async move {
            begin(n).await;
            call().await;
        });
        join_all(calls).await;
        Ok::<_, ()>(())
    };
    t.locks.with_lock(&LockKey::named("outer"), options(), work).await.unwrap();
}

async fn calls_beside_each_other_exclude_each_other(t: &TestLocks) {
    let (inner, inside) = (LockKey::named("inner"), Inside::default());
    let call = async || {
        let work = async |_: Lease| {
            inside.alone().await;
            Ok::<_, ()>(())
        };
        t.locks.with_lock(&inner, options(), work).await.unwrap();
    };
    beside_each_other(t, call).await;
}

async fn leases_taken_beside_each_other_exclude_each_other(t: &TestLocks) {
    let (inner, inside) = (LockKey::named("inner"), Inside::default());
    let call = async || {
        let lease = t.locks.acquire(&inner, LONG).await.unwrap();
        inside.alone().await;
        assert!(lease.release().await);
    };
    beside_each_other(t, call).await;
}

async fn scopes_beside_each_other_exclude_each_other(t: &TestLocks) {
    let key = LockKey::named("k");
    let inside = Inside::default();
    LockScope::run(async {
        let scopes = (0..6).map(|n| {
            let (locks, key, inside) = (&t.locks, &key, &inside);
            LockScope::run(async move {
                begin(n).await;
                let lease = locks.acquire(key, LONG).await.unwrap();
                let again = locks.acquire(key, LONG).await.unwrap();
                assert_eq!(again.token(), lease.token());
                inside.alone().await;
            })
        });
        join_all(scopes).await;
    })
    .await;
}

async fn calls_within_calls_reenter(t: &TestLocks) {
    let (a, b) = (LockKey::named("a"), LockKey::named("b"));
    let work = async |first: Lease| {
        let work = async |_: Lease| {
            let work = async |again: Lease| {
                assert_eq!(again.token(), first.token());
                let taken = t.locks.try_acquire(&a, Duration::ZERO, LONG).await.unwrap();
                assert_eq!(taken.expect("the scope holds it").token(), first.token());
                Ok::<_, ()>(())
            };
            t.locks.with_lock(&a, options(), work).await.map_err(drop)
        };
        t.locks.with_lock(&b, options(), work).await.map_err(drop)
    };
    t.locks.with_lock(&a, options(), work).await.unwrap();
    t.is_free_in_the_end(&a).await;
}

/// Whether or not the first one has its answer when the others begin.
async fn calls_beside_each_other_in_one_scope_share_its_lock(t: &TestLocks) {
    let key = LockKey::named("k");
    // Nobody has to wait for the end of a hold.
    let (wait, hold) = (LONG, LONG * 10);
    LockScope::run(async {
        let take = || t.try_for(&key, wait, hold);
        let within = LockScope::run(take());
        let (first, second, third) = tokio::join!(take(), take(), within);
        let leases = [first, second, third].map(|lease| lease.expect("the scope holds the key"));
        assert!(leases.iter().all(|lease| lease.token() == leases[0].token()));
        let mut held = leases.len();
        for lease in leases {
            // A task of its own is in no scope.
            let (other, of_task) = (t.other_node().await, key.clone());
            let trying = async move { other.try_acquire(&of_task, Duration::ZERO, LONG).await };
            assert!(tokio::spawn(trying).await.unwrap().unwrap().is_none(), "{held} are held");
            assert!(lease.release().await);
            held -= 1;
        }
    })
    .await;
    t.is_free_in_the_end(&key).await;
}
