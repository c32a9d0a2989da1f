//! Rows and tables of locks on PostgreSQL that somebody else has locked for long.

use std::time::Duration;

use ekbatan::lock::{
    Attempt, GrantRequest, KeyedLockProvider, LockBackend, LockKey, LossCause, PostgresLocks,
};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use support::until;
use uuid::Uuid;

use crate::pooler::{Greeting, balanced};
use crate::providers::{Kind, LONG};
use crate::sql::place::{Place, acquire_eventually};

/// Longer than the locks wait for an answer of the server.
const LONGER_THAN_ANSWERS: Duration = Duration::from_secs(20);

/// A transaction that keeps what the statement has locked until it is dropped.
async fn locked(place: &Place, statement: &str) -> PgConnection {
    let mut connection = PgConnection::connect(&place.url).await.unwrap();
    let script = AssertSqlSafe(format!("BEGIN; {statement}"));
    sqlx::raw_sql(script).execute(&mut connection).await.unwrap();
    connection
}

/// While the server waits for a lock, it does not notice that its client has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_does_not_wait_for_ever_for_a_row_on_postgres() {
    const WAITING: &str = "SELECT count(*) FROM pg_stat_activity \
         WHERE datname = current_database() AND wait_event_type = 'Lock'";
    for pooled in [false, true] {
        let place = Place::shared(Kind::PostgresLease).await;
        let url = if pooled {
            balanced(&place.url, 2, Greeting::OfThePooler).await
        } else {
            place.url.clone()
        };
        let leases = PostgresLocks::connect(&url, 2).await.unwrap().leases().await.unwrap();
        let request = GrantRequest::new(Uuid::new_v4(), "a test", LONG * 10);
        let Attempt::Granted(grant) = leases.try_grant("k", &request).await.unwrap() else {
            panic!("the key is free");
        };
        let _row = locked(&place, "SELECT 1 FROM eventlog.lock_leases FOR UPDATE").await;
        let extended = leases.extend("k", &grant, LONG * 10).await;
        assert!(extended.is_err(), "the row is locked");
        until("no session waits", async || place.number(WAITING).await == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_table_of_waiters_ends_no_session_on_postgres() {
    let place = Place::shared(Kind::PostgresSession).await;
    let (a, b) = (place.process().await, place.process().await);
    let wanted = LockKey::named("wanted");
    let held = a.acquire(&wanted, LONG * 10).await.unwrap();
    let other = b.acquire(&LockKey::named("other"), LONG * 10).await.unwrap();
    let _table = locked(&place, "LOCK TABLE eventlog.lock_wanted").await;
    let tried = b.try_acquire(&wanted, LONGER_THAN_ANSWERS, LONG).await;
    assert!(!matches!(tried, Ok(Some(_))), "it is held");
    other.check().unwrap();
    assert!(held.release().await);
    assert!(b.acquire(&wanted, LONG).await.unwrap().release().await);
    assert!(other.release().await);
}

/// A session ends, and another one is opened, while this statement has locked something.
async fn a_session_is_opened_after(statement: &str) {
    let place = Place::shared(Kind::PostgresSession).await;
    let proxy = place.proxy().await;
    let (locks, key) = (place.process_through(&proxy).await, LockKey::named("k"));
    let before = locks.acquire(&key, LONG * 10).await.unwrap();
    let _locked = locked(&place, statement).await;
    proxy.cut();
    let cause = before.lost().await;
    assert!(matches!(cause, LossCause::SessionGone(_)), "{cause:?}");
    proxy.restore();
    let opened = tokio::time::timeout(LONG * 2, acquire_eventually(&locks, &key)).await;
    let again = opened.expect("a session is opened");
    assert!(again.token() > before.token() && again.release().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_opened_while_the_table_of_waiters_is_locked_on_postgres() {
    a_session_is_opened_after("LOCK TABLE eventlog.lock_wanted").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_opened_while_a_migration_runs_on_postgres() {
    // The lock of migrations.
    a_session_is_opened_after("SELECT pg_advisory_xact_lock(28545284254495086)").await;
}

/// A process that is started often registers a few waiters each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_waiter_of_a_session_removes_those_that_gave_up_on_postgres() {
    let place = Place::shared(Kind::PostgresSession).await;
    let (a, b) = (place.process().await, place.process().await);
    let old = "INSERT INTO eventlog.lock_wanted SELECT 'DC#test#old ' || n, gen_random_uuid(), \
         clock_timestamp() - interval '1 hour' FROM generate_series(1, 100) n";
    place.execute(old).await;
    let key = LockKey::named("k");
    let held = a.acquire(&key, LONG * 10).await.unwrap();
    let waiting = tokio::spawn(async move { b.acquire(&LockKey::named("k"), LONG).await });
    const OLD: &str = "SELECT count(*) FROM eventlog.lock_wanted \
         WHERE until < clock_timestamp() - interval '30 minutes'";
    until("they are removed", async || place.number(OLD).await == 0).await;
    assert!(held.release().await);
    assert!(waiting.await.unwrap().unwrap().release().await);
}
