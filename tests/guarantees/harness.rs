//! A database of its own for every test, and what the ledger of wallets must add up to.

use std::collections::HashMap;

use ekbatan::action::Budget;
use ekbatan::db::{RawConnection, Route};
use ekbatan::prelude::*;
use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer, Proxy, TempSqlite};
use sqlx::AssertSqlSafe;
use std::time::Duration;

use crate::wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet, WalletError, migrations};

/// A migrated database, and the file that goes when it goes.
pub struct Ledger {
    pub databases: Databases,
    pub executor: ActionExecutor,
    pub url: String,
    _file: Option<TempSqlite>,
}

#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Sqlite,
    Postgres,
    MySql,
    MariaDb,
}

impl Kind {
    /// A database of its own on the shared server.
    pub async fn create_database(self) -> String {
        match self {
            Kind::Sqlite => panic!("SQLite has no server"),
            Kind::Postgres => {
                let server = PostgresServer::shared().await.unwrap();
                server.create_database().await.unwrap()
            }
            Kind::MySql => {
                let server = MySqlServer::shared().await.unwrap();
                server.create_database().await.unwrap()
            }
            Kind::MariaDb => {
                let server = MariaDbServer::shared().await.unwrap();
                server.create_database().await.unwrap()
            }
        }
    }
}

/// A database by its address; on a server that others share, with its own database for the
/// framework.
pub fn config_of(url: &str) -> DataSourceConfig {
    let database = url.rsplit('/').next().unwrap();
    DataSourceConfig::new(url).eventlog(format!("{database}_log"))
}

/// The address of a proxy before the database, and the proxy.
pub async fn proxied(url: &str) -> (String, Proxy) {
    let server = url.rsplit('@').next().unwrap().split('/').next().unwrap();
    let proxy = Proxy::start(server).await.unwrap();
    (proxy.url_for(url), proxy)
}

impl Ledger {
    pub async fn new(kind: Kind) -> Self {
        match kind {
            Kind::Sqlite => {
                let file = TempSqlite::new().unwrap();
                let url = file.url();
                Self::open(&url, Some(file)).await
            }
            server => Self::open(&server.create_database().await, None).await,
        }
    }

    pub async fn open(url: &str, file: Option<TempSqlite>) -> Self {
        Self::with_config(config_of(url), file).await
    }

    pub async fn with_config(config: DataSourceConfig, file: Option<TempSqlite>) -> Self {
        let url = config.url.clone();
        let databases = Databases::connect(&config.into()).await.unwrap();
        databases.migrate(&migrations()).await.unwrap();
        let executor = ActionExecutor::builder(&databases, "tests")
            .model::<Wallet>()
            .retry(patient())
            .build()
            .await
            .unwrap();
        Self { databases, executor, url, _file: file }
    }

    /// The same database as another process would see it: other pools, other lanes.
    pub async fn neighbour(&self) -> Self {
        Self::open(&self.url, None).await
    }

    pub async fn open_wallets(&self, count: usize) -> Vec<Id<Wallet>> {
        let mut ids = Vec::with_capacity(count);
        for n in 0..count {
            let opening = Opening { owner: format!("owner {n}"), currency: "EUR".into() };
            ids.push(self.executor.execute(&OpenWallet, opening).await.unwrap().id);
        }
        ids
    }

    pub async fn deposit(
        &self,
        wallet: Id<Wallet>,
    ) -> Result<Stored<Wallet>, ExecuteError<WalletError>> {
        self.executor.execute(&DepositMoney, Deposit { wallet, amount: Decimal::ONE }).await
    }

    /// How many event rows each action left.
    pub async fn rows_per_action(&self) -> HashMap<Uuid, i64> {
        match self.databases.capabilities().name {
            "sqlite" => {
                let mut raw: RawConnection<sqlx::SqliteConnection> =
                    self.databases.sqlite().await.unwrap();
                let rows: Vec<(String, i64)> = sqlx::query_as(
                    "SELECT action_id, count(*) FROM eventlog_events GROUP BY action_id",
                )
                .fetch_all(raw.connection().unwrap())
                .await
                .unwrap();
                raw.release().await.unwrap();
                rows.into_iter().map(|(id, count)| (id.parse().unwrap(), count)).collect()
            }
            "mysql" | "mariadb" => {
                let eventlog = config_of(&self.url).eventlog;
                let sql = format!(
                    "SELECT CAST(action_id AS CHAR), count(*) FROM {eventlog}.events GROUP BY action_id"
                );
                let mut raw: RawConnection<sqlx::MySqlConnection> =
                    self.databases.mysql().await.unwrap();
                let rows: Vec<(String, i64)> = sqlx::query_as(AssertSqlSafe(sql))
                    .fetch_all(raw.connection().unwrap())
                    .await
                    .unwrap();
                raw.release().await.unwrap();
                rows.into_iter().map(|(id, count)| (id.parse().unwrap(), count)).collect()
            }
            _ => {
                let mut raw: RawConnection<sqlx::PgConnection> =
                    self.databases.postgres().await.unwrap();
                let rows: Vec<(Uuid, i64)> = sqlx::query_as(
                    "SELECT action_id, count(*) FROM eventlog.events GROUP BY action_id",
                )
                .fetch_all(raw.connection().unwrap())
                .await
                .unwrap();
                raw.release().await.unwrap();
                rows.into_iter().collect()
            }
        }
    }

    /// Every deposit is one unit, so a wallet's balance is its version less the one of its
    /// opening, and every version has left one event row.
    pub async fn assert_sound(&self, deposits: usize) {
        let wallets = self.databases.repository::<Wallet>().find_all().await.unwrap();
        let mut versions = 0;
        for wallet in &wallets {
            assert_eq!(wallet.balance, Decimal::from(wallet.version() - 1), "{wallet:?}");
            versions += wallet.version();
        }
        let rows = self.rows_per_action().await;
        assert!(rows.values().all(|count| *count == 1), "an action left more than one row");
        assert_eq!(versions as usize, rows.len(), "versions and event rows differ");
        assert_eq!(
            rows.len(),
            wallets.len() + deposits,
            "deposits that were answered and deposits that are stored differ"
        );
    }

    /// No connection is held or in doubt.
    pub fn assert_nothing_held(&self) {
        let status = self.databases.pool_status(Route::Primary);
        assert_eq!(status.holders, [], "connections are still held");
        assert_eq!(status.idle, status.size, "connections are missing from the pool");
    }
}

/// Retries until it works: for tests in which conflicts are not the point.
pub fn patient() -> RetryPolicy {
    let quick = Budget::new(100_000).base(Duration::from_millis(1)).cap(Duration::from_millis(20));
    RetryPolicy::none().with(ErrorKind::Stale, quick)
}

/// The same test on every database, or on those that are named.
macro_rules! on_every_database {
    (only $module:ident $kind:ident: $($name:ident),* $(,)?) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(crate::harness::Kind::$kind).await;
            })*
        }
    };
    ($($name:ident),* $(,)?) => {
        crate::harness::on_every_database!(only sqlite Sqlite: $($name),*);
        crate::harness::on_every_database!(only postgres Postgres: $($name),*);
        crate::harness::on_every_database!(only mysql MySql: $($name),*);
        crate::harness::on_every_database!(only mariadb MariaDb: $($name),*);
    };
}
pub(crate) use on_every_database;
