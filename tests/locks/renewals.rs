//! Renewals of many leases of one process travel together, and one that is lost affects no other.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, Lease, LockKey, LockOptions, LockProvider, LossCause};
use ekbatan_lock_redis::RedisBackend;
use ekbatan_testkit::{Proxy, RedisServer};
use tokio::time::Instant;
use uuid::Uuid;

use crate::providers::{Kind, LONG, TestLocks};
use crate::sql::place::Place;
use crate::stores;

on_every_provider! { a_lost_lease_affects_no_other }

mod terms {
    use super::an_extension_does_not_lengthen_the_term;

    on_providers! {
        |kind| &crate::providers::TestLocks::start(kind).await;
        [process, redis, etcd, sqlite, postgres_lease, mysql_lease, mariadb_lease; stores]
        an_extension_does_not_lengthen_the_term,
    }
}

mod round_trips {
    use super::many_leases_are_renewed_in_few_round_trips;

    on_providers! {
        |kind| kind;
        [redis, postgres_lease, mysql_lease, mariadb_lease; stores]
        many_leases_are_renewed_in_few_round_trips,
    }
}

const LEASES: usize = 60;

/// The server's term, which is renewed every third of it.
const TERM: Duration = Duration::from_secs(3);

async fn hold_many(locks: &LockProvider, count: usize) -> Vec<Lease> {
    let mut leases = Vec::new();
    for n in 0..count {
        let key = LockKey::named(&format!("renewed {n}"));
        let options = LockOptions::wait(LONG).hold(LONG * 10).renewed(TERM);
        leases.push(locks.take(&key, &options).await.unwrap().unwrap());
    }
    leases
}

async fn a_lost_lease_affects_no_other(t: &TestLocks) {
    let mut leases = hold_many(&t.locks, 12).await;
    // Session locks can be ended by the process that holds them only, and then end alone.
    let by = if t.kind().is_session() { t.locks.clone() } else { t.other_node().await };
    let lost = leases.remove(5);
    assert!(by.force_release(&LockKey::named("renewed 5"), "a test").await.unwrap());
    let cause = tokio::time::timeout(LONG, lost.lost()).await.expect("the loss is noticed");
    // etcd tells of the deletion before the next renewal notices it, and HBase is looked at.
    let told = t.kind().watches_leases() && matches!(cause, LossCause::SessionGone(_));
    assert!(told || matches!(cause, LossCause::Taken | LossCause::Forced(_)), "{cause:?}");
    // Each other one was renewed since, or it would be over.
    tokio::time::sleep(TERM + TERM / 3).await;
    for lease in &leases {
        assert!(lease.is_held(), "{}", lease.key());
    }
    for lease in leases {
        assert!(lease.release().await);
    }
}

/// If the process dies after it, the key is free after one term.
async fn an_extension_does_not_lengthen_the_term(t: &TestLocks) {
    let key = LockKey::named("k");
    let options = LockOptions::wait(LONG).hold(LONG * 10).renewed(TERM);
    let lease = t.take(&key, options).await.unwrap();
    lease.extend(LONG).await.unwrap();
    let there = t.locks.inspect(&key).await.unwrap().unwrap().remaining;
    assert!(there.is_some_and(|there| there < TERM * 2), "{there:?}");
    assert!(lease.remaining() > LONG * 10);
    // It is renewed as before.
    tokio::time::sleep(TERM * 2).await;
    assert!(lease.is_held());
    assert!(t.other_node().await.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().is_none());
    assert!(lease.release().await);
}

/// A provider behind a proxy that counts.
async fn counted(kind: Kind) -> (LockProvider, Proxy) {
    if kind == Kind::Redis {
        let url = RedisServer::shared().await.unwrap().url();
        let address = url.split(['@', '/']).find(|part| part.starts_with("127.")).unwrap();
        let proxy = Proxy::start(address).await.unwrap();
        let namespace = Uuid::new_v4().to_string();
        let backend = RedisBackend::connect(&proxy.url_for(&url), &namespace).await.unwrap();
        return (LockProvider::new(backend, "test"), proxy);
    }
    if kind.is_store() {
        let (url, proxy) = stores::proxied(kind).await;
        return (stores::provider(kind, &url, &Uuid::new_v4().to_string()).await, proxy);
    }
    let place = Place::shared(kind).await;
    let proxy = place.proxy().await;
    (place.process_through(&proxy).await, proxy)
}

/// By requests of their own they would take a trip for each lease and third of a term.
async fn many_leases_are_renewed_in_few_round_trips(kind: Kind) {
    let (locks, proxy) = counted(kind).await;
    let leases = hold_many(&locks, LEASES).await;
    let (began, before) = (Instant::now(), proxy.round_trips());
    tokio::time::sleep(TERM * 2).await;
    let thirds = began.elapsed().as_secs_f64() / (TERM.as_secs_f64() / 3.0);
    let trips = proxy.round_trips() - before;
    println!("{kind:?}: {trips} round trips for {LEASES} leases in {thirds:.1} thirds of a term");
    assert!(leases.iter().all(Lease::is_held), "they were renewed");
    // At times a busy machine spreads the renewals of one moment over several requests.
    assert!(
        (trips as f64) < thirds * LEASES as f64 / 4.0,
        "{kind:?}: {trips} round trips for {LEASES} leases in {thirds:.1} thirds of a term"
    );
    for lease in leases {
        assert!(lease.release().await);
    }
}
