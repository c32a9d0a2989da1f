//! A hand-written lease row in a SQLite file: one connection per client, prepared statements.

use std::time::Duration;

use ekbatan::prelude::Uuid;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Row};

use super::key::{KEY, MAX_HOLD};
use crate::failure::Failure;

/// Wait before a client retries a held row, between half and one and a half times this.
const POLL: Duration = Duration::from_millis(10);

const TABLE: &str = "CREATE TABLE IF NOT EXISTS raw_leases (lock_key TEXT PRIMARY KEY, \
    owner TEXT NOT NULL, token INTEGER NOT NULL, until INTEGER NOT NULL)";

const ACQUIRE: &str = "INSERT INTO raw_leases AS l (lock_key, owner, token, until) \
    VALUES ($1, $2, 1, unixepoch('subsec') * 1000 + $3) \
    ON CONFLICT (lock_key) DO UPDATE \
    SET owner = excluded.owner, token = l.token + 1, until = excluded.until \
    WHERE l.until <= unixepoch('subsec') * 1000 RETURNING token";

const RELEASE: &str =
    "UPDATE raw_leases SET until = 0 WHERE lock_key = $1 AND owner = $2 RETURNING token";

/// A row that stores the holder and the end of the lease.
pub struct SqliteRow {
    connection: SqliteConnection,
    owner: String,
    jitter: u64,
}

impl SqliteRow {
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        let options: SqliteConnectOptions = url.parse()?;
        // As in ekbatan, taking a lease does not wait for the disk.
        let options = options
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(30));
        let mut connection = options.connect().await?;
        sqlx::query(TABLE).execute(&mut connection).await?;
        let owner = Uuid::now_v7();
        Ok(Self { connection, owner: owner.to_string(), jitter: owner.as_u64_pair().1 })
    }

    pub async fn acquire(&mut self) -> Result<(), Failure> {
        let hold = MAX_HOLD.as_millis() as i64;
        loop {
            let acquire = sqlx::query(ACQUIRE).bind(KEY).bind(self.owner.clone()).bind(hold);
            if !acquire.fetch_all(&mut self.connection).await?.is_empty() {
                return Ok(());
            }
            self.jitter = self.jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let part = (self.jitter >> 40) as f64 / f64::from(1 << 24);
            tokio::time::sleep(POLL.mul_f64(0.5 + part)).await;
        }
    }

    pub async fn release(&mut self) -> Result<bool, Failure> {
        let release = sqlx::query(RELEASE).bind(KEY).bind(self.owner.clone());
        let rows = release.fetch_all(&mut self.connection).await?;
        Ok(rows.iter().all(|row| row.try_get::<i64, _>(0).is_ok()) && rows.len() == 1)
    }
}
