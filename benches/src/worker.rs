//! Somebody who deposits, in any of the modes.

use ekbatan::action::Budget;
use ekbatan::prelude::*;
use sqlx::{MySqlConnection, MySqlPool, PgConnection, PgPool, SqlitePool};

use crate::model::{Deposit, DepositMoney, NAMESPACE, PRINCIPAL, Wallet};
use crate::{Failure, mysql, postgres, sqlite};

/// The most connections that ekbatan's pool gets, to read with. It commits on its lanes.
const MAX_POOL: usize = 16;

/// One task's means to deposit.
pub enum Worker {
    Ekbatan(ActionExecutor),
    PostgresPool(PgPool),
    PostgresOwn(Box<PgConnection>),
    MySqlPool(MySqlPool),
    MySqlOwn(Box<MySqlConnection>),
    SqlitePool(SqlitePool),
    SqliteOwn(Box<sqlite::Own>),
}

impl Worker {
    /// One deposit, repeated until it goes through.
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
        }
    }

    /// Gives up the connections.
    pub async fn close(self) {
        match self {
            Self::Ekbatan(executor) => executor.databases().close().await,
            Self::PostgresPool(pool) => pool.close().await,
            Self::MySqlPool(pool) => pool.close().await,
            Self::SqlitePool(pool) => pool.close().await,
            Self::PostgresOwn(_) | Self::MySqlOwn(_) | Self::SqliteOwn(_) => {}
        }
    }
}

/// Ekbatan with every default but the size of the pool, and patience: conflicts are
/// repeated until they are solved, as the other modes do.
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
