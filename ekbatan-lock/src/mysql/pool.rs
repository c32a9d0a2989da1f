//! The pool, and statements that take one trip and leave nothing in their session.
//!
//! What always holds: a connection whose user was dropped in the middle of an answer, or whose
//! server did not answer, is not used again.

use std::sync::Arc;
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{self, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult};

use super::error::MySqlLocksError;
use super::link::{ANSWER, Link, Opener, Set};
use crate::BackendError;

/// How long a statement may wait for its connection.
const WAIT: Duration = Duration::from_secs(30);

/// After how much silence a connection is asked for a sign of life before it is used.
const SILENT: Duration = Duration::from_secs(30);

/// How often a statement is sent that met another one.
const TRIES: usize = 5;

pub(super) struct Manager {
    opener: Arc<Opener>,
}

impl managed::Manager for Manager {
    type Type = Link;
    type Error = MySqlLocksError;

    async fn create(&self) -> Result<Link, MySqlLocksError> {
        self.opener.open(None).await
    }

    async fn recycle(&self, link: &mut Link, _: &Metrics) -> RecycleResult<MySqlLocksError> {
        if !link.is_in_order() {
            return Err(RecycleError::message("left in the middle of its work"));
        }
        if link.silent_for() >= SILENT {
            link.run("a sign of life", "DO 1")
                .await
                .map_err(|failure| RecycleError::Backend(BackendError::from(failure).into()))?;
        }
        Ok(())
    }
}

#[derive(Clone)]
pub(super) struct LockPool {
    pool: Pool<Manager>,
}

impl LockPool {
    pub(super) fn new(opener: Arc<Opener>, connections: usize) -> Result<Self, MySqlLocksError> {
        let pool = Pool::builder(Manager { opener })
            .max_size(connections.max(1))
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(ANSWER))
            .recycle_timeout(Some(ANSWER))
            .build();
        let pool = pool.map_err(|error| BackendError::caused("the lock pool", error))?;
        Ok(Self { pool })
    }

    pub(super) async fn link(&self) -> Result<Object<Manager>, MySqlLocksError> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => error,
            other => BackendError::caused("no connection to the lock database", other).into(),
        })
    }

    /// Runs several statements in one trip.
    pub(super) async fn run(&self, what: &str, sql: &str) -> Result<Vec<Set>, BackendError> {
        let link = self.link().await;
        let mut link = link.map_err(|error| match error {
            MySqlLocksError::Backend(error) => error,
            other => BackendError::new(other.to_string()),
        })?;
        let mut tries = 1;
        loop {
            match link.run(what, sql).await {
                Err(failure) if failure.met_another() && tries < TRIES => tries += 1,
                answer => return answer.map_err(BackendError::from),
            }
        }
    }
}
