//! A database of one test, with the wallets of the example.

use ekbatan::prelude::*;
use support::wallet::migrations;
use support::{Dialect, ScratchDatabase, WALLETS};

pub struct TestDatabase {
    pub databases: Databases,
    executor: ActionExecutor,
    scratch: ScratchDatabase,
}

impl TestDatabase {
    pub async fn start(dialect: Dialect) -> Self {
        Self::on(ScratchDatabase::create(dialect).await).await
    }

    /// The database at this address.
    pub async fn open(url: &str) -> Self {
        Self::on(ScratchDatabase::at(url)).await
    }

    async fn on(scratch: ScratchDatabase) -> Self {
        let databases = Databases::connect(&scratch.config().into()).await.unwrap();
        databases.migrate(&migrations()).await.unwrap();
        let executor = WALLETS.executor_on(&databases).await;
        Self { databases, executor, scratch }
    }

    pub fn dialect(&self) -> Dialect {
        self.scratch.dialect
    }

    pub fn executor(&self) -> ActionExecutor {
        self.executor.clone()
    }

    /// Deletes the record of all earlier leases.
    pub async fn forget_fences(&self) {
        let table = self.scratch.eventlog("lock_fences");
        self.scratch.execute(&format!("DELETE FROM {table}")).await;
    }
}
