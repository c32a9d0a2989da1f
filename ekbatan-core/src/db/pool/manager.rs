//! Creates a pool's connections and decides which of them may be lent again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};

use super::entry::{Closing, OpenConnections, PoolEntry};
use crate::config::DataSourceConfig;
use crate::db::{DbError, Driver, Route};

pub(super) struct ConnectionManager {
    driver: Arc<dyn Driver>,
    route: Route,
    max_lifetime: Duration,
    closing: Closing,
    open: OpenConnections,
    /// A connection that the upkeep task opened, used by the next `create`.
    spare: Mutex<Option<PoolEntry>>,
}

impl ConnectionManager {
    pub(super) fn new(driver: Arc<dyn Driver>, route: Route, config: &DataSourceConfig) -> Self {
        Self {
            route,
            max_lifetime: config.max_lifetime,
            closing: Closing {
                in_process: driver.capabilities().single_writer,
                timeout: config.connection_timeout,
            },
            driver,
            open: OpenConnections::default(),
            spare: Mutex::default(),
        }
    }

    pub(super) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    pub(super) async fn connect(&self) -> Result<PoolEntry, DbError> {
        let open = self.open.add();
        let connection = self.driver.connect(self.route).await?;
        Ok(PoolEntry::new(connection, open, self.expiry(), self.closing))
    }

    pub(super) fn open(&self) -> &OpenConnections {
        &self.open
    }

    pub(super) fn spare(&self) -> MutexGuard<'_, Option<PoolEntry>> {
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
        match spare {
            Some(entry) => Ok(entry),
            None => self.connect().await,
        }
    }

    async fn recycle(&self, entry: &mut PoolEntry, _: &Metrics) -> RecycleResult<DbError> {
        if entry.busy {
            return Err(RecycleError::message("its last use did not complete"));
        }
        if entry.is_expired() {
            return Err(RecycleError::message("older than max-lifetime"));
        }
        entry.used = true;
        Ok(())
    }
}
