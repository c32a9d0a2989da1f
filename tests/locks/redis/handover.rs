//! A released key goes to the process that has waited longest, and to no other.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ekbatan::lock::{KeyedLockProvider, LockKey, LockProvider};
use ekbatan_testkit::{Proxy, RedisServer};
use tokio::task::JoinSet;

use super::{Space, asked, connection};
use crate::providers::LONG;

/// Waits until so many processes have a place among those that wait for the only key.
async fn until_waiting(space: &Space, processes: usize) {
    let mut server = connection(&space.url).await;
    loop {
        let pattern = format!("{}:wanted:*", space.namespace);
        let names: Vec<String> = asked(&mut server, &["KEYS", &pattern]).await;
        let places: Option<String> = match names.first() {
            Some(name) => asked(&mut server, &["GET", name]).await,
            None => None,
        };
        if places.unwrap_or_default().matches('=').count() >= processes {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// How long the server keeps a key that was passed on. A process that stands still meanwhile loses
/// its place.
const CONFIRM: Duration = Duration::from_millis(500);

/// A process that stands still for this long may not have renewed its place.
const PLACE_MAY_BE_LOST: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_get_a_key_in_the_order_in_which_they_came() {
    const PROCESSES: usize = 6;
    let (mut in_order, mut rounds) = (0, 0);
    while in_order < 3 {
        let round = queued_for_a_key(PROCESSES).await;
        let served = &round.served;
        assert!(served.is_sorted_by_key(|served| served.token), "{served:?}");
        let order: Vec<usize> = served.iter().map(|served| served.process).collect();
        if order == (0..PROCESSES).collect::<Vec<_>>() {
            in_order += 1;
        } else {
            assert!(round.may_have_lost_a_place() && rounds < 10, "{order:?}");
        }
        rounds += 1;
    }
}

/// Processes that have got a key one after another.
struct Round {
    /// The longest time that a process took to queue.
    queued: Duration,
    released: Instant,
    served: Vec<Served>,
}

#[derive(Debug, Clone, Copy)]
struct Served {
    process: usize,
    token: i64,
    at: Instant,
}

impl Round {
    /// Whether a busy machine may have kept a process from taking its turn.
    fn may_have_lost_a_place(&self) -> bool {
        let before = [self.released].into_iter().chain(self.served.iter().map(|served| served.at));
        let mut turns = before.zip(&self.served).map(|(before, next)| next.at - before);
        self.queued >= PLACE_MAY_BE_LOST || turns.any(|turn| turn >= CONFIRM)
    }
}

/// So many processes queue for a key one after another, and then get it.
async fn queued_for_a_key(processes: usize) -> Round {
    let space = Space::shared().await;
    let (key, holder) = (LockKey::named("k"), space.locks().await);
    let held = holder.acquire(&key, LONG).await.unwrap();
    let served: Arc<Mutex<Vec<Served>>> = Arc::default();
    let (mut waiting, mut queued) = (JoinSet::new(), Duration::ZERO);
    for process in 0..processes {
        let begun = Instant::now();
        let (locks, key, served) = (space.locks().await, key.clone(), served.clone());
        waiting.spawn(async move {
            let lease = locks.acquire(&key, LONG).await.unwrap();
            let (token, at) = (lease.token(), Instant::now());
            served.lock().unwrap().push(Served { process, token, at });
            assert!(lease.release().await);
            locks
        });
        until_waiting(&space, process + 1).await;
        queued = queued.max(begun.elapsed());
    }
    let released = Instant::now();
    assert!(held.release().await);
    waiting.join_all().await;
    let served = served.lock().unwrap().clone();
    Round { queued, released, served }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_costs_the_same_however_many_processes_wait() {
    const PROCESSES: usize = 30;
    const TURNS: usize = 5;
    let redis = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(("127.0.0.1", redis.port())).await.unwrap();
    let space = Space { url: proxy.url_for(&redis.url()), ..Space::on(&redis) };
    let direct = Space { url: redis.url(), namespace: space.namespace.clone() };
    let key = LockKey::named("k");
    let held = direct.locks().await.acquire(&key, LONG).await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..PROCESSES {
        let (locks, key) = (space.locks().await, key.clone());
        waiting.spawn(async move {
            for _ in 0..TURNS {
                assert!(locks.acquire(&key, LONG).await.unwrap().release().await);
            }
            locks
        });
    }
    until_waiting(&direct, PROCESSES).await;
    proxy.reset();
    let begun = Instant::now();
    assert!(held.release().await);
    let processes: Vec<LockProvider> = waiting.join_all().await;
    let trips = proxy.round_trips() as f64;
    // Each process looks once a second whether a message was lost.
    let looks = begun.elapsed().as_secs_f64() * 1.5 * PROCESSES as f64;
    let each = (trips - looks) / (PROCESSES * TURNS) as f64;
    println!("{each:.1} trips for each hand-over, {trips} in all");
    assert!(each <= 4.0, "{each} trips for each hand-over");
    drop(processes);
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
        until_waiting(&space, 1).await;
        let second = space.locks().await;
        let served = tokio::spawn({
            let key = key.clone();
            async move { second.acquire(&key, LONG).await.unwrap().release().await }
        });
        until_waiting(&space, 2).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        let living = (!dies).then_some(first);
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
    let mut server = connection(&space.url).await;
    let pattern = format!("{}:wanted:*", space.namespace);
    let places: Vec<String> = asked(&mut server, &["KEYS", &pattern]).await;
    assert!(places.is_empty(), "{places:?}");
    assert!(held.release().await);
}
