//! What the strategies keep in the database, and whether it is one to keep it in.
//!
//! What always holds: several processes may create it at once; where it is there already,
//! nothing but the right to use it is needed.

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::error::{PostgresLocksError, failed};
use super::pool::LockPool;

/// How often creation is tried. Whoever creates the schema otherwise, at the same time, makes
/// one of them fail.
const TRIES: usize = 5;

/// What one strategy needs.
pub(super) struct Needs {
    names: &'static [&'static str],
    create: &'static str,
}

/// A row per key that was ever leased. Rows are not deleted: tokens would begin anew.
pub(super) const LEASES: Needs = Needs {
    names: &["eventlog.lock_leases"],
    create: "CREATE TABLE IF NOT EXISTS eventlog.lock_leases ( \
         lock_key varchar(255) PRIMARY KEY, \
         owner uuid NOT NULL, \
         holder text NOT NULL, \
         token bigint NOT NULL, \
         since timestamptz NOT NULL, \
         until timestamptz NOT NULL, \
         wanted_until timestamptz NOT NULL \
     ) WITH (fillfactor = 50)",
};

/// The tokens of session locks, and who waits for them. Of the latter nothing is missed if a
/// crash forgets it, so it is not logged.
pub(super) const SESSIONS: Needs = Needs {
    names: &["eventlog.lock_tokens", "eventlog.lock_wanted"],
    create: "CREATE SEQUENCE IF NOT EXISTS eventlog.lock_tokens; \
     CREATE UNLOGGED TABLE IF NOT EXISTS eventlog.lock_wanted ( \
         lock_key varchar(255), \
         session uuid, \
         until timestamptz NOT NULL, \
         PRIMARY KEY (lock_key, session) \
     )",
};

/// Locks on a replica would be seen by nobody, and be gone when it is promoted.
pub(super) async fn refuse_a_replica(pool: &LockPool) -> Result<(), PostgresLocksError> {
    let row = pool.row("whether it is a replica", "SELECT pg_is_in_recovery()", &[]).await?;
    match row.is_some_and(|row| row.get(0)) {
        true => Err(replica()),
        false => Ok(()),
    }
}

pub(super) fn replica() -> PostgresLocksError {
    PostgresLocksError::Unsafe {
        reason: "the server is a replica (pg_is_in_recovery() is true), whose locks exclude \
                 nobody on the primary; give the address of the primary"
            .to_owned(),
    }
}

/// Creates what is needed and not there.
pub(super) async fn create(pool: &LockPool, needs: &Needs) -> Result<(), PostgresLocksError> {
    let connection = pool.connection().await?;
    let names = needs.names.join(" and ");
    let there = "SELECT bool_and(to_regclass(name) IS NOT NULL) FROM unnest($1::text[]) AS name";
    // The number is the one that migrations of the eventlog take, so that these do not meet.
    let script = format!(
        "BEGIN; SELECT pg_advisory_xact_lock(28545284254495086); \
         CREATE SCHEMA IF NOT EXISTS eventlog; {}; COMMIT",
        needs.create
    );
    let mut tries = 0;
    loop {
        let found = connection.query_typed_opt(there, &[(&needs.names, Type::TEXT_ARRAY)]).await;
        let found = found.map_err(|error| failed("looking for the lock tables", &error))?;
        if found.is_some_and(|row| row.get(0)) {
            return Ok(());
        }
        let Err(error) = connection.batch_execute(&script).await else { return Ok(()) };
        // Of a script that failed, the transaction is still open.
        let _ = connection.batch_execute("ROLLBACK").await;
        tries += 1;
        let met =
            [SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_SCHEMA, SqlState::DUPLICATE_TABLE];
        if tries == TRIES || !error.code().is_some_and(|code| met.contains(code)) {
            let what = format!("{names} is not there and cannot be created");
            return Err(failed(&what, &error).into());
        }
    }
}
