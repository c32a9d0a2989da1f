//! Renewals of many leases of one process travel together, and one that is lost affects no other.

use std::time::Duration;

use ekbatan::lock::{
    KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockProvider, LossCause,
};
use ekbatan_lock_redis::RedisBackend;
use ekbatan_testkit::{Proxy, RedisServer};
use futures_util::future::join_all;
use sqlx::{Connection, PgConnection};
use support::until;
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

/// The server's term at first, which is renewed every third of it.
const TERM: Duration = Duration::from_secs(3);

/// Every machine renews a term of this length in time.
const LONGEST_TERM: Duration = Duration::from_secs(24);

/// What a machine has done that was too busy to renew in time.
struct TooBusy(String);

/// Runs the test, and again with a longer term as long as the machine is too busy for it.
async fn with_a_term(mut test: impl AsyncFnMut(Duration) -> Result<(), TooBusy>) {
    let mut term = TERM;
    while let Err(TooBusy(why)) = test(term).await {
        assert!(term < LONGEST_TERM, "{why}");
        println!("with a term of {term:?}: {why}");
        term *= 2;
    }
}

/// Fails unless the lease is held. A busy machine may renew it too late.
fn held(lease: &Lease) -> Result<(), TooBusy> {
    let Err(error) = lease.check() else { return Ok(()) };
    match &error {
        // The server may notice before the holder does that the term is over.
        LockError::Lost {
            cause: LossCause::NotRenewed(_) | LossCause::Taken | LossCause::SessionGone(_),
            ..
        } => Err(TooBusy(error.to_string())),
        _ => panic!("{error}"),
    }
}

async fn released(leases: Vec<Lease>) -> Result<(), TooBusy> {
    for lease in leases {
        if !lease.release().await {
            held(&lease)?;
            panic!("{} was held until its release", lease.key());
        }
    }
    Ok(())
}

async fn hold_many(locks: &LockProvider, count: usize, term: Duration) -> Vec<Lease> {
    let mut leases = Vec::new();
    for n in 0..count {
        let key = LockKey::named(&format!("renewed {n}"));
        let options = LockOptions::wait(LONG).hold(LONG * 10).renewed(term);
        leases.push(locks.take(&key, &options).await.unwrap().unwrap());
    }
    leases
}

async fn a_lost_lease_affects_no_other(t: &TestLocks) {
    // Session locks can be ended by the process that holds them only, and then end alone.
    let by = if t.kind().is_session() { t.locks.clone() } else { t.other_node().await };
    with_a_term(async |term| {
        let mut leases = hold_many(&t.locks, 12, term).await;
        let lost = leases.remove(5);
        held(&lost)?;
        assert!(by.force_release(lost.key(), "a test").await.unwrap());
        let cause = tokio::time::timeout(LONG, lost.lost()).await.expect("the loss is noticed");
        // etcd tells of the deletion before the next renewal notices it, and HBase is looked at.
        let told = t.kind().watches_leases() && matches!(cause, LossCause::SessionGone(_));
        assert!(told || matches!(cause, LossCause::Taken | LossCause::Forced(_)), "{cause:?}");
        // Each other one was renewed since, or it would be over.
        tokio::time::sleep(term + term / 3).await;
        leases.iter().try_for_each(held)?;
        released(leases).await
    })
    .await;
}

/// If the process dies after it, the key is free after one term.
async fn an_extension_does_not_lengthen_the_term(t: &TestLocks) {
    let (key, other) = (LockKey::named("k"), t.other_node().await);
    with_a_term(async |term| {
        let options = LockOptions::wait(LONG).hold(LONG * 10).renewed(term);
        let lease = t.take(&key, options).await.unwrap();
        if let Err(error) = lease.extend(LONG).await {
            held(&lease)?;
            panic!("{error}");
        }
        let holder = t.locks.inspect(&key).await.unwrap();
        held(&lease)?;
        let there = holder.unwrap().remaining;
        assert!(there.is_some_and(|there| there < term * 2), "{there:?}");
        assert!(lease.remaining() > LONG * 10);
        // It is renewed as before.
        tokio::time::sleep(term * 2).await;
        let tried = other.try_acquire(&key, Duration::ZERO, LONG).await.unwrap();
        held(&lease)?;
        assert!(tried.is_none(), "the key is held");
        released(vec![lease]).await
    })
    .await;
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
    with_a_term(async |term| {
        let leases = hold_many(&locks, LEASES, term).await;
        let (began, before) = (Instant::now(), proxy.round_trips());
        tokio::time::sleep(term * 2).await;
        let thirds = began.elapsed().as_secs_f64() / (term.as_secs_f64() / 3.0);
        let trips = proxy.round_trips() - before;
        let found = format!(
            "{kind:?}: {trips} round trips for {LEASES} leases in {thirds:.1} thirds of a term"
        );
        println!("{found}");
        leases.iter().try_for_each(held)?;
        // At times a busy machine spreads the renewals of one moment over several requests.
        if trips as f64 >= thirds * LEASES as f64 / 4.0 {
            return Err(TooBusy(found));
        }
        released(leases).await
    })
    .await;
}

/// A process that waits for two keys looks at both in one statement. It must not wait for the row of
/// the second one while it has locked that of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_takes_no_other_lease_away_on_postgres() {
    const WAITERS: &str =
        "SELECT coalesce(sum(jsonb_array_length(waiters)), 0)::bigint FROM eventlog.lock_leases";
    // A process that waits renews its registrations within this time.
    const LOOKS: Duration = Duration::from_secs(10);
    with_a_term(async |term| {
        let place = Place::shared(Kind::PostgresLease).await;
        let (holder, waiter) = (place.process().await, place.process().await);
        let [first, second] = ["a", "b"].map(LockKey::named);
        let options = LockOptions::wait(LONG).hold(LONG * 10).renewed(term);
        let lease = holder.take(&first, &options).await.unwrap().unwrap();
        let locked = holder.acquire(&second, LONG * 10).await.unwrap();
        let waiting = [&first, &second].map(|key| waiter.acquire(key, LONG));
        let watching = async {
            until("it waits for both", async || {
                !lease.is_held() || place.number(WAITERS).await == 2
            })
            .await;
            let mut row = PgConnection::connect(&place.url).await.unwrap();
            let lock = "BEGIN; SELECT 1 FROM eventlog.lock_leases \
                 WHERE lock_key = 'DC#test#b' FOR UPDATE";
            sqlx::raw_sql(lock).execute(&mut row).await.unwrap();
            tokio::time::sleep(term * 2 + LOOKS).await;
        };
        tokio::select! {
            () = watching => {}
            _ = join_all(waiting) => {}
        }
        held(&lease)?;
        assert!(locked.is_held());
        released(vec![lease]).await
    })
    .await;
}
