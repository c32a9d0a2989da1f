//! Deleting rows of keys that nobody has used for long, [slice by slice](crate::backends::cleaning).
//!
//! Invariants: a row is deleted only if its key is free and its token is older than [`CleaningSlices::KEPT`]. A
//! new row begins with the clock's milliseconds, so tokens grow unless the server's clock was
//! set back by more than that.

use super::connection::{StatementResult, value};
use super::sql::{MILLIS, text, texts};
use crate::BackendError;
use crate::backends::cleaning::CleaningSlices;

/// Deletes old rows of one table.
pub(super) struct RowCleaner {
    table: String,
    old: String,
    slices: CleaningSlices,
}

impl RowCleaner {
    /// `is_free` is the condition for a row whose key is free.
    pub(super) fn new(table: &str, is_free: &str) -> Self {
        let old = format!("token < {MILLIS} - {} AND {is_free}", CleaningSlices::KEPT.as_millis());
        Self { table: table.to_owned(), old, slices: CleaningSlices::default() }
    }

    /// Counts a release.
    pub(super) fn released(&self, key: &str) {
        self.slices.released(key);
    }

    /// Selects the next slice, if one is due.
    pub(super) fn next_slice(&self) -> Option<String> {
        let after = text(&self.slices.next()?);
        let (old, table) = (&self.old, &self.table);
        Some(format!(
            "SELECT lock_key, {old} FROM {table} WHERE lock_key > {after} \
             ORDER BY lock_key LIMIT {}",
            CleaningSlices::ROWS
        ))
    }

    /// Deletes the old rows of the slice, if it has any. Rows that have changed since stay.
    pub(super) fn deletion(&self, slice: &[StatementResult]) -> Option<String> {
        let rows = || slice.iter().flat_map(|set| &set.rows);
        let read = || -> Result<Vec<(String, bool)>, BackendError> {
            rows().map(|row| Ok((value(row, 0)?, value(row, 1)?))).collect()
        };
        let rows = read().unwrap_or_default();
        self.slices.looked_at(rows.len(), rows.last().map(|(key, _)| key.clone()));
        let old: Vec<String> =
            rows.into_iter().filter(|(_, old)| *old).map(|(key, _)| key).collect();
        (!old.is_empty()).then(|| {
            let (table, keys) = (&self.table, texts(old));
            format!("DELETE FROM {table} WHERE lock_key IN ({keys}) AND {}", self.old)
        })
    }
}
