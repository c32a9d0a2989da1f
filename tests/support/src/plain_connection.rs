//! Plain SQL on any of the databases.

use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, MySqlConnection, PgConnection, Row as _,
    SqliteConnection,
};

use crate::Dialect;

/// How long to wait for another transaction on a SQLite file. On a busy machine it may take longer than
/// the five seconds of sqlx.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// A row whose columns were cast to text.
pub type TextRow = Vec<Option<String>>;

/// A connection that the framework does not know.
pub enum PlainConnection {
    /// To a SQLite file.
    Sqlite(SqliteConnection),
    /// To PostgreSQL.
    Postgres(PgConnection),
    /// To MySQL or MariaDB.
    MySql(MySqlConnection),
}

impl PlainConnection {
    /// Connects to the database that the scheme of the URL names.
    pub async fn connect(url: &str) -> Self {
        match Dialect::of_url(url) {
            Dialect::Sqlite => {
                let options: SqliteConnectOptions = url.parse().unwrap();
                Self::Sqlite(options.busy_timeout(BUSY_TIMEOUT).connect().await.unwrap())
            }
            Dialect::Postgres => Self::Postgres(PgConnection::connect(url).await.unwrap()),
            Dialect::MySql | Dialect::MariaDb => {
                // sqlx has one scheme for both servers.
                let url = url.replacen("mariadb:", "mysql:", 1);
                Self::MySql(MySqlConnection::connect(&url).await.unwrap())
            }
        }
    }

    /// Runs one or more statements.
    pub async fn execute(&mut self, sql: &str) {
        self.try_execute(sql).await.unwrap();
    }

    /// Runs one or more statements, which the database may refuse.
    pub async fn try_execute(&mut self, sql: &str) -> Result<(), sqlx::Error> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        match self {
            Self::Sqlite(connection) => sql.execute(connection).await.map(drop),
            Self::Postgres(connection) => sql.execute(connection).await.map(drop),
            Self::MySql(connection) => sql.execute(connection).await.map(drop),
        }
    }

    /// Returns the rows of `SELECT columns tail`, each column cast to text.
    pub async fn select(&mut self, columns: &[&str], tail: &str) -> Vec<TextRow> {
        let text = if matches!(self, Self::MySql(_)) { "CHAR" } else { "TEXT" };
        let cast: Vec<String> =
            columns.iter().map(|column| format!("CAST({column} AS {text})")).collect();
        let sql = AssertSqlSafe(format!("SELECT {} {tail}", cast.join(", ")));
        let indexes = 0..columns.len();
        match self {
            Self::Sqlite(connection) => {
                let rows = sqlx::query(sql).fetch_all(connection).await.unwrap();
                rows.iter().map(|row| indexes.clone().map(|i| row.get(i)).collect()).collect()
            }
            Self::Postgres(connection) => {
                let rows = sqlx::query(sql).fetch_all(connection).await.unwrap();
                rows.iter().map(|row| indexes.clone().map(|i| row.get(i)).collect()).collect()
            }
            Self::MySql(connection) => {
                let rows = sqlx::query(sql).fetch_all(connection).await.unwrap();
                rows.iter()
                    .map(|row| indexes.clone().map(|i| row.get_unchecked(i)).collect())
                    .collect()
            }
        }
    }

    /// Returns how the database would execute a statement, in its own words.
    pub async fn plan(&mut self, statement: &str) -> String {
        let explain = match self {
            Self::Sqlite(_) => "EXPLAIN QUERY PLAN",
            Self::Postgres(_) => "EXPLAIN",
            Self::MySql(_) => "EXPLAIN FORMAT=JSON",
        };
        let sql = sqlx::raw_sql(AssertSqlSafe(format!("{explain} {statement}")));
        let lines: Vec<String> = match self {
            Self::Sqlite(connection) => {
                let rows = sql.fetch_all(connection).await.unwrap();
                rows.iter().map(|row| row.get("detail")).collect()
            }
            Self::Postgres(connection) => {
                sql.fetch_all(connection).await.unwrap().iter().map(|row| row.get(0)).collect()
            }
            Self::MySql(connection) => {
                let rows = sql.fetch_all(connection).await.unwrap();
                rows.iter().map(|row| row.get_unchecked(0)).collect()
            }
        };
        lines.join("\n")
    }

    /// This connection, or a new one if the database does not answer on it any more.
    pub async fn or_anew(mut self, url: &str) -> Self {
        let answer = match &mut self {
            Self::Sqlite(connection) => connection.ping().await,
            Self::Postgres(connection) => connection.ping().await,
            Self::MySql(connection) => connection.ping().await,
        };
        match answer {
            Ok(()) => self,
            Err(_) => Self::connect(url).await,
        }
    }

    /// Ends the session at the server.
    pub async fn close(self) {
        match self {
            Self::Sqlite(connection) => connection.close().await.unwrap(),
            Self::Postgres(connection) => connection.close().await.unwrap(),
            Self::MySql(connection) => connection.close().await.unwrap(),
        }
    }
}
