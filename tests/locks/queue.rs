//! The queue within the process: it is fair, it has no bound, and waiters that leave do not break it.

use std::sync::{Arc, Mutex};

use ekbatan::lock::{KeyedLockProvider, LockKey, lock_key};
use ekbatan_testkit::{Dropped, drop_at_poll};
use support::until;

use crate::providers::{LONG, TestLocks};
use support::soak::rounds;

on_every_provider! {
    waiters_are_served_in_arrival_order,
    a_waiter_that_leaves_does_not_block_the_queue,
    a_caller_dropped_at_any_poll_leaves_nothing_behind,
    many_leases_and_many_waiters_are_all_served,
}

async fn waiters_are_served_in_arrival_order(t: &TestLocks) {
    let key = LockKey::named("k");
    let served = Arc::new(Mutex::new(Vec::new()));
    let held = t.hold(&key).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..30 {
        let (locks, key, served) = (t.locks.clone(), key.clone(), served.clone());
        tasks.spawn(async move {
            let lease = locks.acquire(&key, LONG).await.unwrap();
            served.lock().unwrap().push(n);
            lease.release().await;
        });
        wait_for(t, &LockKey::named("k"), n + 1).await;
    }
    held.release().await;
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(*served.lock().unwrap(), (0..30).collect::<Vec<_>>());
}

async fn wait_for(t: &TestLocks, key: &LockKey, waiting: usize) {
    until("enough callers wait", async || {
        let holder = t.locks.inspect(key).await;
        holder.is_ok_and(|holder| holder.is_some_and(|holder| holder.waiting_here >= waiting))
    })
    .await;
}

async fn a_waiter_that_leaves_does_not_block_the_queue(t: &TestLocks) {
    let key = LockKey::named("k");
    let held = t.hold(&key).await;
    let waiter = |n: usize| {
        let (locks, key) = (t.locks.clone(), key.clone());
        (n, tokio::spawn(async move { locks.acquire(&key, LONG).await.unwrap() }))
    };
    let mut waiters = Vec::new();
    for n in 0..10 {
        waiters.push(waiter(n));
        wait_for(t, &key, n + 1).await;
    }
    for (n, waiter) in &waiters {
        if n % 2 == 0 {
            waiter.abort();
        }
    }
    held.release().await;
    for (n, waiter) in waiters {
        match n % 2 {
            0 => drop(waiter.await),
            _ => assert!(waiter.await.unwrap().release().await),
        }
    }
    t.is_free_in_the_end(&key).await;
}

async fn a_caller_dropped_at_any_poll_leaves_nothing_behind(t: &TestLocks) {
    let key = LockKey::named("k");
    for contended in [false, true] {
        for poll in 1..200 {
            let held = if contended { Some(t.hold(&key).await) } else { None };
            let taking = drop_at_poll(poll, async {
                let lease = t.locks.try_acquire(&key, LONG, LONG).await.unwrap().unwrap();
                lease.release().await;
            });
            let freeing = async {
                // The caller is queued by now, unless it has been dropped.
                tokio::task::yield_now().await;
                drop(held);
            };
            let (dropped, ()) = tokio::join!(taking, freeing);
            // The next caller gets the key.
            assert!(t.hold(&key).await.release().await);
            if matches!(dropped, Dropped::Finished(_)) {
                break;
            }
        }
    }
    t.is_free_in_the_end(&key).await;
}

async fn many_leases_and_many_waiters_are_all_served(t: &TestLocks) {
    let keys: Vec<LockKey> = (0..rounds(200, 1_000)).map(|n| lock_key!("key", n as i64)).collect();
    let mut held = Vec::new();
    for key in &keys {
        held.push(t.hold(key).await);
    }
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..rounds(600, 3_000) {
        let (locks, key) = (t.locks.clone(), keys[n % keys.len()].clone());
        waiters.spawn(async move { locks.acquire(&key, LONG).await.unwrap().release().await });
    }
    held.clear();
    while let Some(served) = waiters.join_next().await {
        assert!(served.unwrap());
    }
    for key in &keys {
        t.is_free_in_the_end(key).await;
    }
}
