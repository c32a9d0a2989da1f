//! A durable MySQL or MariaDB server. The hand-written deposits for it are in
//! `transaction` and `packet`.

mod packet;
mod rows;
mod transaction;

use std::time::Duration;

use ekbatan::prelude::*;
use ekbatan_testkit::{MariaDbServer, MySqlServer};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{ConnectOptions, Connection, MySqlConnection, MySqlPool, Row};
use tokio::time::{Instant, sleep};

pub use packet::packet;
pub use transaction::transaction;

use crate::commit::rows::Totals;
use crate::failure::Failure;
use crate::wallet::migrations;

/// How many wallets one statement inserts. This keeps a statement below the packet limit.
const WALLETS: usize = 10_000;

/// A checkpoint counts as done at this many dirty pages, because the purge of old row
/// versions keeps dirtying a few.
const FEW_PAGES: u64 = 16;
const PATIENCE: Duration = Duration::from_secs(10);

/// A young event cannot be deleted, but its table can be truncated.
const EMPTY: [&str; 7] = [
    "TRUNCATE TABLE eventlog.events",
    "TRUNCATE TABLE eventlog.deliveries",
    "TRUNCATE TABLE eventlog.dead_letters",
    "TRUNCATE TABLE eventlog.enqueued_keys",
    "TRUNCATE TABLE eventlog.subscriptions",
    "TRUNCATE TABLE eventlog.subscription_registry",
    "TRUNCATE TABLE eventlog.nodes",
];

enum OwnServer {
    MySql(MySqlServer),
    MariaDb(MariaDbServer),
}

/// The server, with a database for the wallets and the database `eventlog` for the
/// events.
pub struct MySqlBench {
    server: OwnServer,
    url: String,
}

impl MySqlBench {
    pub async fn start_mysql(wallets: &[Uuid]) -> Result<Self, Failure> {
        let server = MySqlServer::builder()
            .durable()
            .setting("innodb-buffer-pool-size", "256M")
            // Checkpoints run between measurements, never during one.
            .setting("innodb-redo-log-capacity", "2G")
            .start()
            .await?;
        let url = server.create_database().await?;
        Self { server: OwnServer::MySql(server), url }.with(wallets).await
    }

    pub async fn start_mariadb(wallets: &[Uuid]) -> Result<Self, Failure> {
        let server = MariaDbServer::builder()
            .durable()
            .setting("innodb-buffer-pool-size", "256M")
            .setting("innodb-log-file-size", "2G")
            .start()
            .await?;
        let url = server.create_database().await?;
        Self { server: OwnServer::MariaDb(server), url }.with(wallets).await
    }

    async fn with(self, wallets: &[Uuid]) -> Result<Self, Failure> {
        let databases = Databases::open(&self.url).await?;
        databases.migrate(&migrations()).await?;
        databases.close().await;
        let mut connection = self.connect().await?;
        for some in wallets.chunks(WALLETS) {
            sqlx::query(
                "INSERT INTO wallets SELECT id, concat('owner of ', id), 'EUR', 0, 'OPEN', 1, \
                 UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) \
                 FROM JSON_TABLE(?, '$[*]' COLUMNS (id char(36) PATH '$')) ids",
            )
            .bind(serde_json::to_string(some)?)
            .execute(&mut connection)
            .await?;
        }
        connection.close().await?;
        Ok(self)
    }

    /// Stops the server.
    pub async fn stop(self) -> Result<(), Failure> {
        match self.server {
            OwnServer::MySql(server) => Ok(server.stop().await?),
            OwnServer::MariaDb(server) => Ok(server.stop().await?),
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn port(&self) -> u16 {
        match &self.server {
            OwnServer::MySql(server) => server.port(),
            OwnServer::MariaDb(server) => server.port(),
        }
    }

    /// Brings the server into the same state before each measurement: all changed pages
    /// are on disk. Neither server has a statement for that, but both flush when no dirty
    /// page is allowed.
    pub async fn tidy(&self) -> Result<(), Failure> {
        let mut connection = self.connect().await?;
        sqlx::raw_sql("ANALYZE TABLE wallets, eventlog.events").execute(&mut connection).await?;
        sqlx::raw_sql("SET GLOBAL innodb_max_dirty_pages_pct = 0").execute(&mut connection).await?;
        let begin = Instant::now();
        while dirty_pages(&mut connection).await? > FEW_PAGES && begin.elapsed() < PATIENCE {
            sleep(Duration::from_millis(20)).await;
        }
        sqlx::raw_sql("SET GLOBAL innodb_max_dirty_pages_pct = 90")
            .execute(&mut connection)
            .await?;
        Ok(connection.close().await?)
    }

    pub async fn totals(&self) -> Result<Totals, Failure> {
        let mut connection = self.connect().await?;
        let (balance, changes, events, deposited) = sqlx::query_as(
            "SELECT * FROM (SELECT CAST(sum(balance * 100) AS SIGNED), CAST(sum(version - 1) AS SIGNED) FROM wallets) w, \
             (SELECT count(*), CAST(coalesce(sum(CAST(json_unquote(json_extract(payload, '$.amount')) \
              AS decimal(20, 2)) * 100), 0) AS SIGNED) FROM eventlog.events) e",
        )
        .fetch_one(&mut connection)
        .await?;
        connection.close().await?;
        Ok(Totals { balance, changes, events, deposited })
    }

    /// Forgets all events and their handlers.
    pub async fn empty(&self) -> Result<(), Failure> {
        let mut connection = self.connect().await?;
        for sql in EMPTY {
            sqlx::raw_sql(sql).execute(&mut connection).await?;
        }
        Ok(connection.close().await?)
    }

    /// How many statements clients have sent since the server started.
    pub async fn statements(&self) -> Result<i64, Failure> {
        let mut connection = self.connect().await?;
        let row =
            sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Questions'").fetch_one(&mut connection).await?;
        let statements = row.try_get_unchecked::<String, _>(1)?.parse()?;
        connection.close().await?;
        Ok(statements)
    }

    async fn connect(&self) -> Result<MySqlConnection, Failure> {
        Ok(MySqlConnection::connect(&self.url).await?)
    }
}

/// The pool of the `sqlx-transaction` mode.
pub async fn pool(url: &str, size: u32) -> Result<MySqlPool, Failure> {
    Ok(MySqlPoolOptions::new().max_connections(size).connect(url).await?)
}

/// One connection for each worker of the `single-statement` mode, ready for [`packet()`].
pub async fn connections(url: &str, count: u32) -> Result<Vec<MySqlConnection>, Failure> {
    let options = url.parse::<MySqlConnectOptions>()?.disable_statement_logging();
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut connection = options.connect().await?;
        packet::set_up(&mut connection).await?;
        connections.push(connection);
    }
    Ok(connections)
}

async fn dirty_pages(connection: &mut MySqlConnection) -> Result<u64, Failure> {
    let row = sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")
        .fetch_one(connection)
        .await?;
    Ok(row.try_get_unchecked::<String, _>(1)?.parse()?)
}
