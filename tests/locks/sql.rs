//! What all locks on PostgreSQL, MySQL and MariaDB have in common: how many connections they take,
//! and what happens to leases when callers are dropped and servers crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ekbatan::lock::{KeyedLockProvider, Lease, LockKey, LockScope, LossCause, lock_key};
use ekbatan_testkit::{Dropped, drop_at_poll};
use support::until;

use crate::providers::{Kind, LONG};
use support::soak::rounds;

pub mod place;

use place::{Place, Server, acquire_eventually};

on_every_sql_server! {
    connections_do_not_grow_with_holders_and_waiters,
    tokens_grow_over_a_crash_of_the_server,
    two_processes_share_a_key_fairly,
    a_caller_dropped_at_any_moment_leaves_no_lock,
    many_processes_can_start_at_once,
    acquiring_and_releasing_take_one_round_trip_each,
}

async fn connections_do_not_grow_with_holders_and_waiters(kind: Kind) {
    const WAITERS_PER_KEY: usize = 10;
    let place = Place::shared(kind).await;
    let locks = place.process().await;
    let count = rounds(200, 1_000);
    let keys: Vec<LockKey> = (0..count).map(|n| lock_key!("key", n as i64)).collect();
    let mut leases = tokio::task::JoinSet::new();
    for key in keys.clone() {
        let locks = locks.clone();
        leases.spawn(async move { locks.acquire(&key, LONG * 10).await.unwrap() });
    }
    let leases: Vec<Lease> = leases.join_all().await;
    assert_eq!(place.held().await, count as i64);
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..count * WAITERS_PER_KEY {
        let (locks, key) = (locks.clone(), keys[n % count].clone());
        waiters.spawn(async move { locks.acquire(&key, LONG).await.unwrap().release().await });
    }
    let all_wait = |waiting: usize| waiting == WAITERS_PER_KEY;
    for key in &keys {
        until("all others wait", async || {
            locks.inspect(key).await.unwrap().is_some_and(|it| all_wait(it.waiting_here))
        })
        .await;
    }
    let connections = place.connections().await;
    assert!(connections <= place.most_connections(), "{connections} connections");
    drop(leases);
    while let Some(released) = waiters.join_next().await {
        assert!(released.unwrap());
    }
    let connections = place.connections().await;
    assert!(connections <= place.most_connections(), "{connections} connections");
    place.none_held().await;
}

async fn tokens_grow_over_a_crash_of_the_server(kind: Kind) {
    let server = Server::alone(kind).await;
    let place = Place { kind, url: server.create_database().await };
    let locks = place.process().await;
    let key = LockKey::named("k");
    // The row of a lease survives the server until it expires.
    let hold = if kind.is_session() { LONG } else { Duration::from_secs(2) };
    let mut last = 0;
    for _ in 0..rounds(2, 3) {
        let lease = acquire_eventually(&locks, &key).await;
        assert!(lease.release().await);
        let lease = locks.acquire(&key, hold).await.unwrap();
        assert!(lease.token() > last);
        last = lease.token();
        server.kill().await;
        if kind.is_session() {
            let cause = lease.lost().await;
            assert!(matches!(cause, LossCause::SessionGone(_)), "{cause:?}");
        }
        server.restart().await;
        drop(lease);
        let again = acquire_eventually(&locks, &key).await;
        assert!(again.token() > last, "{} after {last}", again.token());
        last = again.token();
        assert!(again.release().await);
    }
}

/// Each process gets at least a tenth of the leases. The shares are compared after 30 seconds, or
/// earlier if they are fair by then: over a short time the machine may prefer one process.
async fn two_processes_share_a_key_fairly(kind: Kind) {
    const LONGEST: Duration = Duration::from_secs(30);
    let rounds = rounds(300, 600);
    let place = Place::shared(kind).await;
    let locks = [place.process().await, place.process().await];
    let inside = Arc::new(AtomicUsize::new(0));
    // Leases count once both have begun: a process gives way only to one that has asked.
    let begun = Arc::new([const { AtomicBool::new(false) }; 2]);
    let served = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..6 {
        let process = task % 2;
        let (inside, begun, served) = (inside.clone(), begun.clone(), served.clone());
        let locks = locks[process].clone();
        tasks.spawn(async move {
            loop {
                let counts = [0, 1].map(|process| served[process].load(Ordering::SeqCst));
                let total = counts[0] + counts[1];
                if total >= rounds && (are_fair(counts) || start.elapsed() >= LONGEST) {
                    return;
                }
                let lease = locks.acquire(&LockKey::named("k"), LONG).await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "the key has one holder");
                begun[process].store(true, Ordering::SeqCst);
                if begun.iter().all(|begun| begun.load(Ordering::SeqCst)) {
                    served[process].fetch_add(1, Ordering::SeqCst);
                }
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                lease.release().await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let counts = [0, 1].map(|process| served[process].load(Ordering::SeqCst));
    assert!(are_fair(counts), "{counts:?}");
}

fn are_fair(counts: [usize; 2]) -> bool {
    counts.iter().all(|count| count * 10 >= counts[0] + counts[1])
}

async fn a_caller_dropped_at_any_moment_leaves_no_lock(kind: Kind) {
    let place = Place::shared(kind).await;
    let locks = place.process().await;
    let begun = Instant::now();
    assert!(locks.acquire(&LockKey::named("first"), LONG).await.unwrap().release().await);
    // Some callers are dropped before they have the lock, and some after that.
    let latest = begun.elapsed().max(Duration::from_millis(2)) * 2;
    let mut finished = 0;
    for round in 0..200 {
        let key = lock_key!("key", round as i64);
        if round < 20 {
            let taking = drop_at_poll(round, locks.acquire(&key, LONG));
            finished += usize::from(matches!(taking.await, Dropped::Finished(_)));
            continue;
        }
        let moment = latest.mul_f64(fastrand::f64());
        let taking = tokio::time::timeout(moment, locks.acquire(&key, LONG));
        finished += usize::from(taking.await.is_ok());
    }
    assert!(finished > 0);
    place.none_held().await;
}

async fn many_processes_can_start_at_once(kind: Kind) {
    const KEYS: usize = 20;
    let place = Arc::new(Place::shared(kind).await);
    let mut starting = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let place = place.clone();
        starting.spawn(async move {
            let locks = place.process().await;
            let mut leases = Vec::new();
            for n in 0..KEYS {
                let key = lock_key!("key", n as i64);
                leases.extend(locks.try_acquire(&key, Duration::ZERO, LONG).await.unwrap());
            }
            (locks, leases)
        });
    }
    let held: Vec<_> = starting.join_all().await;
    assert_eq!(held.iter().map(|(_, leases)| leases.len()).sum::<usize>(), KEYS);
}

async fn acquiring_and_releasing_take_one_round_trip_each(kind: Kind) {
    let place = Place::shared(kind).await;
    let proxy = place.proxy().await;
    let locks = place.process_through(&proxy).await;
    // The first round opens the connections, also the one for notifications.
    let key = LockKey::named("k");
    assert!(locks.acquire(&key, LONG).await.unwrap().release().await);
    let opened = if kind == Kind::PostgresLease { 2 } else { 1 };
    until("the connections are open", async || place.connections().await >= opened).await;
    let mut least = u64::MAX;
    for _ in 0..10 {
        proxy.reset();
        let lease = locks.acquire(&key, LONG).await.unwrap();
        assert!(lease.release().await);
        least = least.min(proxy.round_trips());
    }
    assert_eq!(least, 2);
    // A scope re-enters its key without a round trip. A ping of the connection may come between.
    LockScope::run(async {
        let outer = locks.acquire(&key, LONG).await.unwrap();
        let mut least = u64::MAX;
        for _ in 0..10 {
            proxy.reset();
            let inner = locks.acquire(&key, LONG).await.unwrap();
            assert!(inner.release().await && outer.is_held());
            least = least.min(proxy.round_trips());
        }
        assert_eq!(least, 0);
        assert!(outer.release().await);
    })
    .await;
    proxy.cut();
    proxy.restore();
    assert!(acquire_eventually(&locks, &key).await.release().await);
}
