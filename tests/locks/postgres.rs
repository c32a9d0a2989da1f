//! What only the locks on PostgreSQL have to show.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::lock::{
    Attempt, GrantRequest, KeyedLockProvider, LockKey, LossCause, PostgresLocks, PostgresLocksError,
};
use ekbatan_testkit::PostgresServer;
use sqlx::{Connection, PgConnection};
use support::until;
use uuid::Uuid;

use crate::grants::on_server;
use crate::providers::{Kind, LONG};
use crate::sql::place::{Place, acquire_eventually};

on_providers! {
    |kind| kind;
    [postgres_session]
    a_waiter_is_notified_of_the_release
}

async fn a_waiter_is_notified_of_the_release(kind: Kind) {
    let place = Place::shared(kind).await;
    let (a, b) = (place.process().await, place.process().await);
    let key = LockKey::named("k");
    let mut notified = sqlx::postgres::PgListener::connect(&place.url).await.unwrap();
    notified.listen("ekbatan_lock").await.unwrap();
    // The release of a key that nobody wants is not notified.
    let unwanted = LockKey::named("unwanted");
    assert!(a.acquire(&unwanted, LONG).await.unwrap().release().await);
    const REGISTERED: &str =
        "SELECT count(*) FROM eventlog.lock_wanted WHERE until > clock_timestamp()";
    // On a slow machine a registration may be over before the release.
    until("the release of a wanted key is notified", async || {
        let held = a.acquire(&key, LONG).await.unwrap();
        let b = b.clone();
        let waiting = tokio::spawn(async move { b.acquire(&LockKey::named("k"), LONG).await });
        until("the waiter is registered", async || place.number(REGISTERED).await > 0).await;
        assert!(held.release().await);
        assert!(waiting.await.unwrap().unwrap().release().await);
        let hint = tokio::time::timeout(Duration::from_secs(1), notified.recv()).await;
        hint.is_ok_and(|hint| hint.unwrap().payload() == "DC#test#k")
    })
    .await;
}

/// How large the table of leases gets by a hot key, while a snapshot of a database is open.
async fn size_of_a_hot_key(of_locks: &Place, of_snapshot: &Place) -> i64 {
    let locks = of_locks.process().await;
    let mut snapshot = PgConnection::connect(&of_snapshot.url).await.unwrap();
    let open =
        sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current_snapshot()");
    open.execute(&mut snapshot).await.unwrap();
    let key = LockKey::named("hot");
    for _ in 0..400 {
        assert!(locks.acquire(&key, LONG).await.unwrap().release().await);
    }
    let size = of_locks.number("SELECT pg_relation_size('eventlog.lock_leases')").await;
    snapshot.close().await.unwrap();
    size
}

/// The server keeps the versions of a row for the snapshots of the same database only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_key_does_not_grow_by_snapshots_of_another_database() {
    let [data, locks] =
        [Place::shared(Kind::PostgresLease).await, Place::shared(Kind::PostgresLease).await];
    let (apart, together) =
        (size_of_a_hot_key(&locks, &data).await, size_of_a_hot_key(&data, &data).await);
    assert!(apart * 2 < together, "{apart} bytes, and {together} beside the snapshot");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_session_loses_its_leases_and_no_others() {
    let place = Place::shared(Kind::PostgresSession).await;
    let locks = place.process().await;
    let (a, b) = (LockKey::named("a"), LockKey::named("b"));
    for _ in 0..3 {
        let lost = [locks.acquire(&a, LONG).await.unwrap(), locks.acquire(&b, LONG).await.unwrap()];
        let pids = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE granted \
             AND locktype = 'advisory' AND objid = (SELECT objid FROM pg_locks WHERE \
             locktype = 'advisory' AND database = (SELECT oid FROM pg_database \
             WHERE datname = current_database()) LIMIT 1)";
        assert!(place.number(pids).await > 0);
        for lease in &lost {
            let cause = lease.lost().await;
            assert!(
                matches!(&cause, LossCause::SessionGone(why) if why.contains("terminating")),
                "{cause:?}"
            );
            assert!(!lease.is_held() && !lease.release().await);
        }
        let again = acquire_eventually(&locks, &a).await;
        assert!(again.token() > lost[0].token());
        assert!(again.release().await);
        assert!(acquire_eventually(&locks, &b).await.release().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_does_not_end_the_lock_of_another_session() {
    let place = Place::shared(Kind::PostgresSession).await;
    let (theirs, ours) = (place.process().await, place.process().await);
    let key = LockKey::named("k");
    let lease = theirs.acquire(&key, LONG).await.unwrap();
    let refused = ours.force_release(&key, "it hangs").await.unwrap_err().to_string();
    assert!(refused.contains("pg_terminate_backend("), "{refused}");
    let holder = ours.inspect(&key).await.unwrap().unwrap();
    assert!(holder.holder.contains(&std::process::id().to_string()), "{holder:?}");
    assert_eq!((holder.held, holder.remaining), (None, None));
    assert!(lease.is_held() && lease.release().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_although_their_counter_is_lost() {
    let url = Place::shared(Kind::PostgresLease).await.url;
    for (kind, lose) in [
        (Kind::PostgresLease, "DROP TABLE eventlog.lock_leases CASCADE"),
        (
            Kind::PostgresSession,
            "DROP SEQUENCE eventlog.lock_tokens; DROP TABLE eventlog.lock_wanted",
        ),
        // A sequence that was set back.
        (Kind::PostgresSession, "SELECT setval('eventlog.lock_tokens', 17)"),
    ] {
        let key = LockKey::named("k");
        let place = Place { kind, url: url.clone() };
        let before = place.process().await;
        let last = before.acquire(&key, LONG).await.unwrap().token();
        before.close().await;
        place.execute(lose).await;
        let locks = place.process().await;
        let token = locks.acquire(&key, LONG).await.unwrap().token();
        assert!(token > last, "{kind:?}: {token} after {last}");
        locks.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_rejected() {
    let primary = PostgresServer::start().await.unwrap();
    let replica = primary.start_replica().await.unwrap();
    let refused = PostgresLocks::connect(&replica.url("postgres"), 1).await.err().unwrap();
    assert!(matches!(refused, PostgresLocksError::Unsafe { .. }), "{refused:?}");
    assert!(refused.to_string().contains("address of the primary"), "{refused}");
}

/// A waiter that gives up sends nothing to the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registrations_of_waiters_that_gave_up_do_not_pile_up_in_a_session() {
    let place = Place::shared(Kind::PostgresSession).await;
    let (a, b) = (place.process().await, Arc::new(on_server(&place).await));
    const MANY: i64 = 2_500;
    let old = "INSERT INTO eventlog.lock_wanted SELECT 'DC#test#old ' || n, gen_random_uuid(), \
         clock_timestamp() - interval '1 hour' FROM generate_series(1, 5000) n";
    place.execute(old).await;
    let mut holders = tokio::task::JoinSet::new();
    for n in 0..MANY {
        let (a, b) = (a.clone(), b.clone());
        holders.spawn(async move {
            let key = LockKey::of("k", n);
            let held = a.acquire(&key, LONG).await.unwrap();
            let waits = GrantRequest::new(Uuid::new_v4(), "a test", LONG).waiting();
            let tried = b.try_grant(&format!("DC#test#{}", key.id()), &waits).await.unwrap();
            assert!(matches!(tried, Attempt::Busy(_)), "{tried:?}");
            held.release().await
        });
    }
    assert!(holders.join_all().await.into_iter().all(|released| released));
    const OLD: &str = "SELECT count(*) FROM eventlog.lock_wanted \
         WHERE until < clock_timestamp() - interval '30 minutes'";
    assert_eq!(place.number(OLD).await, 0);
}
