//! The one connection to the file, and statements that each are a transaction.
//!
//! What always holds: whoever finds the file being written waits without keeping others from
//! reading it, and fails only when it was so for very long.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::BackendError;

/// How long SQLite itself waits for another writer, in which time the connection serves nobody.
const BUSY: Duration = Duration::from_millis(50);

/// How long the file may be written by others without a gap. Callers have deadlines of their
/// own; this is for transactions that somebody forgot.
const PATIENCE: Duration = Duration::from_secs(30);

/// The connection, which is opened when it is needed.
#[derive(Clone)]
pub(super) struct LockFile {
    options: SqliteConnectOptions,
    connection: Arc<Mutex<Option<SqliteConnection>>>,
}

/// What a statement is given.
#[derive(Clone, Copy)]
pub(super) enum Value<'v> {
    Text(&'v str),
    Int(i64),
}

impl LockFile {
    pub(super) fn new(options: SqliteConnectOptions) -> Self {
        // A grant is not waited for on the disk: what forgets it is the end of the machine,
        // and with that its holders end, too.
        let options = options.busy_timeout(BUSY).synchronous(SqliteSynchronous::Normal);
        Self { options, connection: Arc::default() }
    }

    /// Runs one statement that answers one row or none. A future that is dropped leaves it
    /// open whether the statement was carried out, but no transaction.
    pub(super) async fn row(
        &self,
        what: &str,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> Result<Option<SqliteRow>, BackendError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.once(sql, values).await {
                Ok(row) => return Ok(row),
                Err(error) if !is_busy(&error) => return Err(BackendError::caused(what, error)),
                Err(_) if Instant::now() >= until => {
                    return Err(BackendError::new(format!(
                        "{what}: another writer kept the file for all of {PATIENCE:?}; end its \
                         transaction, or keep the locks in a file of their own"
                    )));
                }
                // Jitter keeps processes from trying in step.
                Err(_) => tokio::time::sleep(BUSY.mul_f64(0.1 + 0.4 * fastrand::f64())).await,
            }
        }
    }

    async fn once(
        &self,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> Result<Option<SqliteRow>, sqlx::Error> {
        let mut open = self.connection.lock().await;
        let connection = match &mut *open {
            Some(connection) => connection,
            none => none.insert(self.options.connect().await?),
        };
        let query = values.iter().fold(sqlx::query(sql), |query, value| match value {
            Value::Text(text) => query.bind((*text).to_owned()),
            Value::Int(number) => query.bind(*number),
        });
        // All rows, as a statement is over, and committed, only behind its last one.
        match query.fetch_all(&mut *connection).await {
            Ok(mut rows) => Ok(rows.pop()),
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

/// Whether the file was being written by somebody else, or the table by another connection of
/// this process.
fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<u32>().ok());
    code.is_some_and(|code| matches!(code & 0xff, 5 | 6))
}

impl fmt::Debug for LockFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockFile").field("path", &self.options.get_filename()).finish()
    }
}
