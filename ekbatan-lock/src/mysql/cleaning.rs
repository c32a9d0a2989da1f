//! Deleting rows of keys that nobody has used for long.
//!
//! A process looks at a slice of the table after its first release and then after every
//! [`RELEASES`]th, so that the work keeps step with the keys that are used, and an idle process
//! does none. The number of rows stays within about four thirds of the keys of a day.
//!
//! Invariants: a row is deleted only if its key is free and its token is older than [`KEPT`]. A
//! new row begins with the clock's milliseconds, so tokens grow unless the server's clock was
//! set back by more than that.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::connection::{StatementResult, value};
use super::sql::{MILLIS, text, texts};
use crate::BackendError;

/// How long the row of a key that is free is kept.
const KEPT: Duration = Duration::from_secs(86_400);

/// Number of releases of this process for each slice.
const RELEASES: u64 = 256;

/// Number of rows of a slice.
const SLICE: usize = 1_000;

/// Deletes old rows of one table, slice by slice in the order of their keys.
pub(super) struct RowCleaner {
    table: String,
    old: String,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    releases: u64,
    /// The last key of the slice before.
    after: String,
    due: bool,
}

impl RowCleaner {
    /// `is_free` is the condition for a row whose key is free.
    pub(super) fn new(table: &str, is_free: &str) -> Self {
        let old = format!("token < {MILLIS} - {} AND {is_free}", KEPT.as_millis());
        Self { table: table.to_owned(), old, progress: Mutex::default() }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a release.
    pub(super) fn released(&self, key: &str) {
        let mut progress = self.progress();
        progress.due |= progress.releases.is_multiple_of(RELEASES);
        if progress.releases == 0 && fastrand::bool() {
            // Processes that end soon begin in different places.
            progress.after = key.to_owned();
        }
        progress.releases += 1;
    }

    /// Selects the next slice, if one is due.
    pub(super) fn next_slice(&self) -> Option<String> {
        let mut progress = self.progress();
        std::mem::take(&mut progress.due).then(|| {
            format!(
                "SELECT lock_key, {} FROM {} WHERE lock_key > {} ORDER BY lock_key LIMIT {SLICE}",
                self.old,
                self.table,
                text(&progress.after)
            )
        })
    }

    /// Deletes the old rows of the slice, if it has any. Rows that have changed since stay.
    pub(super) fn deletion(&self, slice: &[StatementResult]) -> Option<String> {
        let rows = || slice.iter().flat_map(|set| &set.rows);
        let read = || -> Result<Vec<(String, bool)>, BackendError> {
            rows().map(|row| Ok((value(row, 0)?, value(row, 1)?))).collect()
        };
        let rows = read().unwrap_or_default();
        let is_last = rows.len() < SLICE;
        let last = rows.last().filter(|_| !is_last).map(|(key, _)| key.clone());
        self.progress().after = last.unwrap_or_default();
        let old: Vec<String> =
            rows.into_iter().filter(|(_, old)| *old).map(|(key, _)| key).collect();
        (!old.is_empty()).then(|| {
            let (table, keys) = (&self.table, texts(old));
            format!("DELETE FROM {table} WHERE lock_key IN ({keys}) AND {}", self.old)
        })
    }
}
