//! A worker makes deposits in one of the modes.

use ekbatan::action::{Budget, ErrorKind, RetryPolicy};
use ekbatan::config::DataSourceConfig;
use ekbatan::prelude::*;
use sqlx::{MySqlConnection, MySqlPool, PgConnection, PgPool, SqlitePool};

use super::rows::{NAMESPACE, PRINCIPAL};
use super::{mysql, postgres, sqlite};
use crate::failure::Failure;
use crate::wallet::{Deposit, DepositMoney, Wallet};

/// The most connections of ekbatan's pool, which only reads. Commits travel on lanes.
const MAX_POOL: usize = 16;

/// The connection or pool with which one task makes deposits.
pub enum Worker {
    Ekbatan(ActionExecutor),
    PostgresPool(PgPool),
    PostgresOwn(Box<PgConnection>),
    MySqlPool(MySqlPool),
    MySqlOwn(Box<MySqlConnection>),
    SqlitePool(SqlitePool),
    SqliteOwn(Box<sqlite::ReaderAndWriter>),
    SqliteLibrary(Box<sqlite::Library>),
}

impl Worker {
    /// Makes one deposit, repeating it until it commits.
    pub async fn deposit(&mut self, wallet: Uuid, amount: Decimal) -> Result<(), Failure> {
        match self {
            Self::Ekbatan(executor) => {
                let deposit = Deposit { wallet: Id::from(wallet), amount };
                executor.execute(&DepositMoney, deposit).principal(PRINCIPAL).await?;
                Ok(())
            }
            Self::PostgresPool(pool) => postgres::transaction(pool, wallet, amount).await,
            Self::PostgresOwn(connection) => postgres::statement(connection, wallet, amount).await,
            Self::MySqlPool(pool) => mysql::transaction(pool, wallet, amount).await,
            Self::MySqlOwn(connection) => mysql::packet(connection, wallet, amount).await,
            Self::SqlitePool(pool) => sqlite::transaction(pool, wallet, amount).await,
            Self::SqliteOwn(own) => own.deposit(wallet, amount).await,
            Self::SqliteLibrary(library) => library.deposit(wallet, amount),
        }
    }

    /// Closes the connections.
    pub async fn close(self) {
        match self {
            Self::Ekbatan(executor) => executor.databases().close().await,
            Self::PostgresPool(pool) => pool.close().await,
            Self::MySqlPool(pool) => pool.close().await,
            Self::SqlitePool(pool) => pool.close().await,
            Self::PostgresOwn(_) | Self::MySqlOwn(_) => {}
            Self::SqliteOwn(_) | Self::SqliteLibrary(_) => {}
        }
    }
}

/// Ekbatan with its defaults, except the pool size and the retry budget: conflicts are
/// retried without a limit, as in the other modes.
pub async fn ekbatan(config: DataSourceConfig, tasks: usize) -> Result<Vec<Worker>, Failure> {
    let config = config.maximum_pool_size(tasks.min(MAX_POOL));
    let databases = Databases::connect(&EkbatanConfig::from(config)).await?;
    let patient = RetryPolicy::default().with(ErrorKind::Stale, Budget::new(u32::MAX));
    let executor = ActionExecutor::builder(&databases, NAMESPACE)
        .model::<Wallet>()
        .retry(patient)
        .build()
        .await?;
    Ok((0..tasks).map(|_| Worker::Ekbatan(executor.clone())).collect())
}
