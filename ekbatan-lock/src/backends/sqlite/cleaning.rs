//! Deleting rows of keys that nobody has used for long, [slice by slice](crate::backends::cleaning).
//!
//! Invariants: a row is deleted only if its key is free and its token is more than a day old. A
//! new row begins with the clock's milliseconds, so tokens grow unless the clock was set back by
//! more than a day.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::columns::get;
use super::file::{LockFile, SqliteValue};
use crate::BackendError;
use crate::backends::cleaning::{CleaningSlices, RELEASES};

/// The last row of the next slice.
const SLICE: &str = "\
    SELECT max(rowid) FROM \
        (SELECT rowid FROM eventlog_lock_leases WHERE rowid > $1 ORDER BY rowid LIMIT $2)";

const DELETE: &str = concat!(
    "DELETE FROM eventlog_lock_leases WHERE rowid > $1 AND rowid <= $2 AND token < ",
    now!(),
    " - $3 AND until <= ",
    now!()
);

/// Deletes old rows, slice by slice.
#[derive(Debug, Default)]
pub(super) struct RowCleaner {
    releases: AtomicU64,
    /// The last row of the slice before.
    after: AtomicI64,
}

impl RowCleaner {
    /// Counts a release. Returns `true` if a slice is due.
    pub(super) fn released(&self) -> bool {
        self.releases.fetch_add(1, Ordering::Relaxed).is_multiple_of(RELEASES)
    }

    pub(super) async fn clean(&self, file: &LockFile) -> Result<(), BackendError> {
        let rows = i64::try_from(CleaningSlices::ROWS).unwrap_or(i64::MAX);
        let after = SqliteValue::Int(self.after.load(Ordering::Relaxed));
        let row =
            file.row("looking for old leases", SLICE, &[after, SqliteValue::Int(rows)]).await?;
        let last = row.map_or(Ok(None), |row| get::<Option<i64>>(&row, 0))?;
        self.after.store(last.unwrap_or_default(), Ordering::Relaxed);
        if let Some(last) = last {
            let kept = i64::try_from(CleaningSlices::KEPT.as_millis()).unwrap_or(i64::MAX);
            let values = [after, SqliteValue::Int(last), SqliteValue::Int(kept)];
            file.row("deleting old leases", DELETE, &values).await?;
        }
        Ok(())
    }
}
