//! Many leases and waiters in one process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ekbatan::lock::{LockError, LockKey};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use tokio::task::JoinSet;

use crate::providers::Kind;
use crate::server::LockServer;

on_every_provider! { all_waiters_are_served_in_order_over_few_connections }
on_providers! { [process Process] all_waiters_are_served_in_order_over_few_connections }

/// Longer than the test takes.
const LONG: Duration = Duration::from_secs(3_600);

async fn all_waiters_are_served_in_order_over_few_connections(kind: Kind) {
    let leases = kind.rounds(200, 1_000);
    let waiting = leases * 10;
    let server = Arc::new(LockServer::shared(kind).await);
    let locks = kind.connect(&server.url).await;
    let keys: Vec<LockKey> = (0..leases).map(|n| lock_key!("key", n as i64)).collect();
    let mut acquiring = JoinSet::new();
    for key in keys.clone() {
        let locks = locks.clone();
        acquiring.spawn(async move { locks.acquire(&key, LONG).await.unwrap() });
    }
    let held = acquiring.join_all().await;
    if kind != Kind::Process {
        assert_eq!(server.held().await.len(), leases, "all are held at once");
    }
    let over = Arc::new(AtomicBool::new(false));
    let begun = Instant::now();
    let looking = tokio::spawn(most_connections(server.clone(), over.clone()));

    let served: Arc<Mutex<HashMap<usize, Vec<usize>>>> = Arc::default();
    let mut waiters = JoinSet::new();
    for n in 0..waiting {
        let (locks, key, served) = (locks.clone(), keys[n % leases].clone(), served.clone());
        let mut waiter = async move {
            let lease = locks.acquire(&key, LONG).await.unwrap();
            served.lock().unwrap().entry(n % leases).or_default().push(n);
            (lease.check().is_ok(), lease.release().await)
        }
        .boxed();
        // Each waiter enters the queue before the next one.
        assert!((&mut waiter).now_or_never().is_none(), "the key is held");
        waiters.spawn(waiter);
    }
    for key in [&keys[0], &keys[leases - 1]] {
        // A server that is busy with the waiters may answer late.
        let holder = loop {
            match locks.inspect(key).await {
                Err(LockError::Unavailable { .. } | LockError::InDoubt { .. }) => {}
                answered => break answered.unwrap().unwrap(),
            }
        };
        assert_eq!(holder.waiting_here, waiting / leases);
    }
    drop(held);
    let mut all_released = true;
    while let Some(ended) = waiters.join_next().await {
        let (was_held, is_released) = ended.unwrap();
        assert!(was_held, "the lease was held until its release");
        all_released &= is_released;
    }
    over.store(true, Ordering::SeqCst);
    let most = looking.await.unwrap();
    let took = begun.elapsed();
    println!("{kind:?}: {waiting} served in {took:?}, at most {most} connections");
    // A server that stood still leaves a release without an answer, and a connection that is replaced while other
    // calls still use it.
    let may_have_stood_still = kind.connections() > 0 && took >= kind.answer_timeout();
    assert!(all_released || may_have_stood_still, "each release was answered");
    let allowed = if may_have_stood_still { 2 * kind.connections() } else { kind.connections() };
    assert!(most <= allowed, "{most} connections");
    let few = format!("at most {} connections", kind.connections());
    support::until(&few, async || server.connections().await <= kind.connections()).await;

    let served = std::mem::take(&mut *served.lock().unwrap());
    assert_eq!(served.values().map(Vec::len).sum::<usize>(), waiting);
    for order in served.values() {
        assert!(order.is_sorted(), "{order:?}");
    }
    locks.close().await;
    assert_eq!(server.held().await, Vec::<String>::new());
}

/// The maximum number of connections until the test is over.
async fn most_connections(server: Arc<LockServer>, over: Arc<AtomicBool>) -> usize {
    let mut most = 0;
    while !over.load(Ordering::SeqCst) {
        most = most.max(server.connections().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    most
}
