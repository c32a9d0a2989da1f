//! A database for one test: migrated, on a clock that the test sets.

use std::sync::{Arc, Mutex};

use ekbatan::clock::Clock;
use ekbatan::prelude::*;
use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer, TempSqlite};
use sqlx::{
    AssertSqlSafe, Connection as _, MySqlConnection, PgConnection, Row as _, SqliteConnection,
};

use crate::models::{Thing, Zone, migrations};
use crate::wallet::Wallet;

/// Every database that the suite runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
    MySql,
    MariaDb,
}

/// A clock that stands still until it is set.
pub struct TestClock(Mutex<DateTime<Utc>>);

impl TestClock {
    pub fn set(&self, instant: DateTime<Utc>) {
        *self.0.lock().unwrap() = instant;
    }
}

impl Clock for TestClock {
    fn now(&self) -> DateTime<Utc> {
        *self.0.lock().unwrap()
    }
}

/// `seconds` after the moment at which every test begins, which has nanoseconds to lose.
pub fn instant(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_767_323_045 + seconds, 678_901_234).unwrap()
}

/// The same moment as a database keeps it.
pub fn stored_instant(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_767_323_045 + seconds, 678_901_000).unwrap()
}

/// A row of SQL that was cast to text.
pub type TextRow = Vec<Option<String>>;

pub struct TestDatabase {
    pub dialect: Dialect,
    pub url: String,
    pub databases: Databases,
    pub clock: Arc<TestClock>,
    _file: Option<TempSqlite>,
}

impl TestDatabase {
    pub async fn start(dialect: Dialect) -> Self {
        let database = Self::start_empty(dialect).await;
        database.databases.migrate(&migrations()).await.unwrap();
        // So that no test's own use of the pool has the look at the table among it.
        database.databases.check::<Thing>().await.unwrap();
        database
    }

    /// Without a single table.
    pub async fn start_empty(dialect: Dialect) -> Self {
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
        let clock = Arc::new(TestClock(Mutex::new(instant(0))));
        let databases = Databases::connect(&config_of(&url).into()).await.unwrap();
        let databases = databases.with_clock(clock.clone());
        Self { dialect, url, databases, clock, _file: file }
    }

    /// Where the database is and, on a shared server, its own database for the framework.
    pub fn config(&self) -> DataSourceConfig {
        config_of(&self.url)
    }

    /// MySQL or MariaDB.
    pub fn is_mysql(&self) -> bool {
        matches!(self.dialect, Dialect::MySql | Dialect::MariaDb)
    }

    pub fn is_postgres(&self) -> bool {
        self.dialect == Dialect::Postgres
    }

    /// The same database, as another process would open it.
    pub async fn open_again(&self) -> Databases {
        let databases = Databases::connect(&self.config().into()).await.unwrap();
        databases.with_clock(self.clock.clone())
    }

    pub async fn executor(&self) -> ActionExecutor {
        executor_on(&self.databases).await
    }

    pub fn things(&self) -> Repository<Thing> {
        self.databases.repository()
    }

    /// The framework's table of this name, as the dialect writes it.
    pub fn eventlog(&self, table: &str) -> String {
        match self.dialect {
            Dialect::Sqlite => format!("eventlog_{table}"),
            Dialect::Postgres => format!("eventlog.{table}"),
            Dialect::MySql | Dialect::MariaDb => format!("{}.{table}", self.config().eventlog),
        }
    }

    /// Runs SQL on a connection of its own.
    pub async fn execute(&self, sql: &str) {
        match self.dialect {
            Dialect::Sqlite => {
                let mut connection = SqliteConnection::connect(&self.url).await.unwrap();
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
                connection.close().await.unwrap();
            }
            Dialect::Postgres => {
                let mut connection = PgConnection::connect(&self.url).await.unwrap();
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
                connection.close().await.unwrap();
            }
            Dialect::MySql | Dialect::MariaDb => {
                let mut connection = connect_mysql(&self.url).await;
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
                connection.close().await.unwrap();
            }
        }
    }

    /// The rows of `SELECT columns tail`, each column as text, on a connection of its own.
    pub async fn select(&self, columns: &[&str], tail: &str) -> Vec<TextRow> {
        let text = if self.is_mysql() { "CHAR" } else { "TEXT" };
        let cast: Vec<String> =
            columns.iter().map(|column| format!("CAST({column} AS {text})")).collect();
        let sql = format!("SELECT {} {tail}", cast.join(", "));
        let texts = columns.len();
        match self.dialect {
            Dialect::Sqlite => {
                let mut connection = SqliteConnection::connect(&self.url).await.unwrap();
                let rows =
                    sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap();
                connection.close().await.unwrap();
                rows.iter().map(|row| (0..texts).map(|at| row.get(at)).collect()).collect()
            }
            Dialect::Postgres => {
                let mut connection = PgConnection::connect(&self.url).await.unwrap();
                let rows =
                    sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap();
                connection.close().await.unwrap();
                rows.iter().map(|row| (0..texts).map(|at| row.get(at)).collect()).collect()
            }
            Dialect::MySql | Dialect::MariaDb => {
                let mut connection = connect_mysql(&self.url).await;
                let rows =
                    sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap();
                connection.close().await.unwrap();
                rows.iter()
                    .map(|row| (0..texts).map(|at| row.get_unchecked(at)).collect())
                    .collect()
            }
        }
    }

    /// How many rows a table has, deleted ones included.
    pub async fn count(&self, table: &str) -> usize {
        let rows = self.select(&["count(*)"], &format!("FROM {table}")).await;
        rows[0][0].as_deref().unwrap().parse().unwrap()
    }

    pub async fn count_events(&self) -> usize {
        self.count(&self.eventlog("events")).await
    }
}

/// The databases of a shared server each have a database of their own for the framework.
fn config_of(url: &str) -> DataSourceConfig {
    let database = url.rsplit('/').next().unwrap();
    match url.starts_with("mysql:") || url.starts_with("mariadb:") {
        true => DataSourceConfig::new(url).eventlog(format!("{database}_log")),
        false => DataSourceConfig::new(url),
    }
}

/// A plain connection; sqlx knows one name for both servers.
pub async fn connect_mysql(url: &str) -> MySqlConnection {
    MySqlConnection::connect(&url.replacen("mariadb:", "mysql:", 1)).await.unwrap()
}

pub async fn executor_on(databases: &Databases) -> ActionExecutor {
    ActionExecutor::builder(databases, "com.example.conformance")
        .model::<Thing>()
        .model::<Zone>()
        .model::<Wallet>()
        .build()
        .await
        .unwrap()
}
