//! A take that the server carries out late, when its caller has given up: the key is not held by
//! nobody for the whole hold.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockError, LockKey};
use ekbatan_testkit::PostgresServer;
use support::until;

use crate::providers::{Kind, LONG};
use crate::sql::place::Place;

/// An hour: no lease ends by itself during a test.
const HOUR: Duration = Duration::from_secs(3_600);

/// Longer than a statement is waited for.
const WAIT: Duration = Duration::from_secs(20);

fn is_unknown(error: &LockError) -> bool {
    matches!(error, LockError::Unavailable { .. } | LockError::InDoubt { .. })
}

/// The commit of the grant waits for a replica that does not exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_takes_long_leaves_no_grant_on_postgres() {
    const WAITING: &str = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND wait_event = 'SyncRep'";
    let server = PostgresServer::start().await.unwrap();
    let url = server.create_database().await.unwrap();
    let place = Place { kind: Kind::PostgresLease, url };
    let (locks, other) = (place.process().await, place.process().await);
    for process in [&locks, &other] {
        assert!(process.acquire(&LockKey::named("open"), LONG).await.unwrap().release().await);
    }
    place.execute("ALTER SYSTEM SET synchronous_standby_names = 'nowhere'").await;
    place.execute("SELECT pg_reload_conf()").await;
    // A process of the server passes the setting on; until then no commit waits.
    let probe = Place { kind: place.kind, url: place.url.clone() };
    let probing = tokio::spawn(async move {
        loop {
            probe.execute("SELECT pg_logical_emit_message(true, 'a probe', '')").await;
        }
    });
    let probes = format!("{WAITING} AND query LIKE '%a probe%'");
    until("commits wait for the replica", async || place.number(&probes).await == 1).await;
    probing.abort();
    place.execute(&probes.replace("count(*)", "pg_terminate_backend(pid)")).await;
    until("the probe has ended", async || place.number(WAITING).await == 0).await;
    let key = LockKey::named("new");
    let unknown = locks.try_acquire(&key, WAIT, HOUR).await.unwrap_err();
    assert!(is_unknown(&unknown), "{unknown}");
    until("no statement of it waits any more", async || place.number(WAITING).await == 0).await;
    place.execute("ALTER SYSTEM RESET synchronous_standby_names").await;
    place.execute("SELECT pg_reload_conf()").await;
    let lease = other.try_acquire(&key, LONG, LONG).await.unwrap();
    assert!(lease.expect("nobody holds the key").release().await);
}

on_providers! {
    |kind| kind;
    [postgres_lease, mysql_lease, mariadb_lease]
    a_take_that_arrives_late_leaves_no_grant,
}

async fn a_take_that_arrives_late_leaves_no_grant(kind: Kind) {
    let place = Place::shared(kind).await;
    let proxy = place.proxy().await;
    let (locks, other) = (place.process_through(&proxy).await, place.process().await);
    // Its connection is open. A release would have old rows deleted, which may still go on.
    let _open = locks.acquire(&LockKey::named("open"), HOUR).await.unwrap();
    // The take is on its way for longer than its caller waits, and later statements overtake it.
    proxy.reset();
    proxy.set_delay(WAIT);
    let (waiting, key) = (locks.clone(), LockKey::named("k"));
    let taking = tokio::spawn(async move { waiting.try_acquire(&key, WAIT, HOUR).await });
    until("it is on its way", async || proxy.round_trips() > 0).await;
    proxy.set_delay(Duration::ZERO);
    match taking.await.unwrap() {
        // It was repeated.
        Ok(lease) => assert!(lease.expect("nobody else wants the key").release().await),
        Err(error) => assert!(is_unknown(&error), "{error}"),
    }
    // The late one arrives.
    tokio::time::sleep(WAIT).await;
    let lease = other.try_acquire(&LockKey::named("k"), LONG, LONG).await.unwrap();
    assert!(lease.expect("nobody holds the key").release().await);
}
