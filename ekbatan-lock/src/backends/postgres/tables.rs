//! The tables of the strategies, and the check that the server is not a replica.
//!
//! Invariants: several processes can create the tables at the same time. If the tables exist,
//! only the right to use them is needed.

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::error::{PostgresLocksError, failed};
use super::pool::{PostgresLockPool, TypedValue};
use super::{lease, settings};

/// Number of tries to create the tables. A concurrent creation by other means makes one of the
/// two fail.
const TRIES: usize = 5;

/// The tables of one strategy.
pub(super) struct PostgresTables {
    /// The tables and functions. A function that changes gets another name.
    names: &'static [&'static str],
    create: &'static str,
    functions: &'static str,
}

/// One row for each key that was leased lately.
pub(super) const LEASES: PostgresTables = PostgresTables {
    names: &[
        "eventlog.lock_leases",
        "eventlog.lease_hand_over",
        "eventlog.lease_take",
        "eventlog.lease_release",
        "eventlog.lease_give_up",
        "eventlog.lease_in_time",
        "eventlog.lease_force",
        "eventlog.lease_look_without_waiting",
    ],
    // `ALTER TABLE` waits until nobody reads the table, and later statements wait behind it. So it is
    // only sent if the table lacks a column.
    create: "CREATE TABLE IF NOT EXISTS eventlog.lock_leases ( \
         lock_key varchar(255) PRIMARY KEY, \
         owner uuid NOT NULL, \
         holder text NOT NULL, \
         token bigint NOT NULL, \
         since timestamptz NOT NULL, \
         until timestamptz NOT NULL, \
         wanted_until timestamptz NOT NULL, \
         waiters jsonb NOT NULL DEFAULT '[]' \
     ) WITH (fillfactor = 50); \
     DO $$ BEGIN \
         IF NOT EXISTS (SELECT FROM pg_attribute WHERE attname = 'waiters' \
             AND attrelid = 'eventlog.lock_leases'::regclass) \
         THEN ALTER TABLE eventlog.lock_leases ADD COLUMN waiters jsonb NOT NULL DEFAULT '[]'; \
         END IF; \
     END $$",
    functions: lease::FUNCTIONS,
};

/// The tokens of session locks, and the sessions that wait for keys. Losing the waiters in a
/// crash does no harm, so their table is not logged.
pub(super) const SESSIONS: PostgresTables = PostgresTables {
    names: &["eventlog.lock_tokens", "eventlog.lock_wanted"],
    create: "CREATE SEQUENCE IF NOT EXISTS eventlog.lock_tokens; \
     CREATE UNLOGGED TABLE IF NOT EXISTS eventlog.lock_wanted ( \
         lock_key varchar(255), \
         session uuid, \
         until timestamptz NOT NULL, \
         PRIMARY KEY (lock_key, session) \
     )",
    functions: "",
};

/// The primary does not see locks on a replica, and they are gone when it is promoted.
pub(super) async fn refuse_a_replica(pool: &PostgresLockPool) -> Result<(), PostgresLocksError> {
    let row = pool.row("checking for a replica", "SELECT pg_is_in_recovery()", &[]).await?;
    if row.is_some_and(|row| row.get(0)) { Err(replica()) } else { Ok(()) }
}

pub(super) fn replica() -> PostgresLocksError {
    PostgresLocksError::Unsafe {
        reason: "the server is a replica (pg_is_in_recovery() is true), whose locks exclude \
                 nobody on the primary; give the address of the primary"
            .to_owned(),
    }
}

/// Creates the tables that do not exist.
pub(super) async fn create(
    pool: &PostgresLockPool,
    needs: &PostgresTables,
) -> Result<(), PostgresLocksError> {
    let names = needs.names.join(" and ");
    let there = "SELECT bool_and(coalesce(to_regclass(name)::oid, to_regproc(name)::oid) IS NOT NULL) \
         FROM unnest($1::text[]) AS name";
    // Migrations of the eventlog take the same advisory lock, so the two do not collide. A migration
    // may take longer than other statements here may wait.
    let script = format!(
        "{}; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock(28545284254495086); \
         CREATE SCHEMA IF NOT EXISTS eventlog; {}; {} COMMIT",
        settings::BEGIN,
        needs.create,
        needs.functions
    );
    let values: [TypedValue<'_>; 1] = [(&needs.names, Type::TEXT_ARRAY)];
    let mut tries = 0;
    loop {
        let found = pool.row("looking for the lock tables", there, &values).await?;
        if found.is_some_and(|row| row.get(0)) {
            return Ok(());
        }
        let connection = pool.connection().await?;
        let Err(error) = connection.batch_execute(&script).await else { return Ok(()) };
        // The transaction of the failed script is still open.
        let _ = connection.batch_execute("ROLLBACK").await;
        tries += 1;
        let collisions =
            [SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_SCHEMA, SqlState::DUPLICATE_TABLE];
        if tries == TRIES || !error.code().is_some_and(|code| collisions.contains(code)) {
            let what = format!("{names} is not there and cannot be created");
            return Err(failed(&what, &error).into());
        }
    }
}
