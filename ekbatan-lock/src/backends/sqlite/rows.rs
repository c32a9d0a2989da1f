//! The rows of the keys that this process waits for, for its poller.
//!
//! Invariants: while nobody writes the file, nothing is read from it but the number of its
//! version, which SQLite keeps in shared memory. Once a second the marks of wanted keys are
//! renewed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tokio::time::Instant;

use super::columns::{duration, get};
use super::file::{LockFile, SqliteValue};
use crate::BackendError;
use crate::backends::key_poller::{KeyState, KeyStates};

/// Maximum number of keys in a statement.
const MOST: usize = 256;

/// Time between looks while nothing changes. The marks of wanted keys last twice as long.
const RENEWAL: Duration = Duration::from_secs(1);

pub(super) struct WaitedRows {
    file: LockFile,
    seen: Mutex<Option<Seen>>,
}

/// The file at the last look.
struct Seen {
    /// Changes with each write of another connection.
    version: i64,
    /// Changes with each release over this connection.
    releases: u64,
    at: Instant,
}

impl WaitedRows {
    pub(super) fn new(file: LockFile) -> Self {
        Self { file, seen: Mutex::default() }
    }

    async fn look_at(&self, keys: &[String]) -> Result<Vec<SqliteRow>, BackendError> {
        // Few lengths, so that SQLite keeps the prepared statements.
        let length = keys.len().next_power_of_two();
        let padding = keys.last().into_iter().cycle().take(length - keys.len());
        let values: Vec<SqliteValue<'_>> =
            keys.iter().chain(padding).map(|key| SqliteValue::Text(key)).collect();
        let parameters = vec!["?"; length].join(", ");
        let states = format!(
            "SELECT lock_key, token, until - {now}, wanted_until > {now} + 1000 \
             FROM eventlog_lock_leases WHERE lock_key IN ({parameters})",
            now = now!()
        );
        let rows = self.file.rows("looking for freed leases", &states, &values).await?;
        let unmarked = rows.iter().any(|row| {
            !row.try_get(3).unwrap_or(false) && row.try_get::<i64, _>(2).unwrap_or_default() > 0
        });
        if unmarked {
            let mark = format!(
                "UPDATE eventlog_lock_leases SET wanted_until = {now} + 2000 \
                 WHERE lock_key IN ({parameters}) AND until > {now} \
                     AND wanted_until <= {now} + 1000",
                now = now!()
            );
            self.file.rows("marking wanted leases", &mark, &values).await?;
        }
        Ok(rows)
    }
}

#[async_trait]
impl KeyStates for WaitedRows {
    async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
        let mut states = Vec::new();
        for keys in keys.chunks(MOST) {
            for row in self.look_at(keys).await? {
                states.push(KeyState {
                    key: get(&row, 0)?,
                    grant: get(&row, 1)?,
                    remaining: Some(duration(&row, 2)?),
                });
            }
        }
        Ok(states)
    }

    async fn changed(&self) -> Option<bool> {
        let row = self.file.row("looking at the lock file", "PRAGMA data_version", &[]).await;
        // A look then reports the error.
        let version = get(&row.ok()??, 0).ok()?;
        let now = Seen { version, releases: self.file.releases(), at: Instant::now() };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let same = seen.as_ref().is_some_and(|seen| {
            (seen.version, seen.releases) == (now.version, now.releases)
                && now.at < seen.at + RENEWAL
        });
        if !same {
            *seen = Some(now);
        }
        Some(!same)
    }
}
