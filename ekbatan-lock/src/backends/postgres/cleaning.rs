//! Deleting rows of leases that nobody has used for long, [slice by slice](crate::backends::cleaning).
//!
//! Invariants: a row is deleted only if its key is free, nobody waits for it, and its token is
//! more than a day old. A new row begins with the clock's milliseconds, so tokens grow unless the
//! server's clock was set back by more than that. A deletion waits for no row.

use tokio_postgres::types::Type;

use super::pool::PostgresLockPool;
use crate::BackendError;
use crate::backends::cleaning::CleaningSlices;

/// Deletes the old rows of a slice. Returns its number of rows, and its last key.
const CLEAN: &str = "\
    WITH slice AS (SELECT lock_key FROM eventlog.lock_leases \
            WHERE lock_key > $1 ORDER BY lock_key LIMIT $2), \
        old AS (SELECT l.lock_key FROM eventlog.lock_leases l JOIN slice USING (lock_key) \
            WHERE l.token < eventlog.lease_micros(clock_timestamp()) / 1000 - $3 \
                AND l.until <= clock_timestamp() AND l.waiters = '[]' \
            FOR UPDATE OF l SKIP LOCKED), \
        gone AS (DELETE FROM eventlog.lock_leases l USING old WHERE l.lock_key = old.lock_key) \
    SELECT count(*), max(lock_key) FROM slice";

/// Deletes old rows.
#[derive(Default)]
pub(super) struct RowCleaner {
    slices: CleaningSlices,
}

impl RowCleaner {
    /// Counts the release of a key. Returns the next slice if it is due.
    pub(super) fn slice_after(&self, released: &str) -> Option<String> {
        self.slices.released(released);
        self.slices.next()
    }

    /// Deletes the old rows of the slice after this key.
    pub(super) async fn clean(
        &self,
        after: String,
        pool: &PostgresLockPool,
    ) -> Result<(), BackendError> {
        let (slice, kept) = (CleaningSlices::ROWS as i64, CleaningSlices::KEPT.as_millis() as i64);
        let values =
            [(&after as _, Type::TEXT), (&slice as _, Type::INT8), (&kept as _, Type::INT8)];
        if let Some(row) = pool.row("deleting old leases", CLEAN, &values).await? {
            let rows = usize::try_from(row.get::<_, i64>(0)).unwrap_or_default();
            self.slices.looked_at(rows, row.get(1));
        }
        Ok(())
    }
}
