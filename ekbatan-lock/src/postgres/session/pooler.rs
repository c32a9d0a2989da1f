//! Detects a pooler that assigns server processes by the transaction. Behind it, a lock would
//! stay with a server process that the next statement does not reach.
//!
//! The check fails if one server process serves two connections at the same time, or two
//! processes serve one connection. A pooler that pins a process to a client is safe, and the
//! check passes.

use std::sync::Arc;

use deadpool_postgres::Object;
use tokio_postgres::{Client, Error};

use crate::BackendError;
use crate::postgres::address::PostgresAddress;
use crate::postgres::error::{PostgresLocksError, failed};
use crate::postgres::notify_connection::NotifyConnection;
use crate::postgres::pool::{ANSWER, PostgresLockPool};

/// Number of checks.
const CHECKS: usize = 3;

pub(super) async fn refuse(
    server: &PostgresAddress,
    pool: &PostgresLockPool,
) -> Result<(), PostgresLocksError> {
    let probe = NotifyConnection::connect(server, Arc::default()).await?;
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

const REASON: &str = "a connection to this database is not a session of its own: there is a \
    pooler in between that shares server processes by the transaction, with which session locks \
    get lost; give the server's own address, or use leases (`PostgresLocks::leases`)";

async fn pid(client: &Client) -> Result<i32, Error> {
    Ok(client.query_typed_one("SELECT pg_backend_pid()", &[]).await?.get(0))
}
