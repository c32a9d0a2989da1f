//! Hand-written locks in MySQL and MariaDB: one connection per client, prepared statements.

use std::time::Duration;

use ekbatan::prelude::Uuid;
use sqlx::mysql::MySqlConnection;
use sqlx::{Connection, Row};

use super::key::{KEY, MAX_HOLD};
use crate::failure::Failure;

/// Wait before a client retries a held row, between half and one and a half times this.
const POLL: Duration = Duration::from_millis(10);

const TABLE: &str = "CREATE TABLE raw_leases (lock_key varchar(64) PRIMARY KEY, \
    owner binary(16) NOT NULL, token bigint NOT NULL, until datetime(6) NOT NULL)";

/// Assignments see the new values of those before them, so `until` is the last one.
const ACQUIRE: &str = "INSERT INTO raw_leases (lock_key, owner, token, until) \
    VALUES (?, ?, 1, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND) \
    ON DUPLICATE KEY UPDATE \
    owner = IF(until <= UTC_TIMESTAMP(6), VALUES(owner), owner), \
    token = IF(until <= UTC_TIMESTAMP(6), token + 1, token), \
    until = IF(until <= UTC_TIMESTAMP(6), VALUES(until), until)";

const OWNER: &str = "SELECT owner = ? FROM raw_leases WHERE lock_key = ?";

const RELEASE: &str = "UPDATE raw_leases SET until = '1970-01-01' WHERE lock_key = ? AND owner = ?";

async fn connect(url: &str) -> Result<MySqlConnection, Failure> {
    let (_, place) = url.split_once(':').ok_or("an address without a scheme")?;
    Ok(MySqlConnection::connect(&format!("mysql:{place}")).await?)
}

/// Creates the table of the lease rows.
pub async fn create(url: &str) -> Result<(), Failure> {
    sqlx::query(TABLE).execute(&mut connect(url).await?).await?;
    Ok(())
}

/// The server's own blocking lock.
pub struct NamedLock(MySqlConnection);

impl NamedLock {
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        Ok(Self(connect(url).await?))
    }

    pub async fn acquire(&mut self) -> Result<(), Failure> {
        let seconds = MAX_HOLD.as_secs().max(1);
        let get = sqlx::query("SELECT GET_LOCK(?, ?)").bind(KEY).bind(seconds);
        match get.fetch_one(&mut self.0).await?.try_get_unchecked::<Option<i64>, _>(0)? {
            Some(1) => Ok(()),
            other => Err(format!("GET_LOCK answered {other:?}").into()),
        }
    }

    pub async fn release(&mut self) -> Result<bool, Failure> {
        let release = sqlx::query("SELECT RELEASE_LOCK(?)").bind(KEY);
        let row = release.fetch_one(&mut self.0).await?;
        Ok(row.try_get_unchecked::<Option<i64>, _>(0)? == Some(1))
    }
}

/// A row that stores the holder and the end of the lease.
pub struct MySqlRow {
    connection: MySqlConnection,
    owner: Uuid,
}

impl MySqlRow {
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        Ok(Self { connection: connect(url).await?, owner: Uuid::now_v7() })
    }

    pub async fn acquire(&mut self) -> Result<(), Failure> {
        let hold = MAX_HOLD.as_micros() as u64;
        let mut jitter = self.owner.as_u64_pair().1;
        loop {
            let owner = &self.owner.as_bytes()[..];
            let acquire = sqlx::query(ACQUIRE).bind(KEY).bind(owner).bind(hold);
            acquire.execute(&mut self.connection).await?;
            let ours = sqlx::query(OWNER).bind(owner).bind(KEY);
            if ours.fetch_one(&mut self.connection).await?.try_get_unchecked::<i64, _>(0)? == 1 {
                return Ok(());
            }
            jitter = jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            tokio::time::sleep(POLL.mul_f64(0.5 + (jitter >> 40) as f64 / f64::from(1 << 24)))
                .await;
        }
    }

    pub async fn release(&mut self) -> Result<bool, Failure> {
        let release = sqlx::query(RELEASE).bind(KEY).bind(&self.owner.as_bytes()[..]);
        Ok(release.execute(&mut self.connection).await?.rows_affected() == 1)
    }
}
