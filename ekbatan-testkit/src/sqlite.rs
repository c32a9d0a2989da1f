//! A SQLite database file for one test.
//!
//! Invariants: the file exists, as a valid empty database, when `new` returns. It is removed with
//! the handle, together with every file that SQLite creates next to it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A SQLite database, initially empty, in its own temporary folder.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let database = ekbatan_testkit::TempSqlite::new()?;
/// assert!(database.url().starts_with("sqlite:/"));
/// assert!(database.path().exists());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TempSqlite {
    path: PathBuf,
    _folder: TempDir,
}

impl TempSqlite {
    /// Creates an empty database.
    ///
    /// # Errors
    ///
    /// Fails if the temporary folder cannot be created or written to.
    pub fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("ekbatan-sqlite-").tempdir()?;
        let path = folder.path().join("db.sqlite");
        // For SQLite an empty file is an empty database. It opens without the option to create it.
        File::create(&path)?;
        Ok(Self { path, _folder: folder })
    }

    /// The URL of the database, such as `sqlite:/tmp/…/db.sqlite`.
    pub fn url(&self) -> String {
        // A client percent-decodes the path, and ends it at a `?`.
        let path = self.path.to_string_lossy();
        let path = path.replace('%', "%25").replace('?', "%3F");
        format!("sqlite:{path}")
    }

    /// The database file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
