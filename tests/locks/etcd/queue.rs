//! Keys are passed on in the order in which processes came, to one process at a time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockKey, LockProvider, lock_key};
use ekbatan_testkit::{EtcdServer, Proxy};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Space;
use crate::providers::LONG;

/// A process that stands still for this long may lose its place, which it keeps by signs of life.
const PLACE_MAY_BE_LOST: Duration = Duration::from_millis(1_600);

/// How often a test may be repeated because the machine stood still.
const ROUNDS: usize = 10;

/// The longest time that this process stands still from now on.
fn standstills() -> watch::Receiver<Duration> {
    let (longest, noted) = watch::channel(Duration::ZERO);
    tokio::spawn(async move {
        while !longest.is_closed() {
            let slept = Instant::now();
            tokio::time::sleep(Duration::from_millis(20)).await;
            longest.send_modify(|longest| *longest = slept.elapsed().max(*longest));
        }
    });
    noted
}

async fn may_have_lost_a_place(mut standstills: watch::Receiver<Duration>) -> bool {
    // A standstill is noted when it is over.
    standstills.mark_unchanged();
    standstills.changed().await.unwrap();
    *standstills.borrow() >= PLACE_MAY_BE_LOST
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_get_a_key_in_the_order_in_which_they_came() {
    const PROCESSES: usize = 6;
    for round in 1.. {
        let standstills = standstills();
        let served = served(PROCESSES).await;
        assert!(served.is_sorted_by_key(|(_, token)| *token), "{served:?}");
        let order: Vec<usize> = served.iter().map(|(process, _)| *process).collect();
        if order == (0..PROCESSES).collect::<Vec<_>>() {
            return;
        }
        assert!(round < ROUNDS && may_have_lost_a_place(standstills).await, "{order:?}");
    }
}

/// So many processes queue for a key one after another. Returns in which order they get it, with
/// their tokens.
async fn served(processes: usize) -> Vec<(usize, i64)> {
    let space = Space::shared().await;
    let (key, holder) = (LockKey::named("k"), space.locks().await);
    let held = holder.acquire(&key, LONG).await.unwrap();
    let served: Arc<Mutex<Vec<(usize, i64)>>> = Arc::default();
    let mut waiting = JoinSet::new();
    for process in 0..processes {
        let (locks, key, served) = (space.locks().await, key.clone(), served.clone());
        waiting.spawn(async move {
            let lease = locks.acquire(&key, LONG).await.unwrap();
            served.lock().unwrap().push((process, lease.token()));
            assert!(lease.release().await);
            locks
        });
        // That of the holder, too.
        space.until_places(process + 2).await;
    }
    assert!(held.release().await);
    waiting.join_all().await;
    assert_eq!(space.places().await, Vec::<String>::new());
    served.lock().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_one_process_however_many_wait() {
    const PROCESSES: usize = 8;
    for round in 1.. {
        let standstills = standstills();
        let woken = woken_by_a_release(PROCESSES).await;
        if woken == 0 {
            return;
        }
        let is_late = round < ROUNDS && may_have_lost_a_place(standstills).await;
        assert!(is_late, "process {woken} has overtaken the first one");
    }
}

/// Returns which of so many processes gets the key.
async fn woken_by_a_release(processes: usize) -> usize {
    let space = Space::shared().await;
    let key = LockKey::named("k");
    let holder = space.locks().await;
    let held = holder.acquire(&key, LONG * 10).await.unwrap();
    let (mut proxies, mut waiting) = (Vec::new(), JoinSet::new());
    for process in 0..processes {
        let proxy = Proxy::start(("127.0.0.1", space.server.port())).await.unwrap();
        let url = proxy.url_for(&space.url);
        let through = Space { url, namespace: space.namespace.clone(), ..space };
        let (locks, key) = (through.locks().await, key.clone());
        waiting.spawn(async move { (process, locks.acquire(&key, LONG).await.unwrap(), locks) });
        space.until_places(process + 2).await;
        proxies.push(proxy);
    }
    // A sign of life every second and a half is all that the others send.
    let trips = async || {
        for proxy in &proxies {
            proxy.reset();
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        proxies.iter().map(Proxy::round_trips).collect::<Vec<_>>()
    };
    let quiet = |trips: &[u64]| trips.iter().all(|trips| *trips <= 8);
    support::until("nobody looks any more", async || quiet(&trips().await)).await;
    assert!(held.release().await);
    let (process, lease, _locks) = waiting.join_next().await.unwrap().unwrap();
    assert!(waiting.try_join_next().is_none(), "a key has one holder");
    let mut others = trips().await;
    others.remove(process);
    assert!(quiet(&others), "{others:?}");
    waiting.abort_all();
    while waiting.join_next().await.is_some() {}
    assert!(lease.release().await);
    process
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_died_or_gave_up_keeps_nobody_waiting() {
    for dies in [true, false] {
        let space = Space::shared().await;
        let (key, holder) = (LockKey::named("k"), space.locks().await);
        let held = holder.acquire(&key, LONG).await.unwrap();
        let first = space.locks().await;
        let waiting = tokio::spawn({
            let (first, key) = (first.clone(), key.clone());
            async move { first.acquire(&key, LONG).await.map(drop) }
        });
        space.until_places(2).await;
        let second = space.locks().await;
        let served = tokio::spawn({
            let key = key.clone();
            async move { second.acquire(&key, LONG).await.unwrap().release().await }
        });
        space.until_places(3).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        let living = (!dies).then_some(first);
        // One that gives up leaves the queue from the middle.
        if living.is_some() {
            space.until_places(2).await;
        }
        assert!(held.release().await);
        assert!(served.await.unwrap());
        drop(living);
    }
}

#[tokio::test]
async fn a_try_that_does_not_wait_gets_no_place() {
    let space = Space::shared().await;
    let (key, holder, other) = (LockKey::named("k"), space.locks().await, space.locks().await);
    let held = holder.acquire(&key, LONG).await.unwrap();
    assert!(other.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().is_none());
    assert_eq!(space.places().await.len(), 1);
    assert!(held.release().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_leases_and_waiters_share_one_connection() {
    const KEYS: i64 = 100;
    let server = EtcdServer::start().await.unwrap();
    let proxy = Proxy::start(("127.0.0.1", server.port())).await.unwrap();
    let space = Space::on(&server);
    let url = proxy.url_for(&space.url);
    let through = Space { url, namespace: space.namespace.clone(), ..space };
    let (holder, locks): (LockProvider, LockProvider) =
        (space.locks().await, through.locks().await);
    let key = |n: i64| lock_key!("key", n);
    let mut held = Vec::new();
    for n in 0..KEYS {
        held.push(holder.acquire(&key(n), LONG).await.unwrap());
    }
    let mut waiters = JoinSet::new();
    for n in 0..KEYS * 5 {
        let (locks, key) = (locks.clone(), key(n % KEYS));
        waiters.spawn(async move { locks.acquire(&key, LONG).await.unwrap().release().await });
    }
    space.until_places(2 * KEYS as usize).await;
    assert_eq!(proxy.connections(), 1);
    drop(held);
    while let Some(released) = waiters.join_next().await {
        assert!(released.unwrap());
    }
    assert_eq!(proxy.connections(), 1);
    space.until_places(0).await;
}
