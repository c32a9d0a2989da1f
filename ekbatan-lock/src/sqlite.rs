//! Locks in a SQLite file, which all processes of one machine may share.
//!
//! What always holds: one connection, whatever the number of leases and of those who wait; no
//! transaction is open between two statements; and no file is used of which it can be seen
//! that its locks would exclude nobody.

mod file;
mod lease;

use ekbatan_core::__private::sqlite_options;
use ekbatan_core::config::{DataSourceConfig, Dialect};

pub use lease::SqliteLeaseBackend;

use crate::BackendError;
use file::LockFile;

/// Locks in SQLite that could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SqliteLocksError {
    /// The address cannot be used.
    #[error("the address of the lock file cannot be used: {0}")]
    Address(String),
    /// There is a database, on which this provider cannot keep its promise.
    #[error("locks are refused here: {reason}")]
    Unsafe {
        /// Why, and what to do.
        reason: String,
    },
    /// The file could not be opened, read or written.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// One SQLite file whose locks are used, and the connection to it.
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
/// The file may be that of the data, or one for locks alone, which no long transaction keeps
/// from being written.
///
/// All processes have to be on one machine, with the file on a disk of it. Over a network file
/// system SQLite's own locking does not work, and nothing here can see that it is one.
///
/// Times are those of the machine's clock, the only one that its processes share. When it is
/// set forward, leases end earlier at the file than their holders believe; when it is set back,
/// the keys of holders that died stay taken for longer. Holders count by a clock that nobody
/// sets, so that they never hold for longer than they asked for, and a commit that is fenced by
/// a lease is refused once a successor's action has begun.
#[derive(Debug, Clone)]
pub struct SqliteLocks {
    file: LockFile,
}

impl SqliteLocks {
    /// Opens the file behind `url`, such as `sqlite:shop.db`, and creates it if it is not
    /// there.
    ///
    /// # Errors
    ///
    /// When the address is none, or leads to no file; or to a database on which locks are not
    /// safe, such as one in memory.
    pub async fn connect(url: &str) -> Result<Self, SqliteLocksError> {
        Self::open(&DataSourceConfig::new(url)).await
    }

    /// Opens the file that a configuration names, and creates it if it is not there.
    ///
    /// # Errors
    ///
    /// As [`SqliteLocks::connect`].
    pub async fn open(config: &DataSourceConfig) -> Result<Self, SqliteLocksError> {
        let url = config.url.as_str();
        if config.dialect() != Some(Dialect::Sqlite) {
            let shown = config.shown_url();
            let why = format!("`{shown}` is none of SQLite, such as `sqlite:shop.db`");
            return Err(SqliteLocksError::Address(why));
        }
        if let Some(reason) = excludes_nobody(url) {
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

    /// Leases as rows of a table, which is created when it is not there.
    ///
    /// # Errors
    ///
    /// When the table cannot be created.
    pub async fn leases(&self) -> Result<SqliteLeaseBackend, SqliteLocksError> {
        SqliteLeaseBackend::open(self.file.clone()).await.map_err(Into::into)
    }
}

/// Why locks at this address would exclude nobody, as far as the address tells.
fn excludes_nobody(url: &str) -> Option<String> {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    if path.contains(":memory:") {
        return Some(memory(url));
    }
    query.split('&').find_map(|setting| match setting {
        "mode=memory" => Some(memory(url)),
        "mode=ro" | "immutable=1" | "immutable=true" => Some(format!(
            "with `{setting}` the file is not written, and leases are rows; leave it out"
        )),
        "vfs=unix-none" => Some(format!(
            "with `{setting}` SQLite does not lock the file, so that processes would overwrite \
             each other's leases; leave it out"
        )),
        _ => None,
    })
}

fn memory(url: &str) -> String {
    format!(
        "`{url}` is a database in memory, which nobody else sees; name a file, as in \
         `sqlite:shop.db`, or use the in-process locks"
    )
}
