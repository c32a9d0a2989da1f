//! What the strategies keep in the database of the framework.
//!
//! What always holds: several processes may create it at once; where it is there already,
//! nothing but the right to use it is needed.

use super::error::MySqlLocksError;
use super::link::value;
use super::pool::LockPool;
use super::sql::{name, text};
use crate::BackendError;

/// What one strategy needs.
pub(super) struct Needs {
    table: &'static str,
    columns: &'static str,
}

/// A row per key that was ever leased. Rows are not deleted: tokens would begin anew.
pub(super) const LEASES: Needs = Needs {
    table: "lock_leases",
    columns: "owner binary(16) NOT NULL, \
         holder text NOT NULL, \
         token bigint NOT NULL, \
         since datetime(6) NOT NULL, \
         until datetime(6) NOT NULL, \
         wanted_by binary(16) NOT NULL, \
         wanted_until datetime(6) NOT NULL",
};

/// A row per key that was ever locked: its token, and which session had it last. Whether it
/// still has is for `IS_USED_LOCK(lock_name)` to say.
pub(super) const SESSIONS: Needs = Needs {
    table: "lock_sessions",
    columns: "lock_name varchar(64) NOT NULL, \
         session bigint unsigned NOT NULL, \
         holder text NOT NULL, \
         token bigint NOT NULL, \
         since datetime(6) NOT NULL, \
         wanted_by binary(16) NOT NULL, \
         wanted_until datetime(6) NOT NULL",
};

/// The table of one strategy, as statements name it.
pub(super) fn full_name(eventlog: &str, needs: &Needs) -> String {
    format!("{}.{}", name(eventlog), needs.table)
}

/// Creates what is needed and not there.
pub(super) async fn create(
    pool: &LockPool,
    eventlog: &str,
    needs: &Needs,
) -> Result<(), MySqlLocksError> {
    let there = format!(
        "SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = {} AND table_name = {}",
        text(eventlog),
        text(needs.table)
    );
    let mut link = pool.link().await?;
    let found = link.run("looking for the lock table", &there).await.map_err(BackendError::from)?;
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
        link.server.flavour.collation()
    );
    let what = format!(
        "{table} is not there and cannot be created; GRANT ALL ON {}.* TO this user, or name \
         another database with `MySqlLocks::eventlog`",
        name(eventlog)
    );
    link.run(&what, &script).await.map_err(BackendError::from)?;
    Ok(())
}
