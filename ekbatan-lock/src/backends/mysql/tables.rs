//! The tables of the strategies.
//!
//! Invariants: several processes can create the tables at the same time. If the tables exist,
//! only the right to use them is needed.

use super::connection::value;
use super::error::MySqlLocksError;
use super::pool::MySqlLockPool;
use super::sql::{name, text};
use crate::BackendError;

/// The table of one strategy.
pub(super) struct MySqlTable {
    table: &'static str,
    columns: &'static str,
}

/// One row per key that was leased within the last day, or is leased.
pub(super) const LEASES: MySqlTable = MySqlTable {
    table: "lock_leases",
    columns: "owner binary(16) NOT NULL, \
         holder text NOT NULL, \
         token bigint NOT NULL, \
         since datetime(6) NOT NULL, \
         until datetime(6) NOT NULL, \
         wanted_by binary(16) NOT NULL, \
         wanted_until datetime(6) NOT NULL",
};

/// One row per key that was locked within the last day, or is locked: its token, and the session
/// that had it last.
/// `IS_USED_LOCK(lock_name)` tells whether that session still has it.
pub(super) const SESSIONS: MySqlTable = MySqlTable {
    table: "lock_sessions",
    columns: "lock_name varchar(64) NOT NULL, \
         session bigint unsigned NOT NULL, \
         holder text NOT NULL, \
         token bigint NOT NULL, \
         since datetime(6) NOT NULL, \
         wanted_by binary(16) NOT NULL, \
         wanted_until datetime(6) NOT NULL",
};

/// The qualified name of the table.
pub(super) fn full_name(eventlog: &str, needs: &MySqlTable) -> String {
    format!("{}.{}", name(eventlog), needs.table)
}

/// Creates the table if it does not exist.
pub(super) async fn create(
    pool: &MySqlLockPool,
    eventlog: &str,
    needs: &MySqlTable,
) -> Result<(), MySqlLocksError> {
    let there = format!(
        "SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = {} AND table_name = {}",
        text(eventlog),
        text(needs.table)
    );
    let mut connection = pool.connection().await?;
    let found =
        connection.run("looking for the lock table", &there).await.map_err(BackendError::from)?;
    if let Some(row) = found.first().and_then(|set| set.rows.first())
        && value::<i64>(row, 0)? > 0
    {
        return Ok(());
    }
    let table = full_name(eventlog, needs);
    let script = format!(
        "CREATE DATABASE IF NOT EXISTS {}; \
         CREATE TABLE IF NOT EXISTS {table} (lock_key varchar(255) NOT NULL PRIMARY KEY, {}) \
         ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {}",
        name(eventlog),
        needs.columns,
        connection.server.variant.collation()
    );
    let what = format!(
        "{table} is not there and cannot be created; GRANT ALL ON {}.* TO this user, or name \
         another database with `MySqlLocks::eventlog`",
        name(eventlog)
    );
    connection.run(&what, &script).await.map_err(BackendError::from)?;
    Ok(())
}
