//! Creates a pool's connections and decides which of them may be lent again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};

use crate::db::{Connection, DbError, Driver, Route};

/// A connection and what the pool knows about it.
pub(super) struct PoolEntry {
    pub(super) connection: Box<dyn Connection>,
    /// Set before each use and cleared after it. If the user is dropped in between, the entry
    /// stays busy and is closed instead of being lent again.
    pub(super) busy: bool,
    /// Whether it was lent before, and so may have died while it was idle.
    pub(super) used: bool,
    /// From this time on it is closed instead of being lent.
    expires: Option<Instant>,
    pub(super) idle_since: Instant,
}

impl PoolEntry {
    pub(super) fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expires| Instant::now() >= expires)
    }
}

pub(super) struct ConnectionManager {
    driver: Arc<dyn Driver>,
    route: Route,
    max_lifetime: Duration,
    /// A connection that the upkeep task opened, used by the next `create`.
    spare: Mutex<Option<Box<dyn Connection>>>,
}

impl ConnectionManager {
    pub(super) fn new(driver: Arc<dyn Driver>, route: Route, max_lifetime: Duration) -> Self {
        Self { driver, route, max_lifetime, spare: Mutex::default() }
    }

    pub(super) async fn connect(&self) -> Result<Box<dyn Connection>, DbError> {
        self.driver.connect(self.route).await
    }

    pub(super) fn spare(&self) -> MutexGuard<'_, Option<Box<dyn Connection>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to a tenth before the limit, so that connections that were opened together do not all
    /// expire together.
    pub(super) fn expiry(&self) -> Option<Instant> {
        if self.max_lifetime.is_zero() {
            return None;
        }
        Instant::now().checked_add(self.max_lifetime.mul_f64(1.0 - 0.1 * fastrand::f64()))
    }
}

impl managed::Manager for ConnectionManager {
    type Type = PoolEntry;
    type Error = DbError;

    async fn create(&self) -> Result<PoolEntry, DbError> {
        let spare = self.spare().take();
        let connection = match spare {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        Ok(PoolEntry {
            connection,
            busy: false,
            used: false,
            expires: self.expiry(),
            idle_since: Instant::now(),
        })
    }

    async fn recycle(&self, entry: &mut PoolEntry, _: &Metrics) -> RecycleResult<DbError> {
        if entry.busy {
            return Err(RecycleError::message("its last use did not complete"));
        }
        if entry.is_expired() {
            return Err(RecycleError::message("older than max_lifetime"));
        }
        entry.used = true;
        Ok(())
    }
}
