//! Detects a pooler that assigns server processes by the transaction. Behind it, a lock would
//! stay with a server process that the next statement does not reach.
//!
//! Each session that is opened compares the process that it was told about with the one that
//! answers, and marks that process. A pooler tells clients about processes that do not exist. If
//! one passes on what the server said, two sessions that share a process find each other's
//! marks. A pooler that gives each client its own process is refused, too: nothing tells it
//! apart for certain.
//!
//! When a provider starts, two connections also look whether one process serves both.

use deadpool_postgres::Object;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error};

use crate::BackendError;
use crate::backends::postgres::address::PostgresAddress;
use crate::backends::postgres::error::{PostgresLocksError, failed};
use crate::backends::postgres::key_data;
use crate::backends::postgres::notify_connection::NotifyConnection;
use crate::backends::postgres::pool::{ANSWER, PostgresLockPool};

/// Number of checks.
const CHECKS: usize = 3;

/// Marks the process, unless another session has marked it.
const MARK: &str = "\
    SELECT pg_backend_pid(), \
        CASE WHEN pg_backend_pid() = $1 \
            AND coalesce(current_setting('ekbatan_lock.session', true), '') = '' \
        THEN set_config('ekbatan_lock.session', $2, false) END IS NOT NULL";

/// Why a session ends whose statement reached another process.
pub(super) const ANOTHER_PROCESS: &str = "another server process answered than that of the \
    session: there is a pooler in between that shares processes by the transaction, with which \
    session locks get lost; give the server's own address, or use leases \
    (`PostgresLocks::leases`)";

/// Marks the server process of a new session as its own.
pub(super) async fn own_process(client: &Client, mark: &str) -> Result<(), PostgresLocksError> {
    let named = key_data::named_process(client).await;
    let values: [(&(dyn ToSql + Sync), Type); 2] = [(&named, Type::INT4), (&mark, Type::TEXT)];
    let row = client.query_typed_one(MARK, &values).await;
    let row = row.map_err(|error| failed("looking for a pooler", &error))?;
    let (answers, marked): (i32, bool) = (row.get(0), row.get(1));
    if marked {
        return Ok(());
    }
    let seen = match named {
        Some(named) if named == answers => {
            format!("another lock session uses the server process {answers}, too")
        }
        Some(named) => {
            format!("the connection was promised server process {named}, and {answers} answers")
        }
        None => "the connection was promised no server process".to_owned(),
    };
    Err(PostgresLocksError::Unsafe { reason: format!("{seen}: {REASON}") })
}

pub(super) async fn refuse(
    server: &PostgresAddress,
    pool: &PostgresLockPool,
) -> Result<(), PostgresLocksError> {
    let probe = NotifyConnection::connect(server, |_| {}).await?;
    // Not returned to the pool: a cancelled check leaves a transaction open.
    let other = Object::take(pool.connection().await?);
    let look = async {
        let client = &probe.client;
        let process = pid(client).await?;
        client.batch_execute("SET search_path = ekbatan_session").await?;
        for _ in 0..CHECKS {
            // The process that a pooler had free a moment ago now serves the other connection.
            other.batch_execute("BEGIN").await?;
            if pid(&other).await? == process {
                other.batch_execute("ROLLBACK").await?;
                return Ok::<_, Error>(true);
            }
            let here = client
                .query_typed_one("SELECT pg_backend_pid(), current_setting('search_path')", &[])
                .await;
            other.batch_execute("ROLLBACK").await?;
            let here = here?;
            let kept = here.get::<_, String>(1) == "ekbatan_session";
            if here.get::<_, i32>(0) != process || !kept {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let timed = tokio::time::timeout(ANSWER, look).await;
    match timed {
        Ok(Ok(false)) => Ok(()),
        Ok(Ok(true)) => Err(PostgresLocksError::Unsafe { reason: REASON.to_owned() }),
        Ok(Err(error)) => Err(failed("looking for a pooler", &error).into()),
        Err(_) => Err(BackendError::new(
            "looking for a pooler: two connections were not served at the same time",
        )
        .into()),
    }
}

const REASON: &str = "a connection to this database is not known to be a session of its own: \
    there is a pooler in between, and with one that shares server processes by the transaction, \
    session locks get lost; give the server's own address, or use leases \
    (`PostgresLocks::leases`)";

async fn pid(client: &Client) -> Result<i32, Error> {
    Ok(client.query_typed_one("SELECT pg_backend_pid()", &[]).await?.get(0))
}
