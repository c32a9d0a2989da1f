//! A database with the tables of a domain.

use std::ops::Deref;
use std::sync::Arc;

use ekbatan::action::ActionExecutorBuilder;
use ekbatan::prelude::*;

use crate::wallet::{self, Wallet};
use crate::{Dialect, ScratchDatabase, TestClock};

/// The models of a suite.
pub struct Domain {
    /// The scripts that create the tables.
    pub migrations: fn() -> Migrations,
    /// The builder of an executor for the models.
    pub executor: fn(&Databases) -> ActionExecutorBuilder,
}

/// The wallet of the example.
pub static WALLETS: Domain = Domain {
    migrations: wallet::migrations,
    executor: |databases| {
        ActionExecutor::builder(databases, "com.example.wallets").model::<Wallet>()
    },
};

impl Domain {
    /// Returns an executor on other databases than the test's own.
    pub async fn executor_on(&self, databases: &Databases) -> ActionExecutor {
        (self.executor)(databases).build().await.unwrap()
    }
}

/// A migrated database for one test, with a clock that the test sets.
pub struct TestDatabase {
    /// The application's connections.
    pub databases: Databases,
    /// The clock of `databases`.
    pub clock: Arc<TestClock>,
    domain: &'static Domain,
    scratch: ScratchDatabase,
}

impl TestDatabase {
    /// Creates a database with the tables of the framework and of the domain.
    pub async fn start(domain: &'static Domain, dialect: Dialect) -> Self {
        let database = Self::start_empty(domain, dialect).await;
        database.databases.migrate(&(domain.migrations)()).await.unwrap();
        // Reads the catalogue now, so that a test counts only its own round trips.
        database.executor().await;
        database
    }

    /// Creates a database without any table.
    pub async fn start_empty(domain: &'static Domain, dialect: Dialect) -> Self {
        let scratch = ScratchDatabase::create(dialect).await;
        let clock = Arc::new(TestClock::default());
        let databases = Databases::connect(&scratch.config().into()).await.unwrap();
        let databases = databases.with_clock(clock.clone());
        Self { databases, clock, domain, scratch }
    }

    /// Opens the same database a second time, as another process would.
    pub async fn open_again(&self) -> Databases {
        let databases = Databases::connect(&self.config().into()).await.unwrap();
        databases.with_clock(self.clock.clone())
    }

    /// Builds an executor for the models of the domain.
    pub async fn executor(&self) -> ActionExecutor {
        self.domain.executor_on(&self.databases).await
    }
}

impl Deref for TestDatabase {
    type Target = ScratchDatabase;

    fn deref(&self) -> &ScratchDatabase {
        &self.scratch
    }
}
