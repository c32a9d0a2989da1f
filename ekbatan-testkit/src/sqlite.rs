//! A SQLite database file for one test.
//!
//! What always holds: the file exists, as a valid empty database, from the
//! moment the handle does, and it goes with the handle, together with every
//! file that SQLite puts next to it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// An empty SQLite database in a temporary folder of its own.
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
    /// When the temporary folder cannot be written to.
    pub fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("ekbatan-sqlite-").tempdir()?;
        let path = folder.path().join("db.sqlite");
        // To SQLite an empty file is an empty database, which opens without
        // having to ask for its creation.
        File::create(&path)?;
        Ok(Self { path, _folder: folder })
    }

    /// The address of the database, such as `sqlite:/tmp/…/db.sqlite`.
    pub fn url(&self) -> String {
        // The path is percent-decoded by whoever opens it, and ends at a `?`.
        let path = self.path.to_string_lossy();
        let path = path.replace('%', "%25").replace('?', "%3F");
        format!("sqlite:{path}")
    }

    /// The database file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
