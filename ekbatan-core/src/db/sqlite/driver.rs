//! Opens connections to a database file.

use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use rust_decimal::Decimal;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection as _};
use tokio::sync::Mutex;

use super::connection::SqliteConnection;
use super::syntax::{DECIMAL, SqliteSyntax};
use super::writer_lock::WriterLock;
use crate::config::{DataSourceConfig, Durability, LONGEST_TIMEOUT};
use crate::db::{Capabilities, Connection, DbError, DbErrorKind, Dialect, Driver, Route, Syntax};

const CAPABILITIES: Capabilities = Capabilities {
    dialect: Dialect::Sqlite,
    max_lanes: Some(1),
    single_writer: true,
    isolation_levels: false,
    names_constraints: false,
    atomic_migrations: true,
    folds_reads: false,
};

/// The sqlx connection of a connection of this dialect.
pub(crate) fn raw(connection: &mut dyn Connection) -> Option<&mut sqlx::SqliteConnection> {
    connection.as_any().downcast_mut::<SqliteConnection>().map(|own| &mut own.inner)
}

pub(crate) struct SqliteDriver {
    options: SqliteConnectOptions,
    address: String,
    writer_lock: WriterLock,
    closing: Arc<Mutex<()>>,
}

impl SqliteDriver {
    pub(crate) fn new(config: &DataSourceConfig) -> Result<Self, DbError> {
        let options = file_options(config)?;
        let address = format!("sqlite:{}", options.get_filename().display());
        let writer_lock = WriterLock::new(config.connection_timeout);
        Ok(Self { options, address, writer_lock, closing: Arc::default() })
    }
}

/// The options by which connections to a database file are opened.
///
/// # Errors
///
/// If the url cannot be parsed, or names no file.
pub fn file_options(config: &DataSourceConfig) -> Result<SqliteConnectOptions, DbError> {
    if config.url.contains(":memory:") || config.url.contains("mode=memory") {
        return Err(DbError::new(
            DbErrorKind::Other,
            format!(
                "`{}` would be a separate, empty database for every connection of the pool; name a file, as in `sqlite:wallet.db`",
                config.shown_url()
            ),
        ));
    }
    let options = SqliteConnectOptions::from_str(&config.url).map_err(|e| {
        DbError::new(DbErrorKind::Other, format!("`{}` is not understood: {e}", config.shown_url()))
    })?;
    Ok(options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(match config.durability {
            Durability::Full => SqliteSynchronous::Full,
            Durability::Wal => SqliteSynchronous::Normal,
        })
        .busy_timeout(config.connection_timeout.min(LONGEST_TIMEOUT))
        .foreign_keys(true)
        .statement_cache_capacity(1_000)
        .collation(DECIMAL, by_value)
        .disable_statement_logging())
}

fn by_value(left: &str, right: &str) -> std::cmp::Ordering {
    match (Decimal::from_str_exact(left), Decimal::from_str_exact(right)) {
        (Ok(left), Ok(right)) => left.cmp(&right),
        _ => left.cmp(right),
    }
}

#[async_trait]
impl Driver for SqliteDriver {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn syntax(&self) -> &dyn Syntax {
        &SqliteSyntax
    }

    async fn connect(&self, _: Route) -> Result<Box<dyn Connection>, DbError> {
        match sqlx::SqliteConnection::connect_with(&self.options).await {
            Ok(connection) => {
                let (writer_lock, closing) = (self.writer_lock.clone(), self.closing.clone());
                Ok(Box::new(SqliteConnection::new(connection, writer_lock, closing)))
            }
            // Not `Unavailable`: waiting does not help if a file cannot be opened.
            Err(error) => Err(DbError::new(
                DbErrorKind::Other,
                format!(
                    "{} cannot be opened: {error}; does its folder exist, and may it be written?",
                    self.address
                ),
            )
            .with_source(error)),
        }
    }

    fn address(&self) -> &str {
        &self.address
    }
}
