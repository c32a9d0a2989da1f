//! A database for one test, with the wallets of the example.

use ekbatan::prelude::*;
use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer, TempSqlite};

use crate::wallet::{Wallet, migrations};

#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Sqlite,
    Postgres,
    MySql,
    MariaDb,
}

pub struct TestDatabase {
    pub databases: Databases,
    executor: ActionExecutor,
    _file: Option<TempSqlite>,
}

impl TestDatabase {
    pub async fn start(kind: Kind) -> Self {
        let mut file = None;
        let url = match kind {
            Kind::Sqlite => file.insert(TempSqlite::new().unwrap()).url(),
            Kind::Postgres => {
                PostgresServer::shared().await.unwrap().create_database().await.unwrap()
            }
            Kind::MySql => MySqlServer::shared().await.unwrap().create_database().await.unwrap(),
            Kind::MariaDb => {
                MariaDbServer::shared().await.unwrap().create_database().await.unwrap()
            }
        };
        let database = url.rsplit('/').next().unwrap_or_default();
        let config = DataSourceConfig::new(&url).eventlog(format!("{database}_log"));
        let databases = Databases::connect(&config.into()).await.unwrap();
        databases.migrate(&migrations()).await.unwrap();
        let executor = ActionExecutor::builder(&databases, "com.example.locks")
            .model::<Wallet>()
            .build()
            .await
            .unwrap();
        Self { databases, executor, _file: file }
    }

    pub fn executor(&self) -> ActionExecutor {
        self.executor.clone()
    }
}
