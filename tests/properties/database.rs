//! A database for one test, with the table of samples.

use ekbatan::prelude::*;
use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer, TempSqlite};

use crate::sample::{Sample, migrations};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
    MySql,
    MariaDb,
}

pub struct TestDatabase {
    pub dialect: Dialect,
    pub databases: Databases,
    _file: Option<TempSqlite>,
}

impl TestDatabase {
    pub async fn start(dialect: Dialect) -> Self {
        let (url, file) = match dialect {
            Dialect::Sqlite => {
                let file = TempSqlite::new().unwrap();
                (file.url(), Some(file))
            }
            Dialect::Postgres => {
                let server = PostgresServer::shared().await.unwrap();
                (server.create_database().await.unwrap(), None)
            }
            Dialect::MySql => {
                let server = MySqlServer::shared().await.unwrap();
                (server.create_database().await.unwrap(), None)
            }
            Dialect::MariaDb => {
                let server = MariaDbServer::shared().await.unwrap();
                (server.create_database().await.unwrap(), None)
            }
        };
        let mut config = DataSourceConfig::new(&url);
        if matches!(dialect, Dialect::MySql | Dialect::MariaDb) {
            // The databases of a shared server each have one of their own for the framework.
            config = config.eventlog(format!("{}_log", url.rsplit('/').next().unwrap()));
        }
        let databases = Databases::connect(&config.into()).await.unwrap();
        databases.migrate(&migrations()).await.unwrap();
        Self { dialect, databases, _file: file }
    }

    pub fn samples(&self) -> Repository<Sample> {
        self.databases.repository()
    }
}
