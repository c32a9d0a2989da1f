//! Locks in PostgreSQL as written by hand: a connection for everybody, prepared statements.

use std::time::Duration;

use ekbatan::prelude::Uuid;
use tokio_postgres::{Client, NoTls, Statement};

use super::contender::{KEY, MAX_HOLD};
use crate::Failure;

/// How long whoever found the row taken waits on average before asking again.
const POLL: Duration = Duration::from_millis(10);

const TABLE: &str = "CREATE TABLE raw_leases ( \
    lock_key text PRIMARY KEY, owner uuid NOT NULL, token bigint NOT NULL, \
    until timestamptz NOT NULL) WITH (fillfactor = 50)";

const TAKE: &str = "INSERT INTO raw_leases AS l (lock_key, owner, token, until) \
    VALUES ($1, $2, 1, clock_timestamp() + $3 * interval '1 millisecond') \
    ON CONFLICT (lock_key) DO UPDATE \
    SET owner = excluded.owner, token = l.token + 1, until = excluded.until \
    WHERE l.until <= clock_timestamp() RETURNING token";

const GIVE_BACK: &str =
    "UPDATE raw_leases SET until = '-infinity' WHERE lock_key = $1 AND owner = $2";

async fn connect(url: &str) -> Result<Client, Failure> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// What the rows are kept in.
pub async fn create(url: &str) -> Result<(), Failure> {
    Ok(connect(url).await?.batch_execute(TABLE).await?)
}

/// The server's own lock, for which it lets one wait.
pub struct Advisory {
    client: Client,
    take: Statement,
    give_back: Statement,
}

/// Any number will do, as nobody else locks here.
const LOCK: i64 = 17;

impl Advisory {
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        let client = connect(url).await?;
        let take = client.prepare("SELECT pg_advisory_lock($1)").await?;
        let give_back = client.prepare("SELECT pg_advisory_unlock($1)").await?;
        Ok(Self { client, take, give_back })
    }

    pub async fn take(&self) -> Result<(), Failure> {
        self.client.query_one(&self.take, &[&LOCK]).await?;
        Ok(())
    }

    pub async fn give_back(&self) -> Result<bool, Failure> {
        Ok(self.client.query_one(&self.give_back, &[&LOCK]).await?.get(0))
    }
}

/// A row that says who has the key, and until when.
pub struct LeaseRow {
    client: Client,
    take: Statement,
    give_back: Statement,
    owner: Uuid,
}

impl LeaseRow {
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        let client = connect(url).await?;
        // As in ekbatan: a lease is not waited for on the disk.
        client.batch_execute("SET synchronous_commit = off").await?;
        let take = client.prepare(TAKE).await?;
        let give_back = client.prepare(GIVE_BACK).await?;
        Ok(Self { client, take, give_back, owner: Uuid::now_v7() })
    }

    pub async fn take(&self) -> Result<(), Failure> {
        let hold = MAX_HOLD.as_millis() as f64;
        let mut jitter = self.owner.as_u64_pair().1;
        while self.client.query_opt(&self.take, &[&KEY, &self.owner, &hold]).await?.is_none() {
            // Between half of the time and one and a half.
            jitter = jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            tokio::time::sleep(POLL.mul_f64(0.5 + (jitter >> 40) as f64 / f64::from(1 << 24)))
                .await;
        }
        Ok(())
    }

    pub async fn give_back(&self) -> Result<bool, Failure> {
        Ok(self.client.execute(&self.give_back, &[&KEY, &self.owner]).await? == 1)
    }
}
