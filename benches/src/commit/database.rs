//! The database of a measurement: one front for all kinds.

use ekbatan::config::DataSourceConfig;
use ekbatan::prelude::Uuid;
use ekbatan_testkit::Proxy;

use super::mysql::{self, MySqlBench};
use super::options::{BenchDatabase, CommitDurability, CommitMode};
use super::postgres::{self, PostgresBench};
use super::rows::Totals;
use super::sqlite::SqliteBench;
use super::worker::{self, Worker};
use crate::failure::Failure;

/// The most connections of the pool in [`CommitMode::SqlxTransaction`].
const MAX_POOL: u32 = 64;

/// A database that was started for the measurement and holds its wallets.
pub enum StartedDatabase {
    Postgres(PostgresBench),
    /// MySQL or MariaDB.
    MySql(MySqlBench),
    Sqlite(Box<SqliteBench>),
}

impl StartedDatabase {
    /// Starts a database for up to `most` tasks. A server is always durable.
    pub async fn start(
        database: BenchDatabase,
        durability: CommitDurability,
        most: u32,
        wallets: &[Uuid],
    ) -> Result<Self, Failure> {
        Ok(match database {
            BenchDatabase::Postgres => Self::Postgres(PostgresBench::start(most, wallets).await?),
            BenchDatabase::MySql => Self::MySql(MySqlBench::start_mysql(wallets).await?),
            BenchDatabase::MariaDb => Self::MySql(MySqlBench::start_mariadb(wallets).await?),
            BenchDatabase::Sqlite => {
                let sqlite = SqliteBench::start(wallets, durability).await?;
                Self::Sqlite(Box::new(sqlite))
            }
        })
    }

    /// Starts a database that also counts the statements that its server executes.
    pub async fn start_counting(
        database: BenchDatabase,
        durability: CommitDurability,
        most: u32,
        wallets: &[Uuid],
    ) -> Result<Self, Failure> {
        match database {
            BenchDatabase::Postgres => {
                Ok(Self::Postgres(PostgresBench::start_counting(most, wallets).await?))
            }
            _ => Self::start(database, durability, most, wallets).await,
        }
    }

    /// Forgets everything but the wallets, so that nothing that an earlier measurement left slows
    /// down a later one. No connection to the database may be open.
    pub async fn empty(&mut self, wallets: &[Uuid]) -> Result<(), Failure> {
        match self {
            Self::Postgres(postgres) => postgres.empty(wallets).await,
            Self::MySql(mysql) => mysql.empty().await,
            Self::Sqlite(sqlite) => {
                **sqlite = SqliteBench::start(wallets, sqlite.durability()).await?;
                Ok(())
            }
        }
    }

    /// How many statements the server has executed since it started; `None` for SQLite, which has
    /// no server.
    pub async fn statements(&self) -> Result<Option<i64>, Failure> {
        match self {
            Self::Postgres(postgres) => postgres.statements().await.map(Some),
            Self::MySql(mysql) => mysql.statements().await.map(Some),
            Self::Sqlite(_) => Ok(None),
        }
    }

    pub async fn stop(self) -> Result<(), Failure> {
        match self {
            Self::Postgres(postgres) => postgres.stop().await,
            Self::MySql(mysql) => mysql.stop().await,
            Self::Sqlite(_) => Ok(()),
        }
    }

    /// Brings the database into the same state before each measurement.
    pub async fn tidy(&self) -> Result<(), Failure> {
        match self {
            Self::Postgres(postgres) => postgres.tidy().await,
            Self::MySql(mysql) => mysql.tidy().await,
            Self::Sqlite(sqlite) => sqlite.tidy().await,
        }
    }

    /// Lets the planner know what the tables contain by now, as it does after a while by itself.
    /// Plans that were made for empty tables read them as a whole.
    pub async fn analyze(&self) -> Result<(), Failure> {
        match self {
            Self::Postgres(postgres) => postgres.analyze().await,
            Self::MySql(_) | Self::Sqlite(_) => Ok(()),
        }
    }

    pub async fn totals(&self) -> Result<Totals, Failure> {
        match self {
            Self::Postgres(postgres) => postgres.totals().await,
            Self::MySql(mysql) => mysql.totals().await,
            Self::Sqlite(sqlite) => sqlite.totals().await,
        }
    }

    /// A proxy that counts the round trips to the server; `None` for SQLite, which has no server.
    pub async fn proxy(&self) -> Result<Option<Proxy>, Failure> {
        let port = match self {
            Self::Postgres(postgres) => postgres.port(),
            Self::MySql(mysql) => mysql.port(),
            Self::Sqlite(_) => return Ok(None),
        };
        Ok(Some(Proxy::start(("127.0.0.1", port)).await?))
    }

    /// One worker per task, connected directly or through a proxy. The library has one worker for
    /// all tasks.
    pub async fn workers(
        &self,
        mode: CommitMode,
        tasks: u32,
        proxy: Option<&Proxy>,
    ) -> Result<Vec<Worker>, Failure> {
        match mode {
            CommitMode::Ekbatan => worker::ekbatan(self.config(proxy), tasks as usize).await,
            CommitMode::SqlxTransaction => self.pooled_workers(tasks, proxy).await,
            CommitMode::SingleStatement => self.connected_workers(tasks, proxy).await,
            CommitMode::Library => self.library_worker(),
        }
    }

    fn library_worker(&self) -> Result<Vec<Worker>, Failure> {
        match self {
            Self::Sqlite(sqlite) => Ok(vec![Worker::SqliteLibrary(Box::new(sqlite.library()?))]),
            Self::Postgres(_) | Self::MySql(_) => Err("a server has no library".into()),
        }
    }

    /// Workers that share one pool.
    async fn pooled_workers(
        &self,
        tasks: u32,
        proxy: Option<&Proxy>,
    ) -> Result<Vec<Worker>, Failure> {
        let size = tasks.min(MAX_POOL);
        Ok(match self {
            Self::Postgres(postgres) => {
                let pool = postgres::pool(&through(proxy, postgres.url()), size).await?;
                (0..tasks).map(|_| Worker::PostgresPool(pool.clone())).collect()
            }
            Self::MySql(mysql) => {
                let pool = mysql::pool(&through(proxy, mysql.url()), size).await?;
                (0..tasks).map(|_| Worker::MySqlPool(pool.clone())).collect()
            }
            Self::Sqlite(sqlite) => {
                let pool = sqlite.pool(size).await?;
                (0..tasks).map(|_| Worker::SqlitePool(pool.clone())).collect()
            }
        })
    }

    /// Workers that each own a connection.
    async fn connected_workers(
        &self,
        tasks: u32,
        proxy: Option<&Proxy>,
    ) -> Result<Vec<Worker>, Failure> {
        Ok(match self {
            Self::Postgres(postgres) => {
                let url = through(proxy, postgres.url());
                let connections = postgres::connections(&url, tasks).await?.into_iter();
                connections.map(|own| Worker::PostgresOwn(Box::new(own))).collect()
            }
            Self::MySql(mysql) => {
                let url = through(proxy, mysql.url());
                let connections = mysql::connections(&url, tasks).await?.into_iter();
                connections.map(|own| Worker::MySqlOwn(Box::new(own))).collect()
            }
            Self::Sqlite(sqlite) => {
                let connections = sqlite.connections(tasks).await?.into_iter();
                connections.map(|own| Worker::SqliteOwn(Box::new(own))).collect()
            }
        })
    }

    /// The configuration of ekbatan for this database.
    pub fn config(&self, proxy: Option<&Proxy>) -> DataSourceConfig {
        match self {
            Self::Postgres(postgres) => DataSourceConfig::new(through(proxy, postgres.url())),
            Self::MySql(mysql) => DataSourceConfig::new(through(proxy, mysql.url())),
            Self::Sqlite(sqlite) => sqlite.config(),
        }
    }
}

fn through(proxy: Option<&Proxy>, url: &str) -> String {
    proxy.map_or_else(|| url.to_owned(), |proxy| proxy.url_for(url))
}
