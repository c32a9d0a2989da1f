//! The settings that locks rely on, whatever the defaults of the server, the database and the
//! user are.

use super::address;
use super::error::PostgresLocksError;

/// Whether the server is a replica, and its version.
pub(super) const SERVER: &str =
    "SELECT pg_is_in_recovery(), current_setting('server_version_num')::int";

/// The first version that ends idle sessions.
const ENDS_IDLE_SESSIONS: i32 = 140_000;

/// Statements of locks change single rows: another change of the row is no error. Nothing else
/// than this crate bounds how long a statement takes, except that the server itself ends a wait for
/// a row or a table that somebody has locked. While it waits, it does not notice that this crate has
/// given the answer up and closed the connection, and it keeps the rows that the statement has
/// locked. Callers repeat a statement that failed so. Some settings exist on some versions only.
const RELIED_ON: &str = "\
    SELECT set_config(name, value, false) FROM (VALUES \
        ('default_transaction_isolation', 'read committed'), \
        ('default_transaction_read_only', 'off'), \
        ('default_transaction_deferrable', 'off'), \
        ('lock_timeout', '10000'), ('statement_timeout', '0'), ('transaction_timeout', '0'), \
        ('idle_session_timeout', '0')) AS relied_on (name, value) \
    JOIN pg_settings USING (name); \
    SELECT set_config('synchronous_commit', 'on', false) \
    WHERE current_setting('synchronous_commit') IN ('off', 'local')";

/// Begins a transaction with the settings, for connections whose settings belong to others.
pub(super) const BEGIN: &str = "\
    BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
    SET LOCAL lock_timeout = 10000; SET LOCAL statement_timeout = 0; \
    SELECT set_config('synchronous_commit', 'on', true) \
    WHERE current_setting('synchronous_commit') IN ('off', 'local')";

/// The statements that prepare a session of its own.
pub(super) fn of_a_session() -> String {
    format!("{} {RELIED_ON}", address::server_side())
}

/// Refuses a server on which the lock of a process that stands still would not end.
pub(super) fn refuse_without_idle_limit(version: i32) -> Result<(), PostgresLocksError> {
    if version >= ENDS_IDLE_SESSIONS {
        return Ok(());
    }
    Err(PostgresLocksError::Unsafe {
        reason: format!(
            "PostgreSQL {} does not end idle sessions, so that the session locks of a process \
             that stands still would never end; use PostgreSQL 14 or later, or leases \
             (`PostgresLocks::leases`)",
            version / 10_000
        ),
    })
}
