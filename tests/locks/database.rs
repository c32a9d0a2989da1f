//! A database of one test, with the wallets of the example.

use ekbatan::config::DataSourceConfig;
use ekbatan::prelude::*;
use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer, TempSqlite};

use crate::wallet::{Wallet, migrations};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
    MySql,
    MariaDb,
}

impl Kind {
    /// A database on the server that all tests share.
    pub async fn create_database(self) -> String {
        match self {
            Kind::Sqlite => unreachable!("a file has no server"),
            Kind::Postgres => {
                PostgresServer::shared().await.unwrap().create_database().await.unwrap()
            }
            Kind::MySql => MySqlServer::shared().await.unwrap().create_database().await.unwrap(),
            Kind::MariaDb => {
                MariaDbServer::shared().await.unwrap().create_database().await.unwrap()
            }
        }
    }
}

pub struct TestDatabase {
    pub kind: Kind,
    pub databases: Databases,
    eventlog: String,
    executor: ActionExecutor,
    _file: Option<TempSqlite>,
}

impl TestDatabase {
    pub async fn start(kind: Kind) -> Self {
        let mut file = None;
        let url = match kind {
            Kind::Sqlite => file.insert(TempSqlite::new().unwrap()).url(),
            server => server.create_database().await,
        };
        Self { _file: file, ..Self::open(kind, &url).await }
    }

    /// The database at this address.
    pub async fn open(kind: Kind, url: &str) -> Self {
        let database = url.rsplit('/').next().unwrap_or_default();
        let eventlog = format!("{database}_log");
        let config = DataSourceConfig::new(url).eventlog(&eventlog);
        let databases = Databases::connect(&config.into()).await.unwrap();
        databases.migrate(&migrations()).await.unwrap();
        let executor = ActionExecutor::builder(&databases, "com.example.locks")
            .model::<Wallet>()
            .build()
            .await
            .unwrap();
        Self { kind, databases, eventlog, executor, _file: None }
    }

    pub fn executor(&self) -> ActionExecutor {
        self.executor.clone()
    }

    /// Deletes the record of all earlier leases.
    pub async fn forget_fences(&self) {
        let sql = match self.kind {
            Kind::Sqlite => "DELETE FROM eventlog_lock_fences".to_owned(),
            Kind::Postgres => "DELETE FROM eventlog.lock_fences".to_owned(),
            Kind::MySql | Kind::MariaDb => format!("DELETE FROM `{}`.lock_fences", self.eventlog),
        };
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql));
        match self.kind {
            Kind::Sqlite => {
                let mut raw = self.databases.sqlite().await.unwrap();
                sql.execute(raw.connection().unwrap()).await.unwrap();
                raw.release().await.unwrap();
            }
            Kind::Postgres => {
                let mut raw = self.databases.postgres().await.unwrap();
                sql.execute(raw.connection().unwrap()).await.unwrap();
                raw.release().await.unwrap();
            }
            Kind::MySql | Kind::MariaDb => {
                let mut raw = self.databases.mysql().await.unwrap();
                sql.execute(raw.connection().unwrap()).await.unwrap();
                raw.release().await.unwrap();
            }
        }
    }
}
