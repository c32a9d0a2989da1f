//! The server keeps nothing for keys that nobody has used for long, and tokens grow nevertheless.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockKey, LockProvider};
use ekbatan_testkit::TempSqlite;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use crate::providers::{Kind, LONG, on_sqlite};
use crate::sql::place::Place;

on_providers! {
    |kind| kind;
    [sqlite, postgres_lease, mysql_lease, mysql_session, mariadb_lease, mariadb_session]
    rows_of_keys_that_are_not_used_are_deleted,
}

/// Where the rows are.
enum Rows {
    File(TempSqlite),
    Server(Place),
}

impl Rows {
    async fn create(kind: Kind) -> Self {
        match kind {
            Kind::Sqlite => Self::File(TempSqlite::new().unwrap()),
            _ => Self::Server(Place::shared(kind).await),
        }
    }

    async fn process(&self) -> LockProvider {
        match self {
            Self::File(file) => on_sqlite(&file.url()).await,
            Self::Server(place) => place.process().await,
        }
    }

    fn table(&self) -> &'static str {
        match self {
            Self::File(_) => "eventlog_lock_leases",
            Self::Server(place) if place.kind == Kind::PostgresLease => "eventlog.lock_leases",
            Self::Server(place) if place.kind.is_session() => "lock_sessions",
            Self::Server(_) => "lock_leases",
        }
    }

    /// The number of rows of keys with this name.
    async fn count(&self, name: &str) -> i64 {
        let sql = format!("SELECT COUNT(*) FROM {} WHERE lock_key LIKE '%{name}%'", self.table());
        match self {
            Self::File(file) => {
                let mut connection = SqliteConnection::connect(&file.url()).await.unwrap();
                let count = sqlx::query_scalar(AssertSqlSafe(sql));
                let count = count.fetch_one(&mut connection).await.unwrap();
                connection.close().await.unwrap();
                count
            }
            Self::Server(place) => place.number(&sql).await,
        }
    }

    /// Makes the grants of these keys two days older.
    async fn age(&self, name: &str) {
        let sql = format!(
            "UPDATE {} SET token = token - 172800000 WHERE lock_key LIKE '%{name}%'",
            self.table()
        );
        match self {
            Self::File(file) => {
                let mut connection = SqliteConnection::connect(&file.url()).await.unwrap();
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
                connection.close().await.unwrap();
            }
            Self::Server(place) => place.execute(&sql).await,
        }
    }
}

async fn rows_of_keys_that_are_not_used_are_deleted(kind: Kind) {
    let rows = Rows::create(kind).await;
    let before = rows.process().await;
    let [old, recent, held] = ["old", "recent", "held"].map(LockKey::named);
    let mut token = 0;
    for key in [&old, &recent] {
        let lease = before.acquire(key, LONG).await.unwrap();
        token = token.max(lease.token());
        assert!(lease.release().await);
    }
    let held = before.acquire(&held, LONG * 10).await.unwrap();
    rows.age("old").await;
    rows.age("held").await;
    // A process cleans while it works.
    let locks = rows.process().await;
    let busy = LockKey::named("busy");
    let work = async |times| {
        for _ in 0..times {
            assert!(locks.acquire(&busy, LONG).await.unwrap().release().await);
        }
    };
    let cleaned = async {
        while rows.count("old").await > 0 {
            work(50).await;
        }
        // It has looked at each row.
        work(600).await;
    };
    tokio::time::timeout(LONG, cleaned).await.expect("the row of an old key is deleted");
    assert_eq!(rows.count("recent").await, 1, "a key that was used lately keeps its row");
    assert_eq!(rows.count("held").await, 1, "a key that is held keeps its row");
    assert!(
        locks.try_acquire(&LockKey::named("held"), Duration::ZERO, LONG).await.unwrap().is_none()
    );
    assert!(held.is_held());
    let again = locks.acquire(&old, LONG).await.unwrap();
    assert!(again.token() > token, "{} after {token}", again.token());
}
