//! The pool of connections for reads and transactions.
//!
//! A connection is marked busy before each use and cleared after it, so that one whose user
//! was dropped in the middle comes back busy and is closed: nobody else meets its half-read
//! answer or its open transaction.
//!
//! The connection that was used last is lent first, so that those beyond what is needed stay
//! unused, and are closed in time by the upkeep.

mod upkeep;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool::managed::{self, Metrics, Object, PoolError, QueueMode, RecycleError, RecycleResult};

use super::{Connection, DbError, DbErrorKind, Driver, Route};
use crate::config::DataSourceConfig;
use upkeep::Upkeep;

struct Session {
    connection: Box<dyn Connection>,
    busy: bool,
    /// Whether it served somebody before, and so may have died unnoticed since.
    used: bool,
    /// From when on it is closed instead of being lent.
    expires: Option<Instant>,
    idle_since: Instant,
}

impl Session {
    fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expires| Instant::now() >= expires)
    }
}

struct Manager {
    driver: Arc<dyn Driver>,
    route: Route,
    max_lifetime: Duration,
    /// A connection that the upkeep made, for the pool to take as its next one.
    spare: Mutex<Option<Box<dyn Connection>>>,
}

impl Manager {
    fn spare(&self) -> std::sync::MutexGuard<'_, Option<Box<dyn Connection>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to a tenth earlier than the limit, so that connections which were opened together
    /// do not all end together.
    fn expiry(&self) -> Option<Instant> {
        if self.max_lifetime.is_zero() {
            return None;
        }
        Instant::now().checked_add(self.max_lifetime.mul_f64(1.0 - 0.1 * fastrand::f64()))
    }
}

impl managed::Manager for Manager {
    type Type = Session;
    type Error = DbError;

    async fn create(&self) -> Result<Session, DbError> {
        let spare = self.spare().take();
        let connection = match spare {
            Some(connection) => connection,
            None => self.driver.connect(self.route).await?,
        };
        Ok(Session {
            connection,
            busy: false,
            used: false,
            expires: self.expiry(),
            idle_since: Instant::now(),
        })
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<DbError> {
        if session.busy {
            return Err(RecycleError::message("left in the middle of its work"));
        }
        if session.is_expired() {
            return Err(RecycleError::message("older than max_lifetime"));
        }
        session.used = true;
        Ok(())
    }
}

struct Holder {
    name: &'static str,
    since: Instant,
    /// Whether it was reported as holding for too long.
    reported: bool,
}

type Holders = Arc<Mutex<BTreeMap<u64, Holder>>>;

/// Connections to one database, by one route.
#[derive(Clone)]
pub(crate) struct Pool {
    inner: managed::Pool<Manager>,
    holders: Holders,
    timeout: Duration,
    leak_threshold: Duration,
    address: Arc<str>,
    upkeep: Arc<Upkeep>,
}

/// What a pool is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStatus {
    /// How many connections there may be.
    pub max_size: usize,
    /// How many connections there are.
    pub size: usize,
    /// How many of them nobody holds.
    pub idle: usize,
    /// How many callers wait for one.
    pub waiting: usize,
    /// Who holds one, and for how long.
    pub holders: Vec<(&'static str, Duration)>,
    /// Which of them hold it for longer than `leak_detection_threshold`.
    pub overdue: Vec<(&'static str, Duration)>,
}

impl Pool {
    /// Opens nothing yet, but for what `minimum_idle` says. Has to be called in a runtime,
    /// in which the upkeep runs.
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        route: Route,
        config: &DataSourceConfig,
    ) -> Result<Self, DbError> {
        let address: Arc<str> = driver.address().into();
        let max_lifetime = config.max_lifetime;
        let inner = managed::Pool::builder(Manager {
            driver,
            route,
            max_lifetime,
            spare: Mutex::default(),
        })
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

    /// A connection, whose holder is shown to whoever waits in vain.
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
        Ok(PooledConnection { ticket: Ticket::new(&self.holders, holder), object: Some(object) })
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
        let holders: Vec<_> = {
            let holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
            holders.values().map(|holder| (holder.name, holder.since.elapsed())).collect()
        };
        let leaks = !self.leak_threshold.is_zero();
        let overdue = |(_, held): &&(&str, Duration)| leaks && *held >= self.leak_threshold;
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

/// An entry in the list of holders, for as long as it lives.
struct Ticket {
    holders: Holders,
    number: u64,
}

impl Ticket {
    fn new(holders: &Holders, holder: &'static str) -> Self {
        let mut list = holders.lock().unwrap_or_else(PoisonError::into_inner);
        let number = list.last_key_value().map_or(0, |(last, _)| last + 1);
        let since = Instant::now();
        list.insert(number, Holder { name: holder, since, reported: false });
        drop(list);
        Self { holders: holders.clone(), number }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

/// A connection on loan.
pub(crate) struct PooledConnection {
    /// Present until the connection is taken out of the pool for good.
    object: Option<Object<Manager>>,
    #[expect(dead_code, reason = "held for its drop, which strikes the holder off the list")]
    ticket: Ticket,
}

impl PooledConnection {
    /// The connection, marked busy: if this loan ends before [`PooledConnection::done`], it
    /// is closed.
    pub(crate) fn begin(&mut self) -> Result<&mut dyn Connection, DbError> {
        match &mut self.object {
            Some(session) => {
                session.busy = true;
                Ok(&mut *session.connection)
            }
            None => Err(DbError::new(DbErrorKind::Unavailable, "the connection was given up")),
        }
    }

    /// The last use ended in order.
    pub(crate) fn done(&mut self) {
        if let Some(session) = &mut self.object {
            session.busy = false;
        }
    }

    /// Whether the connection was used before this loan.
    pub(crate) fn is_used(&self) -> bool {
        self.object.as_ref().is_some_and(|session| session.used)
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        // A busy connection is closed here and now, not when the pool next looks at it.
        if self.object.as_ref().is_some_and(|session| session.busy)
            && let Some(object) = self.object.take()
        {
            drop(Object::take(object));
        }
        if let Some(session) = &mut self.object {
            session.idle_since = Instant::now();
        }
    }
}
