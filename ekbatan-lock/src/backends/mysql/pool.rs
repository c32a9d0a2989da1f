//! The pool, for statements that take one round trip and leave no state in their session.
//!
//! Invariant: a connection whose caller was dropped in the middle of an answer, or whose server
//! did not answer, is not used again.

use std::sync::Arc;
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{self, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult};
use ekbatan_core::config::DataSourceConfig;

use super::connection::{MySqlConnector, MySqlLockConnection, StatementResult};
use super::error::{DEADLOCK_TRIES, MySqlLocksError};
use crate::{BackendError, FailureKind};

/// Idle time after which a connection is checked before it is used.
const CHECK_AFTER: Duration = Duration::from_secs(30);

pub(super) struct MySqlLockManager {
    connector: Arc<MySqlConnector>,
}

impl managed::Manager for MySqlLockManager {
    type Type = MySqlLockConnection;
    type Error = MySqlLocksError;

    async fn create(&self) -> Result<MySqlLockConnection, MySqlLocksError> {
        self.connector.open(None).await
    }

    async fn recycle(
        &self,
        connection: &mut MySqlLockConnection,
        _: &Metrics,
    ) -> RecycleResult<MySqlLocksError> {
        if !connection.is_reusable() {
            return Err(RecycleError::message(
                "an answer was not read to its end, or the runtime of the connection has ended",
            ));
        }
        if connection.idle_for() >= CHECK_AFTER {
            connection
                .run("checking a connection", "DO 1")
                .await
                .map_err(|failure| RecycleError::Backend(BackendError::from(failure).into()))?;
        }
        Ok(())
    }
}

#[derive(Clone)]
pub(super) struct MySqlLockPool {
    pool: Pool<MySqlLockManager>,
    answer: Duration,
}

impl MySqlLockPool {
    pub(super) fn new(
        connector: Arc<MySqlConnector>,
        config: &DataSourceConfig,
    ) -> Result<Self, MySqlLocksError> {
        let answer = connector.answer;
        let pool = Pool::builder(MySqlLockManager { connector })
            .max_size(config.maximum_pool_size.max(1))
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(config.connection_timeout))
            .create_timeout(Some(answer.min(config.connection_timeout)))
            .recycle_timeout(Some(answer))
            .build();
        let pool = pool.map_err(|error| BackendError::caused("the lock pool", error))?;
        Ok(Self { pool, answer })
    }

    /// Maximum time for the server to answer.
    pub(super) fn answer(&self) -> Duration {
        self.answer
    }

    pub(super) async fn connection(&self) -> Result<Object<MySqlLockManager>, MySqlLocksError> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => error,
            other => BackendError::caused("no connection to the lock database", other)
                .of_kind(FailureKind::Unavailable)
                .into(),
        })
    }

    /// Runs several statements in one round trip.
    pub(super) async fn run(
        &self,
        what: &str,
        sql: &str,
    ) -> Result<Vec<StatementResult>, BackendError> {
        Self::run_over(self.usable().await?, what, sql).await
    }

    /// A connection, once the locks are open.
    pub(super) async fn usable(&self) -> Result<Object<MySqlLockManager>, BackendError> {
        self.connection().await.map_err(MySqlLocksError::of_connection)
    }

    /// The same as [`run`](Self::run) over a connection.
    pub(super) async fn run_over(
        mut connection: Object<MySqlLockManager>,
        what: &str,
        sql: &str,
    ) -> Result<Vec<StatementResult>, BackendError> {
        let mut tries = 1;
        loop {
            match connection.run(what, sql).await {
                Err(failure) if failure.is_deadlock() && tries < DEADLOCK_TRIES => tries += 1,
                answer => return answer.map_err(BackendError::from),
            }
        }
    }
}
