//! Hand-written locks in PostgreSQL: one connection per client, prepared statements.

use std::time::Duration;

use ekbatan::prelude::Uuid;
use tokio_postgres::{Client, NoTls, Statement};

use super::key::{KEY, MAX_HOLD};
use crate::failure::Failure;

/// Average wait before a client retries a held row.
const POLL: Duration = Duration::from_millis(10);

const TABLE: &str = "CREATE TABLE raw_leases ( \
    lock_key text PRIMARY KEY, owner uuid NOT NULL, token bigint NOT NULL, \
    until timestamptz NOT NULL) WITH (fillfactor = 50)";

const ACQUIRE: &str = "INSERT INTO raw_leases AS l (lock_key, owner, token, until) \
    VALUES ($1, $2, 1, clock_timestamp() + $3 * interval '1 millisecond') \
    ON CONFLICT (lock_key) DO UPDATE \
    SET owner = excluded.owner, token = l.token + 1, until = excluded.until \
    WHERE l.until <= clock_timestamp() RETURNING token";

/// As in ekbatan, taking a lease waits for the disk, and releasing it does not.
const RELEASE: &str = "UPDATE raw_leases SET until = '-infinity' WHERE lock_key = $1 AND owner = $2 \
    RETURNING set_config('synchronous_commit', 'off', true)";

async fn connect(url: &str) -> Result<Client, Failure> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Creates the table of the lease rows.
pub async fn create(url: &str) -> Result<(), Failure> {
    Ok(connect(url).await?.batch_execute(TABLE).await?)
}

/// The server's own blocking lock.
pub struct Advisory {
    client: Client,
    acquire: Statement,
    release: Statement,
}

/// Any number works, because nothing else takes advisory locks here.
const LOCK: i64 = 17;

impl Advisory {
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        let client = connect(url).await?;
        let acquire = client.prepare("SELECT pg_advisory_lock($1)").await?;
        let release = client.prepare("SELECT pg_advisory_unlock($1)").await?;
        Ok(Self { client, acquire, release })
    }

    pub async fn acquire(&self) -> Result<(), Failure> {
        self.client.query_one(&self.acquire, &[&LOCK]).await?;
        Ok(())
    }

    pub async fn release(&self) -> Result<bool, Failure> {
        Ok(self.client.query_one(&self.release, &[&LOCK]).await?.get(0))
    }
}

/// A row that stores the holder and the end of the lease.
pub struct LeaseRow {
    client: Client,
    acquire: Statement,
    release: Statement,
    owner: Uuid,
}

impl LeaseRow {
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        let client = connect(url).await?;
        let acquire = client.prepare(ACQUIRE).await?;
        let release = client.prepare(RELEASE).await?;
        Ok(Self { client, acquire, release, owner: Uuid::now_v7() })
    }

    pub async fn acquire(&self) -> Result<(), Failure> {
        let hold = MAX_HOLD.as_millis() as f64;
        let mut jitter = self.owner.as_u64_pair().1;
        while self.client.query_opt(&self.acquire, &[&KEY, &self.owner, &hold]).await?.is_none() {
            // Between half and one and a half times the average.
            jitter = jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            tokio::time::sleep(POLL.mul_f64(0.5 + (jitter >> 40) as f64 / f64::from(1 << 24)))
                .await;
        }
        Ok(())
    }

    pub async fn release(&self) -> Result<bool, Failure> {
        Ok(self.client.execute(&self.release, &[&KEY, &self.owner]).await? == 1)
    }
}
