//! Columns of the lock table.

use std::time::Duration;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::BackendError;

pub(super) fn duration(row: &SqliteRow, column: usize) -> Result<Duration, BackendError> {
    Ok(Duration::from_millis(u64::try_from(get::<i64>(row, column)?).unwrap_or_default()))
}

/// A column of the lock table. Its type can be wrong, as SQLite does not enforce types.
pub(super) fn get<'r, T>(row: &'r SqliteRow, column: usize) -> Result<T, BackendError>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(column).map_err(|error| BackendError::caused("eventlog_lock_leases", error))
}
