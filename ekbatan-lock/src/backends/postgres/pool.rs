//! The pool, for statements that take one round trip and need no session.
//!
//! Invariants: a statement is one transaction, with the settings that locks rely on, whatever
//! the server's defaults are. It leaves no state in a connection behind a pooler. A connection
//! that does not answer, or whose server does not accept writes, is not used again. The same holds
//! if the caller is dropped before the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Hook, HookError, ManagerConfig, Object, Pool, PoolError, RecyclingMethod,
    Runtime,
};
use ekbatan_core::config::DataSourceConfig;
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::address::PostgresAddress;
use super::error::{PostgresLocksError, failed, is_of_a_replica, not_connected};
use super::{key_data, settings};
use crate::{BackendError, FailureKind};

/// Maximum time for the server to answer. No statement here waits for a key.
pub(super) const ANSWER: Duration = Duration::from_secs(15);

#[derive(Clone)]
pub(super) struct PostgresLockPool {
    pool: Pool,
    address: PostgresAddress,
    /// Whether a pooler may be in between, so that the settings of a session are not ours.
    pooled: Arc<AtomicBool>,
}

/// A value and its type, so that the driver need not ask the server for the type.
pub(super) type TypedValue<'a> = (&'a (dyn ToSql + Sync), Type);

impl PostgresLockPool {
    pub(super) fn new(
        server: &PostgresAddress,
        config: &DataSourceConfig,
    ) -> Result<Self, PostgresLocksError> {
        let pooled = Arc::new(AtomicBool::new(false));
        let (found, prepare) = (pooled.clone(), settings::of_a_session());
        let prepare: Arc<str> = prepare.into();
        let hook = Hook::async_fn(move |client, _| {
            let (found, prepare) = (found.clone(), prepare.clone());
            Box::pin(async move {
                match tokio::time::timeout(ANSWER, prepared(client, &prepare)).await {
                    Ok(Ok(true)) => Ok(()),
                    Ok(Ok(false)) => {
                        found.store(true, Ordering::Release);
                        Ok(())
                    }
                    Ok(Err(error)) => Err(HookError::Backend(error)),
                    Err(_) => Err(HookError::message(format!("no answer within {ANSWER:?}"))),
                }
            })
        });
        // Statements leave no state behind, so only check that the connection is open.
        let fast = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let pool = Pool::builder(server.manager(fast))
            .max_size(config.maximum_pool_size.max(1))
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(config.connection_timeout))
            .create_timeout(Some(ANSWER))
            .post_create(hook)
            .build();
        let pool = pool.map_err(|error| BackendError::caused("the lock pool", error))?;
        Ok(Self { pool, address: server.clone(), pooled })
    }

    pub(super) async fn connection(&self) -> Result<Object, BackendError> {
        let connection = self.pool.get().await;
        connection.map_err(|error| match error {
            PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
                not_connected(&error)
            }
            other => BackendError::caused("no connection to the lock database", other)
                .of_kind(FailureKind::Unavailable),
        })
    }

    /// Runs one statement that returns one row or none.
    pub(super) async fn row(
        &self,
        what: &'static str,
        sql: &str,
        values: &[TypedValue<'_>],
    ) -> Result<Option<Row>, BackendError> {
        Ok(self.rows(what, sql, values).await?.pop())
    }

    /// Runs one statement.
    pub(super) async fn rows(
        &self,
        what: &'static str,
        sql: &str,
        values: &[TypedValue<'_>],
    ) -> Result<Vec<Row>, BackendError> {
        Ok(self.timed_rows(what, sql, values).await?.1)
    }

    /// Runs one statement, and returns when it was sent as well.
    pub(super) async fn timed_rows(
        &self,
        what: &'static str,
        sql: &str,
        values: &[TypedValue<'_>],
    ) -> Result<(Instant, Vec<Row>), BackendError> {
        let connection = self.connection().await?;
        self.timed_rows_over(connection, what, sql, values, Late::Left).await
    }

    /// The same over a connection.
    pub(super) async fn timed_rows_over(
        &self,
        connection: Object,
        what: &'static str,
        sql: &str,
        values: &[TypedValue<'_>],
        late: Late,
    ) -> Result<(Instant, Vec<Row>), BackendError> {
        let sent = Instant::now();
        let mut owed = OwedAnswer(None);
        let client: &Object = owed.0.insert(connection);
        let answer = tokio::time::timeout(ANSWER, self.ask(client, sql, values)).await;
        // Goes back to the pool when it is dropped, unless it is taken out.
        let connection = owed.0.take();
        match answer {
            Ok(Ok(rows)) => Ok((sent, rows)),
            Ok(Err(error)) => {
                if is_of_a_replica(&error) {
                    drop(connection.map(Object::take));
                }
                Err(failed(what, &error))
            }
            Err(_) => {
                let connection = connection.map(Object::take);
                if let (Some(connection), Late::Cancelled) = (connection, late) {
                    self.cancel(connection);
                }
                Err(BackendError::in_doubt(format!("{what}: no answer within {ANSWER:?}")))
            }
        }
    }

    /// Closes a connection whose server owes an answer, and has the server cancel the statement:
    /// otherwise its process stays until the statement ends. Behind a pooler, the process may serve
    /// others by then.
    fn cancel(&self, connection: ClientWrapper) {
        if self.pooled.load(Ordering::Acquire) {
            return;
        }
        let address = self.address.clone();
        tokio::spawn(async move {
            let cancelling = address.cancel(connection.cancel_token());
            if let Ok(Err(error)) = tokio::time::timeout(ANSWER, cancelling).await {
                tracing::debug!(%error, "a statement that takes too long could not be cancelled");
            }
        });
    }

    /// Sends the statement; behind a pooler with its settings, in the same round trip.
    async fn ask(
        &self,
        client: &Client,
        sql: &str,
        values: &[TypedValue<'_>],
    ) -> Result<Vec<Row>, Error> {
        if !self.pooled.load(Ordering::Acquire) {
            return client.query_typed(sql, values).await;
        }
        // All are sent before the first answer, also if the caller is dropped then.
        let (begun, answer, committed) = tokio::join!(
            biased;
            client.batch_execute(settings::BEGIN),
            client.query_typed(sql, values),
            client.batch_execute("COMMIT"),
        );
        let rows = match (begun, answer) {
            // A standby refuses a transaction that writes as something that it cannot do, and the statement
            // because it is a standby.
            (Err(_), Err(error)) if is_of_a_replica(&error) => return Err(error),
            (Err(error), _) => return Err(error),
            (Ok(()), answer) => answer?,
        };
        committed?;
        Ok(rows)
    }
}

/// A connection that is closed if it is dropped in here: its server owes an answer, and nobody knows
/// whether it comes. The next statement would wait for it.
struct OwedAnswer(Option<Object>);

impl Drop for OwedAnswer {
    fn drop(&mut self) {
        drop(self.0.take().map(Object::take));
    }
}

/// What becomes of a statement that has no answer in time. Its connection is closed in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Late {
    /// The pool has the server cancel the statement.
    Cancelled,
    /// The server carries the statement out some time. If that waits for a standby, a cancellation
    /// would publish what the standby does not have.
    Left,
}

/// Prepares a new connection to the server itself. Returns `false` if a pooler may be in
/// between, whose connections keep settings for other clients.
async fn prepared(client: &Client, settings: &str) -> Result<bool, Error> {
    let direct = key_data::is_direct(client).await?;
    if direct {
        client.batch_execute(settings).await?;
    }
    Ok(direct)
}
