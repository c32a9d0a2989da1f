//! A release of a lease on PostgreSQL hands the key over to the first waiter of any process.

use std::time::{Duration, Instant};

use ekbatan::lock::{
    Attempt, GrantRequest, KeyedLockProvider, Lease, LockBackend, LockError, LockKey, LockProvider,
    LossCause, PostgresLocks,
};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use sqlx::postgres::PgListener;
use support::until;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::providers::{Kind, LONG};
use crate::sql::place::Place;

/// The number of registered waiters.
const WAITERS: &str =
    "SELECT coalesce(sum(jsonb_array_length(waiters)), 0)::bigint FROM eventlog.lock_leases";

async fn registered(place: &Place, waiters: i64) {
    let all = async {
        until("all sessions wait", async || place.number(WAITERS).await == waiters).await;
    };
    tokio::time::timeout(LONG, all).await.expect("every waiter is registered");
}

/// A provider whose connection for messages is open: only then it is registered as a waiter.
async fn listening(place: &Place) -> LockProvider {
    const LISTENERS: &str = "SELECT count(*) FROM pg_stat_activity \
         WHERE datname = current_database() AND query LIKE 'LISTEN ekbatan_lock_%'";
    let before = place.number(LISTENERS).await;
    let process = place.process().await;
    until("the process listens", async || place.number(LISTENERS).await != before).await;
    process
}

fn waits(locks: &LockProvider, key: &LockKey) -> JoinHandle<Lease> {
    let (locks, key) = (locks.clone(), key.clone());
    tokio::spawn(async move { locks.acquire(&key, LONG).await.unwrap() })
}

async fn two_processes() -> (Place, LockProvider, LockProvider) {
    let place = Place::shared(Kind::PostgresLease).await;
    let (a, b) = (listening(&place).await, listening(&place).await);
    (place, a, b)
}

/// `a` holds the key, and `b` is registered as its waiter.
async fn contended(
    place: &Place,
    a: &LockProvider,
    b: &LockProvider,
    key: &LockKey,
) -> (Lease, JoinHandle<Lease>) {
    let held = a.acquire(key, LONG).await.unwrap();
    let waiter = waits(b, key);
    registered(place, 1).await;
    (held, waiter)
}

/// Whether a busy machine took longer to confirm the hand-over than the server keeps the key for that.
pub fn is_confirmed_too_late(lease: &Lease) -> bool {
    matches!(lease.check(), Err(LockError::Lost { cause: LossCause::NotRenewed(_), .. }))
}

async fn arrives(waiter: JoinHandle<Lease>) -> Lease {
    tokio::time::timeout(LONG, waiter).await.expect("the waiter gets the key").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_all_processes_are_served_in_order_with_leases_on_postgres() {
    let place = Place::shared(Kind::PostgresLease).await;
    let processes = [listening(&place).await, listening(&place).await, listening(&place).await];
    for first in 0..3 {
        for round in 1.. {
            let begun = Instant::now();
            let order = [(first + 1) % 3, (first + 2) % 3].map(|process| &processes[process]);
            let served = served(&place, &processes[first], order).await;
            if served == [0, 1] {
                break;
            }
            // A process that stands still for so long loses its turn.
            assert!(begun.elapsed() >= CONFIRM && round < 10, "{served:?}");
        }
    }
}

/// How long the server keeps a key that was handed over for its process to confirm that.
const CONFIRM: Duration = Duration::from_secs(2);

/// The processes wait for the key of the first one in this order. Returns in which order they get it.
async fn served(place: &Place, first: &LockProvider, order: [&LockProvider; 2]) -> Vec<usize> {
    let key = LockKey::named("k");
    let mut last = first.acquire(&key, LONG).await.unwrap();
    let mut waiters = FuturesUnordered::new();
    for (n, process) in order.into_iter().enumerate() {
        let waiter = waits(process, &key);
        waiters.push(async move { (n, arrives(waiter).await) });
        registered(place, n as i64 + 1).await;
    }
    let mut served = Vec::new();
    while !waiters.is_empty() {
        let early = waiters.next().now_or_never().flatten();
        let was_held = last.release().await && early.is_none();
        assert!(was_held || is_confirmed_too_late(&last), "the key is held");
        let (n, next) = match early {
            Some(next) => next,
            None => waiters.next().await.unwrap(),
        };
        assert!(next.token() > last.token());
        served.push(n);
        last = next;
    }
    assert!(last.release().await || is_confirmed_too_late(&last));
    place.none_held().await;
    served
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_handed_over_lasts_as_long_as_asked_on_postgres() {
    let (place, a, b) = two_processes().await;
    let key = LockKey::named("k");
    const RESTS: &str = "SELECT count(*) FROM eventlog.lock_leases \
         WHERE until > clock_timestamp() + interval '30 seconds'";
    for round in 1.. {
        let (held, waiter) = contended(&place, &a, &b, &key).await;
        assert!(held.release().await);
        let lease = arrives(waiter).await;
        let remaining = lease.remaining();
        let rests = async || !lease.is_held() || place.number(RESTS).await > 0;
        until("the session rests", rests).await;
        if is_confirmed_too_late(&lease) && round < 5 {
            continue;
        }
        lease.check().unwrap();
        assert!(remaining > LONG / 2);
        assert!(a.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().is_none());
        assert!(lease.is_held() && lease.release().await);
        return;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_died_costs_only_the_time_to_confirm_on_postgres() {
    let (place, a, b) = two_processes().await;
    let key = LockKey::named("k");
    let held = a.acquire(&key, LONG).await.unwrap();
    place
        .execute(
            "UPDATE eventlog.lock_leases SET waiters = jsonb_build_array(jsonb_build_object( \
                'o', gen_random_uuid(), 'p', 'dead', 'h', 'dead', 't', 3600000000, \
                'u', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 3600000000))",
        )
        .await;
    let waiter = waits(&b, &key);
    registered(&place, 2).await;
    assert!(held.release().await);
    assert_eq!(a.inspect(&key).await.unwrap().unwrap().holder, "dead");
    assert!(arrives(waiter).await.release().await);
}

/// The server passes over a dead waiter once its registration has ended. So many dead waiters do not delay
/// the living ones one after another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registration_ends_within_seconds_and_is_renewed_on_postgres() {
    const END: &str = "SELECT coalesce(max((waiters -> 0 ->> 'u')::bigint), 0)::bigint \
         FROM eventlog.lock_leases WHERE waiters <> '[]'";
    const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let (place, a, b) = two_processes().await;
    let (held, waiter) = contended(&place, &a, &b, &LockKey::named("k")).await;
    let end = place.number(END).await;
    // The clock is read later, so this holds on a slow machine.
    assert!(end - place.number(NOW).await <= 5_000_000, "what a dead waiter may cost");
    until("the registration is renewed", async || place.number(END).await > end).await;
    assert!(held.release().await);
    assert!(arrives(waiter).await.release().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_message_is_found_on_postgres() {
    let (place, a, b) = two_processes().await;
    for n in 0..3 {
        let key = LockKey::of("k", n);
        let (held, waiter) = contended(&place, &a, &b, &key).await;
        // A release whose message went nowhere.
        place
            .execute(
                "UPDATE eventlog.lock_leases SET waiters = \
                    jsonb_set(waiters, '{0,p}', '\"elsewhere\"') WHERE waiters <> '[]'",
            )
            .await;
        assert!(held.release().await);
        assert!(arrives(waiter).await.release().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_gives_up_is_not_served_on_postgres() {
    let (place, a, b) = two_processes().await;
    let key = LockKey::named("k");
    let (held, waiter) = contended(&place, &a, &b, &key).await;
    waiter.abort();
    registered(&place, 0).await;
    assert!(held.release().await);
    assert_eq!(place.held().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_takes_four_trips_at_most_on_postgres() {
    const PROCESSES: usize = 8;
    const ROUNDS: u64 = 10;
    let place = Place::shared(Kind::PostgresLease).await;
    let proxy = place.proxy().await;
    let key = LockKey::named("k");
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(place.process_through(&proxy).await);
    }
    let gate = listening(&place).await;
    let held = gate.acquire(&key, LONG).await.unwrap();
    let rounds = processes.iter().map(|locks| {
        let (locks, key) = (locks.clone(), key.clone());
        tokio::spawn(async move {
            for _ in 0..ROUNDS {
                locks.acquire(&key, LONG).await.unwrap().release().await;
            }
        })
    });
    let rounds: Vec<_> = rounds.collect();
    registered(&place, PROCESSES as i64).await;
    proxy.reset();
    let began = Instant::now();
    assert!(held.release().await);
    for round in rounds {
        tokio::time::timeout(LONG, round).await.expect("every process is served").unwrap();
    }
    // Looks do not belong to the hand-overs.
    let looks = (began.elapsed().as_secs() + 1) * PROCESSES as u64;
    let hand_overs = PROCESSES as u64 * ROUNDS;
    let trips = proxy.round_trips().saturating_sub(looks);
    assert!(trips <= 4 * hand_overs, "{trips} trips for {hand_overs} hand-overs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_sends_a_message_to_the_next_waiter_on_postgres() {
    let (place, a, b) = two_processes().await;
    let key = LockKey::named("k");
    let (held, waiter) = contended(&place, &a, &b, &key).await;
    let mut listener = PgListener::connect(&place.url).await.unwrap();
    const PROCESS: &str = "SELECT waiters -> 0 ->> 'p' FROM eventlog.lock_leases";
    let process: String = sqlx::query_scalar(PROCESS).fetch_one(&mut listener).await.unwrap();
    listener.listen(&format!("ekbatan_lock_{process}")).await.unwrap();
    assert!(held.release().await);
    let message = tokio::time::timeout(LONG, listener.recv()).await;
    let message = message.expect("a waiter is told").unwrap();
    assert!(message.payload().ends_with(" DC#test#k"), "{}", message.payload());
    assert!(arrives(waiter).await.release().await);
}

/// A request that is repeated finds the grant that was handed over to it. The server keeps that
/// grant for the time to confirm, however short the lease is that was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_is_believed_no_longer_than_the_server_keeps_it_on_postgres() {
    let place = Place::shared(Kind::PostgresLease).await;
    let backend = PostgresLocks::connect(&place.url, 1).await.unwrap().leases().await.unwrap();
    let request = GrantRequest::new(Uuid::new_v4(), "a test", Duration::from_secs(3));
    let Attempt::Granted(grant) = backend.try_grant("k", &request).await.unwrap() else {
        panic!("the key is free");
    };
    place
        .execute(
            "UPDATE eventlog.lock_leases SET until = clock_timestamp() + interval '1.9 seconds'",
        )
        .await;
    let asked = tokio::time::Instant::now();
    let Attempt::HandedOver(found) = backend.try_grant("k", &request).await.unwrap() else {
        panic!("the grant stands");
    };
    assert_eq!(found.grant, grant);
    assert!(found.until <= asked + Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_gets_a_key_whose_waiters_have_all_gone_on_postgres() {
    let (place, a, b) = two_processes().await;
    let key = LockKey::named("k");
    let (held, waiter) = contended(&place, &a, &b, &key).await;
    waiter.abort();
    registered(&place, 0).await;
    place
        .execute(
            "UPDATE eventlog.lock_leases SET until = '-infinity', \
                waiters = '[{\"o\": \"00000000-0000-0000-0000-000000000001\", \"p\": \"dead\", \
                    \"h\": \"dead\", \"t\": 1000000, \"u\": 1}]'",
        )
        .await;
    let tried = b.try_acquire(&key, Duration::ZERO, LONG).await.unwrap();
    assert!(tried.expect("nobody has the key").release().await);
    assert!(!held.release().await);
}
