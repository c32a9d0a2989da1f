//! The pool of connections for reads and transactions.
//!
//! Invariants:
//! - A connection whose last use did not complete is closed. Its unread answer or its open
//!   transaction never reaches another user.
//! - The connection that was used last is lent first. Those beyond the current need stay idle,
//!   and the upkeep task closes them.

mod holders;
mod manager;
#[cfg(all(test, feature = "sqlite"))]
mod tests;
mod upkeep;

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool::managed::{self, Object, PoolError, QueueMode};

use self::holders::{HolderGuard, Holders};
use self::manager::ConnectionManager;
use self::upkeep::Upkeep;
use super::{Connection, DbError, DbErrorKind, Driver, Route};
use crate::config::DataSourceConfig;

/// Connections to one database, by one route.
#[derive(Clone)]
pub(crate) struct Pool {
    inner: managed::Pool<ConnectionManager>,
    holders: Holders,
    timeout: Duration,
    leak_threshold: Duration,
    address: Arc<str>,
    upkeep: Arc<Upkeep>,
}

/// A snapshot of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatus {
    /// The maximum number of connections.
    pub max_size: usize,
    /// The number of open connections.
    pub size: usize,
    /// The number of open connections that nobody holds.
    pub idle: usize,
    /// The number of callers that wait for a connection.
    pub waiting: usize,
    /// The holders, and how long each has held its connection.
    pub holders: Vec<(&'static str, Duration)>,
    /// The holders that exceed `leak_detection_threshold`.
    pub overdue: Vec<(&'static str, Duration)>,
}

impl Pool {
    /// Opens no connection yet, except for `minimum_idle`. Must be called within a tokio runtime,
    /// because it spawns the upkeep task.
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        route: Route,
        config: &DataSourceConfig,
    ) -> Result<Self, DbError> {
        let address: Arc<str> = driver.address().into();
        let manager = ConnectionManager::new(driver, route, config.max_lifetime);
        let inner = managed::Pool::builder(manager)
            .max_size(config.maximum_pool_size)
            .queue_mode(QueueMode::Lifo)
            .runtime(deadpool::Runtime::Tokio1)
            .wait_timeout(Some(config.connection_timeout))
            .build()
            .map_err(|e| DbError::new(DbErrorKind::Other, e.to_string()))?;
        let holders = Holders::default();
        let upkeep = Upkeep::start(&inner, &holders, &address, config);
        Ok(Self {
            inner,
            holders,
            timeout: config.connection_timeout,
            leak_threshold: config.leak_detection_threshold,
            address,
            upkeep: Arc::new(upkeep),
        })
    }

    /// Lends a connection. The name of the holder appears in the timeout errors of others.
    pub(crate) async fn checkout(&self, holder: &'static str) -> Result<PooledConnection, DbError> {
        let object = match self.inner.get().await {
            Ok(object) => object,
            Err(PoolError::Backend(error)) => return Err(error),
            Err(PoolError::Closed) => {
                return Err(DbError::new(
                    DbErrorKind::Unavailable,
                    format!("the pool of {} is closed", self.address),
                ));
            }
            Err(_) => return Err(self.timed_out()),
        };
        Ok(PooledConnection { holder: self.holders.add(holder), object: Some(object) })
    }

    fn timed_out(&self) -> DbError {
        let status = self.status();
        let holders: Vec<String> =
            status.holders.iter().map(|(name, held)| format!("{name} for {held:.1?}")).collect();
        DbError::new(
            DbErrorKind::PoolTimeout,
            format!(
                "no connection to {} came free within {:?}; all {} are held, by {}. Hold them shorter or raise maximum_pool_size",
                self.address,
                self.timeout,
                status.max_size,
                if holders.is_empty() {
                    "callers that are connecting".to_owned()
                } else {
                    holders.join(", ")
                },
            ),
        )
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let status = self.inner.status();
        let holders = self.holders.all();
        let detects_leaks = !self.leak_threshold.is_zero();
        let overdue = |(_, held): &&(&str, Duration)| detects_leaks && *held >= self.leak_threshold;
        PoolStatus {
            max_size: status.max_size,
            size: status.size,
            idle: status.available,
            waiting: status.waiting,
            overdue: holders.iter().filter(overdue).copied().collect(),
            holders,
        }
    }

    pub(crate) fn close(&self) {
        self.upkeep.stop();
        self.inner.close();
    }
}

/// A connection on loan.
pub(crate) struct PooledConnection {
    /// `None` once the connection was taken out of the pool.
    object: Option<Object<ConnectionManager>>,
    #[expect(dead_code, reason = "its drop removes the holder from the list")]
    holder: HolderGuard,
}

impl PooledConnection {
    /// The connection, marked busy. If the loan is dropped before
    /// [`PooledConnection::mark_idle`], the connection is closed.
    pub(crate) fn mark_busy(&mut self) -> Result<&mut (dyn Connection + 'static), DbError> {
        match &mut self.object {
            Some(entry) => {
                entry.busy = true;
                Ok(&mut *entry.connection)
            }
            None => Err(DbError::new(DbErrorKind::Unavailable, "the connection was given up")),
        }
    }

    /// Declares that the last use completed.
    pub(crate) fn mark_idle(&mut self) {
        if let Some(entry) = &mut self.object {
            entry.busy = false;
        }
    }

    /// Whether the connection was lent before this loan.
    pub(crate) fn is_used(&self) -> bool {
        self.object.as_ref().is_some_and(|entry| entry.used)
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        // A busy connection is closed now, not when the pool tries to lend it again.
        if self.object.as_ref().is_some_and(|entry| entry.busy)
            && let Some(object) = self.object.take()
        {
            drop(Object::take(object));
        }
        if let Some(entry) = &mut self.object {
            entry.idle_since = Instant::now();
        }
    }
}
