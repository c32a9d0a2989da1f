//! Locks in a SQLite file, which all processes of one machine can share.
//!
//! Invariants: there is one connection, however many leases and waiters there are. No
//! transaction is open between two statements. A database whose locks would exclude no other
//! process is rejected as far as its address shows.

/// Milliseconds since 1970, the same throughout a statement.
macro_rules! now {
    () => {
        "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)"
    };
}

mod cleaning;
mod columns;
mod file;
mod lease;
mod rows;

use ekbatan_core::__private::sqlite_options;
use ekbatan_core::config::{DataSourceConfig, Dialect};

use crate::{BackendError, LockBackend};
use file::LockFile;
use lease::SqliteLeases;

/// Error returned when locks in SQLite cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SqliteLocksError {
    /// The address cannot be used.
    #[error("the address of the lock file cannot be used: {0}")]
    Address(String),
    /// Locks in this database are not safe.
    #[error("locks are not safe here: {reason}")]
    #[non_exhaustive]
    Unsafe {
        /// The reason, and what to do.
        reason: String,
    },
    /// The file cannot be opened, read or written.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// One SQLite file that keeps locks, and the connection to it.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use ekbatan_lock::{LockProvider, SqliteLocks};
///
/// let file = SqliteLocks::connect("sqlite:shop.db").await?;
/// let locks = LockProvider::new(file.leases().await?, "eu");
/// # Ok(())
/// # }
/// ```
///
/// The file can be that of the data, or one for locks only, where no long transaction blocks
/// writes.
///
/// All processes have to run on one machine, with the file on a local disk. SQLite's own
/// locking does not work on network file systems, which cannot be detected here.
///
/// Times are those of the machine's clock, the only one that its processes share. If the clock
/// is set forward, leases end earlier in the file than their holders expect. If it is set back,
/// the keys of holders that died stay taken longer. Holders use a monotonic clock, so they
/// never hold longer than `max_hold`. A commit that is fenced by a lease is rejected once an
/// action of a successor has begun.
#[derive(Debug, Clone)]
pub struct SqliteLocks {
    file: LockFile,
}

impl SqliteLocks {
    /// Opens the file at `url`, such as `sqlite:shop.db`, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// The address is invalid or leads to no file, or locks in the database are not safe, for
    /// example because it is in memory.
    pub async fn connect(url: &str) -> Result<Self, SqliteLocksError> {
        Self::open(&DataSourceConfig::new(url)).await
    }

    /// Opens the file that a configuration names, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// Like [`SqliteLocks::connect`].
    pub async fn open(config: &DataSourceConfig) -> Result<Self, SqliteLocksError> {
        let url = config.url.as_str();
        if config.dialect() != Some(Dialect::Sqlite) {
            let shown = config.shown_url();
            let why = format!("`{shown}` is not an address of SQLite, such as `sqlite:shop.db`");
            return Err(SqliteLocksError::Address(why));
        }
        if let Some(reason) = why_unsafe(url) {
            return Err(SqliteLocksError::Unsafe { reason });
        }
        let options =
            sqlite_options(config).map_err(|error| SqliteLocksError::Address(error.to_string()))?;
        let file = LockFile::new(options);
        let on_disk = "SELECT 1 FROM pragma_database_list WHERE name = 'main' AND file <> ''";
        match file.row("opening the lock file", on_disk, &[]).await? {
            Some(_) => Ok(Self { file }),
            None => Err(SqliteLocksError::Unsafe { reason: memory(url) }),
        }
    }

    /// Leases as rows of the table `eventlog_lock_leases`, which is created if it does not exist.
    ///
    /// SQLite does not notify other processes of a released key. A process that waits for keys
    /// looks about every 20 ms whether another process has written the file, and reads it only
    /// then. Within one process the next waiter has the key at once.
    ///
    /// # Errors
    ///
    /// The table cannot be created.
    pub async fn leases(&self) -> Result<impl LockBackend + use<>, SqliteLocksError> {
        Ok(SqliteLeases::open(self.file.clone()).await?)
    }
}

/// Why locks at this address would exclude no other process, as far as the address shows.
fn why_unsafe(url: &str) -> Option<String> {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    // SQLite takes a name without a file for a temporary database.
    if path.contains(":memory:") || ["sqlite:", "sqlite://"].contains(&path) {
        return Some(memory(url));
    }
    query.split('&').find_map(|setting| match setting {
        "mode=memory" => Some(memory(url)),
        "mode=ro" | "immutable=1" | "immutable=true" => Some(format!(
            "with `{setting}` the file cannot be written, and leases are rows; remove it"
        )),
        "vfs=unix-none" => Some(format!(
            "with `{setting}` SQLite does not lock the file, so that processes would overwrite \
             each other's leases; remove it"
        )),
        _ => None,
    })
}

fn memory(url: &str) -> String {
    format!(
        "`{url}` is a database in memory, which no other process sees; name a file, as in \
         `sqlite:shop.db`, or use the in-process locks"
    )
}
