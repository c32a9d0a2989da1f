//! A durable MySQL or MariaDB server. The deposits that are written by hand for it are in
//! `transaction` and `packet`.

mod packet;
mod rows;
mod transaction;

use std::time::Duration;

use ekbatan::prelude::*;
use ekbatan_testkit::{MariaDbServer, MySqlServer, Proxy};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{ConnectOptions, Connection, MySqlConnection, Row};
use tokio::time::{Instant, sleep};

pub use packet::packet;
pub use transaction::transaction;

use crate::model::{Totals, migrations};
use crate::worker::{self, Worker};
use crate::{Failure, Mode};

/// The most connections of the pool in [`Mode::SqlxTransaction`].
const MAX_POOL: u32 = 64;

/// How many wallets one statement makes, so that it stays below what a packet may hold.
const WALLETS: usize = 10_000;

/// When a checkpoint is taken for done: purging old versions goes on dirtying a few pages.
const FEW_PAGES: u64 = 16;
const PATIENCE: Duration = Duration::from_secs(10);

enum Server {
    MySql(MySqlServer),
    MariaDb(MariaDbServer),
}

/// The server, its database of wallets, and `eventlog` beside it.
pub struct MySql {
    server: Server,
    url: String,
}

impl MySql {
    pub async fn start_mysql(wallets: &[Uuid]) -> Result<Self, Failure> {
        let server = MySqlServer::builder()
            .durable()
            .setting("innodb-buffer-pool-size", "256M")
            // Checkpoints happen between measurements, not in some of them.
            .setting("innodb-redo-log-capacity", "2G")
            .start()
            .await?;
        let url = server.create_database().await?;
        Self { server: Server::MySql(server), url }.with(wallets).await
    }

    pub async fn start_mariadb(wallets: &[Uuid]) -> Result<Self, Failure> {
        let server = MariaDbServer::builder()
            .durable()
            .setting("innodb-buffer-pool-size", "256M")
            .setting("innodb-log-file-size", "2G")
            .start()
            .await?;
        let url = server.create_database().await?;
        Self { server: Server::MariaDb(server), url }.with(wallets).await
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

    /// Ends the server.
    pub async fn stop(self) -> Result<(), Failure> {
        match self.server {
            Server::MySql(server) => Ok(server.stop().await?),
            Server::MariaDb(server) => Ok(server.stop().await?),
        }
    }

    /// A proxy that counts what goes to the server.
    pub async fn proxy(&self) -> Result<Proxy, Failure> {
        let port = match &self.server {
            Server::MySql(server) => server.port(),
            Server::MariaDb(server) => server.port(),
        };
        Ok(Proxy::start(("127.0.0.1", port)).await?)
    }

    /// Gives every measurement the same start: what was changed is in the tables' files. Neither
    /// server has a statement for that; both write when they may not keep anything back.
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

    /// So many workers, directly or through a proxy.
    pub async fn workers(
        &self,
        mode: Mode,
        tasks: u32,
        proxy: Option<&Proxy>,
    ) -> Result<Vec<Worker>, Failure> {
        let url = proxy.map_or_else(|| self.url.clone(), |proxy| proxy.url_for(&self.url));
        match mode {
            Mode::Ekbatan => worker::ekbatan(DataSourceConfig::new(url), tasks as usize).await,
            Mode::SqlxTransaction => {
                let pool = MySqlPoolOptions::new()
                    .max_connections(tasks.min(MAX_POOL))
                    .connect(&url)
                    .await?;
                Ok((0..tasks).map(|_| Worker::MySqlPool(pool.clone())).collect())
            }
            Mode::SingleStatement => {
                let options = url.parse::<MySqlConnectOptions>()?.disable_statement_logging();
                let mut workers = Vec::new();
                for _ in 0..tasks {
                    let mut connection = options.connect().await?;
                    packet::set_up(&mut connection).await?;
                    workers.push(Worker::MySqlOwn(Box::new(connection)));
                }
                Ok(workers)
            }
        }
    }

    async fn connect(&self) -> Result<MySqlConnection, Failure> {
        Ok(MySqlConnection::connect(&self.url).await?)
    }
}

async fn dirty_pages(connection: &mut MySqlConnection) -> Result<u64, Failure> {
    let row = sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")
        .fetch_one(connection)
        .await?;
    Ok(row.try_get_unchecked::<String, _>(1)?.parse()?)
}
