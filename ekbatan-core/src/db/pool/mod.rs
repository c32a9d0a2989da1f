//! The pool of connections for reads and transactions.
//!
//! Invariants:
//! - A connection whose last use did not complete is closed. Its unread answer or its open
//!   transaction never reaches another user.
//! - A use that takes longer than its limit ends with an error, and its connection is closed at
//!   once: a silent server holds neither a caller nor a place in the pool.
//! - The connection that was used last is lent first. Those beyond the current need stay idle,
//!   and the upkeep task closes them.

mod entry;
mod holders;
mod limit;
mod manager;
#[cfg(all(test, feature = "sqlite"))]
mod tests;
mod upkeep;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool::managed::{self, Object, PoolError, QueueMode};

use self::holders::{HolderGuard, Holders};
pub(crate) use self::limit::Limit;
use self::limit::Limits;
use self::manager::ConnectionManager;
use self::upkeep::Upkeep;
use super::{Connection, DbError, DbErrorKind, Driver, Route};
use crate::config::DataSourceConfig;

/// A use of a connection.
pub(crate) type Use<'c, T, E = DbError> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>>;

/// Connections to one database, by one route.
#[derive(Clone)]
pub(crate) struct Pool {
    inner: managed::Pool<ConnectionManager>,
    holders: Holders,
    timeout: Duration,
    limits: Limits,
    leak_threshold: Duration,
    /// Its part of the configuration, such as `primary-config`.
    section: Arc<str>,
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
    /// What opens the pool's connections.
    pub(crate) fn driver(&self) -> &dyn Driver {
        self.inner.manager().driver()
    }

    /// Opens no connection yet, except for `minimum_idle`. Must be called within a tokio runtime,
    /// because it spawns the upkeep task. Messages name the `section` of the configuration.
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        route: Route,
        section: &str,
        config: &DataSourceConfig,
    ) -> Result<Self, DbError> {
        let address: Arc<str> = driver.address().into();
        let limits = Limits::new(&*driver, config);
        let manager = ConnectionManager::new(driver, route, config);
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
            limits,
            leak_threshold: config.leak_detection_threshold,
            section: section.into(),
            address,
            upkeep: Arc::new(upkeep),
        })
    }

    /// Lends a connection. The name of the holder appears in the timeout errors of others.
    pub(crate) async fn checkout(&self, holder: &'static str) -> Result<PooledConnection, DbError> {
        self.upkeep.keep_running();
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
        Ok(PooledConnection {
            holder: self.holders.add(holder),
            object: Some(object),
            limits: self.limits,
        })
    }

    /// The maximum time that a caller waits for a connection.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    fn timed_out(&self) -> DbError {
        let Self { section, address, timeout, .. } = self;
        let PoolStatus { max_size, holders, .. } = self.status();
        let mut held: Vec<String> =
            holders.iter().map(|(name, held)| format!("{name} for {held:.1?}")).collect();
        // The others have a place and no connection yet.
        let connecting = max_size.saturating_sub(holders.len());
        match connecting {
            0 => {}
            1 => held.push("a caller that still connects".to_owned()),
            several => held.push(format!("{several} callers that still connect")),
        }
        let way_out = if connecting == 0 {
            format!("hold them shorter, or raise maximum-pool-size of {section}")
        } else if holders.is_empty() {
            "see whether the server accepts connections".to_owned()
        } else {
            "see whether the server accepts connections, or hold them shorter".to_owned()
        };
        let why = format!(
            "no connection to {address} came free within {timeout:?} (connection-timeout of {section}); all {max_size} are held, by {}; {way_out}",
            held.join(", ")
        );
        DbError::new(DbErrorKind::PoolTimeout, why)
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

    /// Lends no connection any more, and waits until every connection is closed. Those on loan
    /// close when they are given back; for them it waits for at most `connection_timeout`.
    pub(crate) async fn close(&self) {
        self.upkeep.stop();
        self.inner.close();
        let open = self.inner.manager().open();
        if tokio::time::timeout(self.timeout, open.all_closed()).await.is_err() {
            let holders = self.holders.all();
            tracing::warn!(
                pool = &*self.address,
                ?holders,
                "the pool is closed; some of its connections are not"
            );
        }
    }
}

/// A connection on loan.
pub(crate) struct PooledConnection {
    /// `None` once the connection was taken out of the pool.
    object: Option<Object<ConnectionManager>>,
    limits: Limits,
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
                entry.connection().ok_or_else(closed)
            }
            None => Err(closed()),
        }
    }

    /// Uses the connection, for at most `read-timeout`. After that it is closed.
    ///
    /// The connection is still busy when this returns. `'w` is how long the data lives that
    /// `work` borrows.
    pub(crate) async fn run<'w, T, E: From<DbError>>(
        &mut self,
        work: impl for<'c> FnOnce(&'c mut (dyn Connection + 'w)) -> Use<'c, T, E>,
    ) -> Result<T, E> {
        self.run_within(self.limits.read, work).await
    }

    /// Like [`PooledConnection::run`], with a limit of its own.
    pub(crate) async fn run_within<'w, T, E: From<DbError>>(
        &mut self,
        limit: Limit,
        work: impl for<'c> FnOnce(&'c mut (dyn Connection + 'w)) -> Use<'c, T, E>,
    ) -> Result<T, E> {
        match limit.bound(work(self.mark_busy()?)).await {
            Some(answer) => answer,
            None => {
                self.close();
                Err(limit.exceeded().into())
            }
        }
    }

    /// The limit of a use that waits for `patience` by itself.
    pub(crate) fn patient_limit(&self, patience: Duration) -> Limit {
        self.limits.connect.after(patience)
    }

    pub(crate) fn commit_limit(&self) -> Limit {
        self.limits.commit
    }

    /// Closes the connection now and gives its place in the pool back.
    pub(crate) fn close(&mut self) {
        if let Some(object) = self.object.take() {
            drop(Object::take(object));
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.object.is_none()
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
        if self.object.as_ref().is_some_and(|entry| entry.busy) {
            self.close();
        }
        if let Some(entry) = &mut self.object {
            entry.idle_since = Instant::now();
        }
    }
}

fn closed() -> DbError {
    DbError::new(DbErrorKind::Unavailable, "the connection was closed after an earlier failure")
}
