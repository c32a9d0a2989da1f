//! What waiting costs while nothing happens.

use std::time::{Duration, Instant};

use ekbatan::lock::{KeyedLockProvider, Lease, LockKey, lock_key};

use crate::providers::{Kind, LONG};
use crate::silence::Silenced;

on_providers! {
    |kind| kind;
    [
        redis, etcd, postgres_lease, mysql_lease, mysql_session, mariadb_lease, mariadb_session;
        stores
    ]
    a_hundred_keys_that_are_waited_for_take_few_round_trips,
}

const KEYS: i64 = 100;

/// The most round trips of a process in a second, whatever it waits for.
const MOST: f64 = 5.0;

async fn a_hundred_keys_that_are_waited_for_take_few_round_trips(kind: Kind) {
    let Silenced { locks: waiter, other: holder, proxy } = Silenced::start(kind).await;
    let keys: Vec<LockKey> = (0..KEYS).map(|n| lock_key!("key", n)).collect();
    let mut held = Vec::new();
    for key in &keys {
        held.push(holder.try_acquire(key, LONG, LONG * 10).await.unwrap().unwrap());
    }
    let mut waiting = tokio::task::JoinSet::new();
    for key in keys {
        let waiter = waiter.clone();
        waiting.spawn(async move { waiter.acquire(&key, LONG).await.unwrap() });
    }
    // At first waiters look more often.
    let mut per_second = Vec::new();
    while per_second.last().is_none_or(|trips| *trips > MOST) {
        assert!(per_second.len() < 10, "{kind:?}: {per_second:?} round trips per second");
        let begun = Instant::now();
        proxy.reset();
        tokio::time::sleep(Duration::from_secs(2)).await;
        per_second.push(proxy.round_trips() as f64 / begun.elapsed().as_secs_f64());
    }
    println!("{kind:?}: {per_second:.1?} round trips per second");
    assert!(waiting.try_join_next().is_none(), "all keys are held");
    for lease in held {
        assert!(lease.release().await);
    }
    let leases: Vec<Lease> = waiting.join_all().await;
    assert_eq!(leases.len(), KEYS as usize);
}
