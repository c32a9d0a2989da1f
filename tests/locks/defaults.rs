//! A database whose defaults contradict what locks on PostgreSQL rely on.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockKey, LockProvider};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use support::until;

use crate::pooler::{Greeting, balanced};
use crate::providers::{Kind, LONG, on_postgres};
use crate::sql::place::Place;

/// A database where a transaction may write nothing, wait for nothing, and fails if a row has
/// changed since it began.
async fn contrary(kind: Kind) -> Place {
    let place = Place::shared(kind).await;
    let name = place.url.rsplit('/').next().unwrap();
    // In one transaction: the next one may write nothing.
    let settings = [
        "default_transaction_isolation = 'repeatable read'",
        "default_transaction_read_only = on",
        "lock_timeout = 1",
        "synchronous_commit = off",
    ];
    let alter = settings.map(|setting| format!("ALTER DATABASE {name} SET {setting};"));
    place.execute(&alter.concat()).await;
    place
}

/// Changes the row of the key, so that a statement about it has to wait.
struct InTheWay(PgConnection);

impl InTheWay {
    async fn begin(place: &Place) -> Self {
        let mut connection = PgConnection::connect(&place.url).await.unwrap();
        let change = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = 0; \
             UPDATE eventlog.lock_leases SET holder = holder";
        sqlx::raw_sql(AssertSqlSafe(change)).execute(&mut connection).await.unwrap();
        Self(connection)
    }

    /// Commits when a statement waits, or has failed.
    async fn until_somebody_waits(mut self) {
        const WAITERS: &str = "SELECT count(*) FROM pg_stat_activity \
             WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let waits = async {
            until("a session waits", async || {
                sqlx::query_scalar::<_, i64>(WAITERS).fetch_one(&mut self.0).await.unwrap() != 0
            })
            .await;
        };
        // A statement that has failed waits no more, and its caller says so.
        let _ = tokio::time::timeout(Duration::from_secs(2), waits).await;
        // Longer than the limits that the server has by default.
        tokio::time::sleep(Duration::from_millis(20)).await;
        sqlx::raw_sql("COMMIT").execute(&mut self.0).await.unwrap();
    }
}

/// Takes, extends and releases while each statement finds its row changed.
async fn leases_work(place: &Place, url: &str) {
    let (a, b) = (on_postgres(place.kind, url).await, on_postgres(place.kind, url).await);
    let key = LockKey::named("k");
    let lease = a.acquire(&key, LONG).await.unwrap();

    let row = InTheWay::begin(place).await;
    let (busy, ()) =
        tokio::join!(b.try_acquire(&key, Duration::ZERO, LONG), row.until_somebody_waits());
    assert!(busy.unwrap().is_none(), "contention is no error");

    let row = InTheWay::begin(place).await;
    let (extended, ()) = tokio::join!(lease.extend(LONG), row.until_somebody_waits());
    extended.unwrap();

    let row = InTheWay::begin(place).await;
    let (released, ()) = tokio::join!(lease.release(), row.until_somebody_waits());
    assert!(released);
    assert!(b.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_set_what_they_rely_on_on_postgres() {
    let place = contrary(Kind::PostgresLease).await;
    leases_work(&place, &place.url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_set_what_they_rely_on_behind_a_pooler_of_postgres() {
    let place = contrary(Kind::PostgresLease).await;
    let pooled = balanced(&place.url, 2, Greeting::OfThePooler).await;
    leases_work(&place, &pooled).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_set_what_they_rely_on_on_postgres() {
    let place = contrary(Kind::PostgresSession).await;
    let (a, b) = (place.process().await, place.process().await);
    let key = LockKey::named("k");
    let rounds = async |locks: &LockProvider| {
        for _ in 0..5 {
            assert!(locks.acquire(&key, LONG).await.unwrap().release().await);
        }
    };
    tokio::join!(rounds(&a), rounds(&b));
}
