//! The pool, and statements that take one trip and no session.
//!
//! What always holds: a statement is one transaction and leaves no trace in its connection,
//! so that it runs behind any pooler; a connection that does not answer is not used again.

use std::time::Duration;

use deadpool_postgres::{ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::address::Server;
use super::error::{PostgresLocksError, failed};
use crate::BackendError;

/// How long the server may take to answer; no statement here waits for anybody.
pub(super) const ANSWER: Duration = Duration::from_secs(15);

/// How long a statement may wait for its connection.
const WAIT: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(super) struct LockPool {
    pool: Pool,
}

/// A value and its type, so that the server need not be asked for it first.
pub(super) type Value<'a> = (&'a (dyn ToSql + Sync), Type);

impl LockPool {
    pub(super) fn new(server: &Server, connections: usize) -> Result<Self, PostgresLocksError> {
        // Whether it is closed is all there is to ask: a statement leaves nothing behind.
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

    /// Runs one statement that answers one row or none.
    pub(super) async fn row(
        &self,
        what: &'static str,
        sql: &str,
        values: &[Value<'_>],
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
