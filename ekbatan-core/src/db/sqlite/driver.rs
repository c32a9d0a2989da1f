//! Opens connections to a database file.

use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection as _};
use tokio::sync::Mutex;

use super::connection::SqliteConnection;
use super::doorbell::SqliteDoorbell;
use super::library::{KEPT_STATEMENTS, Library, LibraryOptions};
use super::library_thread::LibraryThread;
use super::pace::CallerThreadPace;
use super::syntax::{DECIMAL, SqliteSyntax, by_value};
use super::writer_lock::WriterLock;
use crate::config::{DataSourceConfig, Durability, LONGEST_TIMEOUT};
use crate::db::doorbell_session::DoorbellSession;
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
    options: Arc<SqliteConnectOptions>,
    library: LibraryOptions,
    durability: Durability,
    address: String,
    writer_lock: WriterLock,
    closing: Arc<Mutex<()>>,
}

impl SqliteDriver {
    pub(crate) fn new(config: &DataSourceConfig) -> Result<Self, DbError> {
        let options = file_options(config)?;
        let address = format!("sqlite:{}", options.get_filename().display());
        let writer_lock = WriterLock::new(config.connection_timeout);
        let library = library_options(config, &options)?;
        let durability = config.durability;
        let (options, closing) = (Arc::new(options), Arc::default());
        Ok(Self { options, library, durability, address, writer_lock, closing })
    }

    async fn open_library(&self) -> Result<Library, DbError> {
        let options = self.library.clone();
        let opening = LibraryThread::start()?;
        let opened = opening.run(move || Library::open(&options)).await?;
        opened.map_err(|error| self.not_opened(error))
    }

    /// Not `Unavailable`: waiting does not help if a file cannot be opened.
    fn not_opened(&self, error: impl std::error::Error + Send + Sync + 'static) -> DbError {
        let place = if self.library.creates { "its folder" } else { "the file" };
        let address = &self.address;
        let message = format!(
            "{address} cannot be opened: {error}; does {place} exist, and may it be written?"
        );
        DbError::new(DbErrorKind::Other, message).with_source(error)
    }
}

/// How the library opens the file that sqlx opens with `options`.
fn library_options(
    config: &DataSourceConfig,
    options: &SqliteConnectOptions,
) -> Result<LibraryOptions, DbError> {
    let path = options.get_filename().to_str().ok_or_else(|| {
        DbError::new(DbErrorKind::Other, format!("`{}` is not UTF-8", config.shown_url()))
    })?;
    let (read_only, others): (Vec<&str>, Vec<&str>) =
        parameters(config).partition(|pair| *pair == "mode=ro");
    let others: Vec<&str> = others.into_iter().filter(|pair| !pair.starts_with("mode=")).collect();
    let name = if others.is_empty() {
        path.to_owned()
    } else {
        let path = path.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
        format!("file:{path}?{}", others.join("&"))
    };
    Ok(LibraryOptions {
        name,
        read_only: !read_only.is_empty(),
        creates: creates(config),
        synchronous: match config.durability {
            Durability::Full => "FULL",
            Durability::Wal => "NORMAL",
        },
        busy_timeout: config.connection_timeout.min(LONGEST_TIMEOUT),
    })
}

/// Whether a file that does not exist is created.
fn creates(config: &DataSourceConfig) -> bool {
    !parameters(config).any(|pair| matches!(pair, "mode=rw" | "mode=ro"))
}

/// The parameters of the url, each with its value.
fn parameters(config: &DataSourceConfig) -> impl Iterator<Item = &str> {
    let parameters = config.url.split_once('?').map_or("", |(_, parameters)| parameters);
    parameters.split('&').filter(|pair| !pair.is_empty())
}

/// The options by which connections to a database file are opened.
///
/// # Errors
///
/// If the url cannot be parsed, or names no file.
pub fn file_options(config: &DataSourceConfig) -> Result<SqliteConnectOptions, DbError> {
    let no_file = || {
        DbError::new(
            DbErrorKind::Other,
            format!(
                "`{}` would be a separate, empty database for every connection of the pool; name a file, as in `sqlite:wallet.db`",
                config.shown_url()
            ),
        )
    };
    if config.url.contains(":memory:") || config.url.contains("mode=memory") {
        return Err(no_file());
    }
    let options = SqliteConnectOptions::from_str(&config.url).map_err(|e| {
        DbError::new(DbErrorKind::Other, format!("`{}` is not understood: {e}", config.shown_url()))
    })?;
    // SQLite takes a name without a file for a temporary database.
    if matches!(options.get_filename().to_str(), Some("" | "file:" | "file://")) {
        return Err(no_file());
    }
    Ok(options
        .create_if_missing(creates(config))
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(match config.durability {
            Durability::Full => SqliteSynchronous::Full,
            Durability::Wal => SqliteSynchronous::Normal,
        })
        .busy_timeout(config.connection_timeout.min(LONGEST_TIMEOUT))
        .foreign_keys(true)
        .statement_cache_capacity(KEPT_STATEMENTS)
        .collation(DECIMAL, by_value)
        .disable_statement_logging())
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
            Ok(inner) => {
                let library = self.open_library().await?;
                let pace = CallerThreadPace::new(self.durability == Durability::Full);
                let (writer_lock, closing) = (self.writer_lock.clone(), self.closing.clone());
                let options = self.options.clone();
                Ok(Box::new(SqliteConnection::new(
                    library,
                    pace,
                    inner,
                    options,
                    writer_lock,
                    closing,
                )))
            }
            Err(error) => Err(self.not_opened(error)),
        }
    }

    async fn doorbell(&self, listens: bool) -> Result<Option<Box<dyn DoorbellSession>>, DbError> {
        if !listens {
            return Ok(None);
        }
        Ok(Some(Box::new(SqliteDoorbell::new(self.open_library().await?)?)))
    }

    fn address(&self) -> &str {
        &self.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_opens_what_sqlx_opens() {
        let opened = |url: &str| {
            let config = DataSourceConfig::new(url);
            let options = library_options(&config, &file_options(&config).unwrap()).unwrap();
            let creates = !url.contains("mode=rw&") && !url.contains("mode=ro");
            assert_eq!(options.creates, creates, "{url}");
            (options.name, options.read_only)
        };
        assert_eq!(opened("sqlite:a.db"), ("a.db".to_owned(), false));
        assert_eq!(opened("sqlite:///a%20b.db?mode=rwc"), ("/a b.db".to_owned(), false));
        assert_eq!(opened("sqlite:a.db?mode=ro"), ("a.db".to_owned(), true));
        assert_eq!(opened("sqlite:a.db?mode=rw&"), ("a.db".to_owned(), false));
        let with_others = opened("sqlite:a%23b.db?immutable=true&mode=ro&vfs=unix-dotfile");
        let name = "file:a%23b.db?immutable=true&vfs=unix-dotfile";
        assert_eq!(with_others, (name.to_owned(), true));
    }
}
