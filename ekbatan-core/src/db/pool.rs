//! The pool of connections for reads and transactions.
//!
//! A connection is marked busy before each use and cleared after it, so that one whose user
//! was dropped in the middle comes back busy and is closed: nobody else meets its half-read
//! answer or its open transaction.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool::managed::{self, Metrics, Object, PoolError, RecycleError, RecycleResult};

use super::{Connection, DbError, DbErrorKind, Driver, Route};

struct Session {
    connection: Box<dyn Connection>,
    busy: bool,
    /// Whether it served somebody before, and so may have died unnoticed since.
    used: bool,
}

struct Manager {
    driver: Arc<dyn Driver>,
    route: Route,
}

impl managed::Manager for Manager {
    type Type = Session;
    type Error = DbError;

    async fn create(&self) -> Result<Session, DbError> {
        Ok(Session { connection: self.driver.connect(self.route).await?, busy: false, used: false })
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<DbError> {
        if session.busy {
            return Err(RecycleError::message("left in the middle of its work"));
        }
        session.used = true;
        Ok(())
    }
}

type Holders = Arc<Mutex<BTreeMap<u64, (&'static str, Instant)>>>;

/// Connections to one database, by one route.
#[derive(Clone)]
pub(crate) struct Pool {
    inner: managed::Pool<Manager>,
    holders: Holders,
    timeout: Duration,
    address: Arc<str>,
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
}

impl Pool {
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        route: Route,
        size: usize,
        timeout: Duration,
    ) -> Result<Self, DbError> {
        let address = driver.address().into();
        let inner = managed::Pool::builder(Manager { driver, route })
            .max_size(size)
            .runtime(deadpool::Runtime::Tokio1)
            .wait_timeout(Some(timeout))
            .build()
            .map_err(|e| DbError::new(DbErrorKind::Other, e.to_string()))?;
        Ok(Self { inner, holders: Holders::default(), timeout, address })
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
        let holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        PoolStatus {
            max_size: status.max_size,
            size: status.size,
            idle: status.available,
            waiting: status.waiting,
            holders: holders.values().map(|(name, since)| (*name, since.elapsed())).collect(),
        }
    }

    pub(crate) fn close(&self) {
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
        list.insert(number, (holder, Instant::now()));
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
    }
}
