//! The pool, for statements that take one round trip and need no session.
//!
//! Invariants: a statement is one transaction and leaves no state in its connection, so that
//! it works behind any pooler. A connection that does not answer is not used again.

use std::time::Duration;

use deadpool_postgres::{ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::address::PostgresAddress;
use super::error::{PostgresLocksError, failed};
use crate::BackendError;

/// Maximum time for the server to answer. No statement here waits for a lock.
pub(super) const ANSWER: Duration = Duration::from_secs(15);

/// Maximum time to wait for a connection.
const WAIT: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(super) struct PostgresLockPool {
    pool: Pool,
}

/// A value and its type, so that the driver need not ask the server for the type.
pub(super) type TypedValue<'a> = (&'a (dyn ToSql + Sync), Type);

impl PostgresLockPool {
    pub(super) fn new(
        server: &PostgresAddress,
        connections: usize,
    ) -> Result<Self, PostgresLocksError> {
        // Statements leave no state behind, so only check that the connection is open.
        let fast = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let pool = Pool::builder(server.manager(fast))
            .max_size(connections.max(1))
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(ANSWER))
            .build();
        let pool = pool.map_err(|error| BackendError::caused("the lock pool", error))?;
        Ok(Self { pool })
    }

    pub(super) async fn connection(&self) -> Result<Object, BackendError> {
        let connection = self.pool.get().await;
        connection.map_err(|error| match error {
            deadpool_postgres::PoolError::Backend(error) => {
                failed("no connection to the lock database", &error)
            }
            other => BackendError::caused("no connection to the lock database", other),
        })
    }

    /// Runs one statement that returns one row or none.
    pub(super) async fn row(
        &self,
        what: &'static str,
        sql: &str,
        values: &[TypedValue<'_>],
    ) -> Result<Option<Row>, BackendError> {
        let connection = self.connection().await?;
        match tokio::time::timeout(ANSWER, connection.query_typed_opt(sql, values)).await {
            Ok(answer) => answer.map_err(|error| failed(what, &error)),
            Err(_) => {
                drop(Object::take(connection));
                Err(BackendError::new(format!("{what}: no answer within {ANSWER:?}")))
            }
        }
    }
}
