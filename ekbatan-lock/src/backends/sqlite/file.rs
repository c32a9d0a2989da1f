//! The one connection to the file. Each statement is a transaction of its own.
//!
//! Invariant: a statement that finds the file locked by another writer waits without blocking
//! readers, and fails only after a long time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::{BackendError, FailureKind};

/// How long SQLite itself waits for another writer. The connection is blocked meanwhile.
const BUSY: Duration = Duration::from_millis(50);

/// Maximum time to wait for other writers. Callers have their own deadlines; this one is for
/// transactions that were never closed.
const MAX_BUSY: Duration = Duration::from_secs(30);

/// The connection, which is opened on first use.
#[derive(Clone)]
pub(super) struct LockFile {
    options: SqliteConnectOptions,
    connection: Arc<Mutex<Option<SqliteConnection>>>,
    releases: Arc<AtomicU64>,
}

/// A parameter of a statement.
#[derive(Clone, Copy)]
pub(super) enum SqliteValue<'v> {
    Text(&'v str),
    Int(i64),
}

impl LockFile {
    pub(super) fn new(options: SqliteConnectOptions) -> Self {
        // A grant does not wait for the disk: only a crash of the machine forgets it, and that
        // ends the holders, too.
        let options = options.busy_timeout(BUSY).synchronous(SqliteSynchronous::Normal);
        Self { options, connection: Arc::default(), releases: Arc::default() }
    }

    /// Notes that a key was released over this connection: SQLite reports to a connection only
    /// the writes of others.
    pub(super) fn note_release(&self) {
        self.releases.fetch_add(1, Ordering::SeqCst);
    }

    /// Number of releases over this connection.
    pub(super) fn releases(&self) -> u64 {
        self.releases.load(Ordering::SeqCst)
    }

    /// Runs one statement that returns one row or none. If the future is dropped, it is unknown
    /// whether the statement was executed, but no transaction stays open.
    pub(super) async fn row(
        &self,
        what: &str,
        sql: &'static str,
        values: &[SqliteValue<'_>],
    ) -> Result<Option<SqliteRow>, BackendError> {
        Ok(self.rows(what, sql, values).await?.pop())
    }

    /// Runs one statement, like [`row`](Self::row).
    pub(super) async fn rows(
        &self,
        what: &str,
        sql: &str,
        values: &[SqliteValue<'_>],
    ) -> Result<Vec<SqliteRow>, BackendError> {
        let until = Instant::now() + MAX_BUSY;
        loop {
            match self.once(sql, values).await {
                Ok(rows) => return Ok(rows),
                Err(error) if !is_busy(&error) => {
                    let kind = kind(&error);
                    return Err(BackendError::caused(what, error).of_kind(kind));
                }
                Err(_) if Instant::now() >= until => {
                    return Err(BackendError::unavailable(format!(
                        "{what}: another writer locked the file for {MAX_BUSY:?}; end its \
                         transaction, or keep the locks in a file of their own"
                    )));
                }
                // Jitter keeps processes from retrying in step.
                Err(_) => tokio::time::sleep(BUSY.mul_f64(0.1 + 0.4 * fastrand::f64())).await,
            }
        }
    }

    async fn once(
        &self,
        sql: &str,
        values: &[SqliteValue<'_>],
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        let mut open = self.connection.lock().await;
        let connection = match &mut *open {
            Some(connection) => connection,
            none => none.insert(self.options.connect().await?),
        };
        let query = sqlx::query(AssertSqlSafe(sql));
        let query = values.iter().fold(query, |query, value| match value {
            SqliteValue::Text(text) => query.bind((*text).to_owned()),
            SqliteValue::Int(number) => query.bind(*number),
        });
        // Fetch all rows: a statement commits only after its last one.
        match query.fetch_all(&mut *connection).await {
            Ok(rows) => Ok(rows),
            Err(error) => {
                if error.as_database_error().is_none()
                    && let Some(broken) = open.take()
                {
                    drop(broken.close_hard().await);
                }
                Err(error)
            }
        }
    }
}

/// An error that is not SQLite's own leaves open what became of the statement.
fn kind(error: &sqlx::Error) -> FailureKind {
    match error.as_database_error() {
        Some(_) => FailureKind::Refused,
        None => FailureKind::InDoubt,
    }
}

/// Whether another process had the file locked, or another connection of this process the
/// table.
fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<u32>().ok());
    code.is_some_and(|code| matches!(code & 0xff, 5 | 6))
}

impl fmt::Debug for LockFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockFile").field("path", &self.options.get_filename()).finish()
    }
}
