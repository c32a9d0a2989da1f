//! An empty database for one test.

use ekbatan::config::{DataSourceConfig, Durability};
use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer, TempSqlite};
use tokio::sync::Mutex;

use crate::{Dialect, PlainConnection, Recorder, TextRow};

/// A database that no other test uses. A SQLite file is deleted with it; a database on a
/// server is deleted with the server.
pub struct ScratchDatabase {
    /// What kind of database this is.
    pub dialect: Dialect,
    /// The URL of the database.
    pub url: String,
    // What the last look was taken on, if on a server: tests look often, and to connect takes
    // longer than to look.
    looks: Mutex<Option<PlainConnection>>,
    _file: Option<TempSqlite>,
}

impl ScratchDatabase {
    /// Creates an empty file, or an empty database on the shared server.
    pub async fn create(dialect: Dialect) -> Self {
        Recorder::install();
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
        Self { dialect, url, looks: Mutex::default(), _file: file }
    }

    /// Returns a database that exists already.
    pub fn at(url: &str) -> Self {
        Self {
            dialect: Dialect::of_url(url),
            url: url.to_owned(),
            looks: Mutex::default(),
            _file: None,
        }
    }

    /// The configuration of a data source on this database.
    pub fn config(&self) -> DataSourceConfig {
        Self::config_of(&self.url)
    }

    /// The configuration of a data source on the database at this URL. On MySQL and MariaDB the
    /// framework gets a database of its own, because tests share the server. With
    /// `TEST_SQLITE_DURABILITY=wal` commits on SQLite do not wait for the disk, and so mostly run
    /// on other threads than with the default.
    pub fn config_of(url: &str) -> DataSourceConfig {
        let config = DataSourceConfig::new(url);
        if Dialect::of_url(url).is_mysql() {
            let database = url.rsplit('/').next().unwrap();
            config.eventlog(format!("{database}_log"))
        } else if std::env::var("TEST_SQLITE_DURABILITY").is_ok_and(|value| value == "wal") {
            config.durability(Durability::Wal)
        } else {
            config
        }
    }

    /// The qualified name of a table of the framework.
    pub fn eventlog(&self, table: &str) -> String {
        match self.dialect {
            Dialect::Sqlite => format!("eventlog_{table}"),
            Dialect::Postgres => format!("eventlog.{table}"),
            Dialect::MySql | Dialect::MariaDb => format!("{}.{table}", self.config().eventlog),
        }
    }

    /// Opens a connection that the framework does not know.
    pub async fn connect(&self) -> PlainConnection {
        PlainConnection::connect(&self.url).await
    }

    /// Runs one or more statements on a connection of their own.
    pub async fn execute(&self, sql: &str) {
        let mut connection = self.connect().await;
        connection.execute(sql).await;
        connection.close().await;
    }

    /// Returns the rows of `SELECT columns tail`, each column cast to text.
    pub async fn select(&self, columns: &[&str], tail: &str) -> Vec<TextRow> {
        let mut looks = self.looks.lock().await;
        let mut connection = match looks.take() {
            Some(connection) => connection.or_anew(&self.url).await,
            None => self.connect().await,
        };
        let rows = connection.select(columns, tail).await;
        if self.dialect == Dialect::Sqlite {
            connection.close().await;
        } else {
            *looks = Some(connection);
        }
        rows
    }

    /// Ends the session of earlier looks. A server may count what it has read only then.
    pub async fn end_looks(&self) {
        if let Some(connection) = self.looks.lock().await.take() {
            connection.close().await;
        }
    }

    /// Counts the rows of a table, including those that are marked as deleted.
    pub async fn count(&self, table: &str) -> usize {
        let rows = self.select(&["count(*)"], &format!("FROM {table}")).await;
        rows[0][0].as_deref().unwrap().parse().unwrap()
    }

    /// Counts the sessions that wait for a lock. Only PostgreSQL tells.
    pub async fn waiting_for_locks(&self) -> usize {
        let waiting = "FROM pg_stat_activity WHERE datname = current_database() \
                       AND wait_event_type = 'Lock'";
        self.select(&["pid"], waiting).await.len()
    }

    /// Counts the rows of the outbox.
    pub async fn count_events(&self) -> usize {
        self.count(&self.eventlog("events")).await
    }
}
