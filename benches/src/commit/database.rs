//! The database of a measurement: one front for all kinds.

use ekbatan::config::DataSourceConfig;
use ekbatan::prelude::Uuid;
use ekbatan_testkit::Proxy;

use super::mysql::{self, MySqlBench};
use super::options::{BenchDatabase, CommitMode, CommitOptions};
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
    pub async fn start(options: &CommitOptions, wallets: &[Uuid]) -> Result<Self, Failure> {
        let most = options.tasks.iter().copied().max().unwrap_or(1);
        Ok(match options.database {
            BenchDatabase::Postgres => Self::Postgres(PostgresBench::start(most, wallets).await?),
            BenchDatabase::MySql => Self::MySql(MySqlBench::start_mysql(wallets).await?),
            BenchDatabase::MariaDb => Self::MySql(MySqlBench::start_mariadb(wallets).await?),
            BenchDatabase::Sqlite => {
                let sqlite = SqliteBench::start(wallets, options.durability()).await?;
                Self::Sqlite(Box::new(sqlite))
            }
        })
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

    fn config(&self, proxy: Option<&Proxy>) -> DataSourceConfig {
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
