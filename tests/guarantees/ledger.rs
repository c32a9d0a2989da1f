//! A database of wallets for one test, and the invariants of its rows.

use std::collections::HashMap;
use std::time::Duration;

use ekbatan::action::{ActionExecutorBuilder, Budget, ErrorKind, RetryPolicy};
use ekbatan::config::DataSourceConfig;
use ekbatan::db::Route;
use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use support::wallet::{
    Deposit, DepositMoney, OpenWallet, Opening, Wallet, WalletError, migrations,
};
use support::{Dialect, ScratchDatabase, connected, until};

/// A migrated database with an executor that retries stale rows until it commits.
pub struct Ledger {
    pub databases: Databases,
    pub executor: ActionExecutor,
    scratch: ScratchDatabase,
}

/// Starts a proxy before the server of a database. Returns the URL through the proxy.
pub async fn proxied(url: &str) -> (String, Proxy) {
    let server = url.rsplit('@').next().unwrap().split('/').next().unwrap();
    let proxy = Proxy::start(server).await.unwrap();
    (proxy.url_for(url), proxy)
}

impl Ledger {
    /// On a new database.
    pub async fn new(dialect: Dialect) -> Self {
        let scratch = ScratchDatabase::create(dialect).await;
        let config = scratch.config();
        Self::on(scratch, config).await
    }

    /// On a database that exists.
    pub async fn open(url: &str) -> Self {
        Self::with_config(ScratchDatabase::config_of(url)).await
    }

    /// On a database that exists, with this configuration.
    pub async fn with_config(config: DataSourceConfig) -> Self {
        Self::on(ScratchDatabase::at(&config.url), config).await
    }

    async fn on(scratch: ScratchDatabase, config: DataSourceConfig) -> Self {
        let databases = Databases::connect(&config.into()).await.unwrap();
        databases.migrate(&migrations()).await.unwrap();
        let executor = executor_builder(&databases).build().await.unwrap();
        Self { databases, executor, scratch }
    }

    /// On a migrated database, with timeouts that a busy machine may exceed while it connects.
    pub async fn impatient(config: DataSourceConfig) -> Self {
        let scratch = ScratchDatabase::at(&config.url);
        let databases = connected(&config.into()).await;
        let mut executor = None;
        until("the executor is built", async || {
            executor = executor_builder(&databases).build().await.ok();
            executor.is_some()
        })
        .await;
        Self { databases, executor: executor.unwrap(), scratch }
    }

    /// Opens the same database a second time, as another process would: with its own pools and
    /// lanes.
    pub async fn open_again(&self) -> Self {
        Self::open(self.url()).await
    }

    pub fn url(&self) -> &str {
        &self.scratch.url
    }

    /// The qualified name of a table of the framework.
    pub fn eventlog(&self, table: &str) -> String {
        self.scratch.eventlog(table)
    }

    pub async fn open_wallets(&self, count: usize) -> Vec<Id<Wallet>> {
        let mut ids = Vec::with_capacity(count);
        for n in 0..count {
            let opening = Opening { owner: format!("owner {n}"), currency: "EUR".into() };
            ids.push(self.executor.execute(&OpenWallet, opening).await.unwrap().id);
        }
        ids
    }

    /// Opens a wallet, and with it the connection of a lane. On a busy machine a commit may exceed
    /// short timeouts.
    pub async fn open_wallet_patiently(&self) -> Id<Wallet> {
        let mut opened = None;
        until("a wallet is opened", async || {
            let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
            opened = self.executor.execute(&OpenWallet, opening).await.ok();
            opened.is_some()
        })
        .await;
        opened.unwrap().id
    }

    pub async fn deposit(
        &self,
        wallet: Id<Wallet>,
    ) -> Result<Stored<Wallet>, ExecuteError<WalletError>> {
        self.executor.execute(&DepositMoney, Deposit { wallet, amount: Decimal::ONE }).await
    }

    /// Counts the event rows of each action.
    pub async fn rows_per_action(&self) -> HashMap<Uuid, usize> {
        let of_events = format!("FROM {} GROUP BY action_id", self.scratch.eventlog("events"));
        let rows = self.scratch.select(&["action_id", "count(*)"], &of_events).await;
        let parsed = rows.iter().map(|row| {
            let [action, count] = [0, 1].map(|column| row[column].as_deref().unwrap());
            (action.parse().unwrap(), count.parse().unwrap())
        });
        parsed.collect()
    }

    /// Checks that the stored deposits are those that callers know of. Every deposit adds one
    /// unit, so the balance of a wallet is its version minus 1, and each version has one event.
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
            "the answered deposits and the stored deposits differ"
        );
    }

    /// Checks that every connection is back in the pool.
    pub fn assert_nothing_held(&self) {
        let status = self.databases.pool_status(Route::Primary);
        assert_eq!(status.holders, [], "connections are still held");
        assert_eq!(status.idle, status.size, "connections are missing from the pool");
    }

    /// Waits until every connection is back in the pool: a read whose callers have gone may still
    /// run in a task of its own.
    pub async fn nothing_is_held(&self) {
        until("every connection is back", async || {
            let status = self.databases.pool_status(Route::Primary);
            status.holders.is_empty() && status.idle == status.size
        })
        .await;
    }
}

fn executor_builder(databases: &Databases) -> ActionExecutorBuilder {
    ActionExecutor::builder(databases, "tests").model::<Wallet>().retry(retry_stale_rows())
}

/// Retries stale rows until the commit succeeds, for tests that are not about conflicts.
pub fn retry_stale_rows() -> RetryPolicy {
    let quick = Budget::new(100_000).base(Duration::from_millis(1)).cap(Duration::from_millis(20));
    RetryPolicy::none().with(ErrorKind::Stale, quick)
}
