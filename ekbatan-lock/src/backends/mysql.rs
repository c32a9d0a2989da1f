//! Locks in MySQL and MariaDB: one implementation, with variants by the server's version.
//!
//! Invariants: the number of connections is constant, however many leases and waiters there
//! are. No statement waits for a lock. A server that is read-only grants nothing.

mod cleaning;
mod connection;
mod error;
mod lease;
mod pool;
mod server;
mod session;
mod sql;
mod tables;

pub use error::MySqlLocksError;

use std::sync::Arc;

use ekbatan_core::config::DataSourceConfig;

use crate::LockBackend;
use connection::MySqlConnector;
use lease::MySqlLeases;
use pool::MySqlLockPool;
use session::MySqlSessions;

/// One server that keeps locks, and the connections to it.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use ekbatan_lock::{LockProvider, MySqlLocks};
///
/// let server = MySqlLocks::connect("mysql://app:secret@db:3306/shop", 4).await?;
/// let locks = LockProvider::new(server.leases().await?, "eu");
/// # Ok(())
/// # }
/// ```
///
/// The locks keep their data in a database of the framework, [`eventlog`](Self::eventlog), and
/// create it if it does not exist. Its name also separates the keys of several applications on
/// one server. All processes that lock the same keys have to use the same database and the
/// same strategy.
#[derive(Clone)]
pub struct MySqlLocks {
    connector: Arc<MySqlConnector>,
    pool: MySqlLockPool,
    eventlog: String,
}

impl MySqlLocks {
    /// Checks the server at `url`, which begins with `mysql:` or `mariadb:`, and makes a pool
    /// of at most this many connections, which [`leases`](Self::leases) share. Connections are
    /// opened when they are needed.
    ///
    /// # Errors
    ///
    /// The address is invalid, the server cannot be reached, or locks on the server are not
    /// safe, for example because it is a read-only replica or too old.
    pub async fn connect(url: &str, connections: usize) -> Result<Self, MySqlLocksError> {
        Self::open(&DataSourceConfig::new(url).maximum_pool_size(connections)).await
    }

    /// Like [`connect`](Self::connect), with the login, encryption and `eventlog` of a
    /// configuration. `maximum_pool_size` is the number of connections. A server that does not
    /// answer a statement within 15 s, or within `read_timeout` if that is shorter, is given up.
    /// `connection_timeout` is the longest time to wait until a connection is free or opened.
    ///
    /// # Errors
    ///
    /// Like [`connect`](Self::connect).
    pub async fn open(server: &DataSourceConfig) -> Result<Self, MySqlLocksError> {
        let connector = Arc::new(MySqlConnector::new(server)?);
        let pool = MySqlLockPool::new(connector.clone(), server)?;
        // Opening a connection checks the server.
        drop(pool.connection().await?);
        Ok(Self { connector, pool, eventlog: server.eventlog.clone() })
    }

    /// Sets the database that keeps the locks, if it is not `eventlog`. It is the setting
    /// `eventlog` of the data source.
    #[must_use]
    pub fn eventlog(mut self, database: impl Into<String>) -> Self {
        self.eventlog = database.into();
        self
    }

    /// Leases as rows of the table `lock_leases`. A lease holds no connection. After a
    /// fail-over that lost grants, the fence in the commit keeps writes safe. Each grant is a
    /// commit of its own at the server.
    ///
    /// # Errors
    ///
    /// The table cannot be created.
    pub async fn leases(&self) -> Result<impl LockBackend + use<>, MySqlLocksError> {
        tables::create(&self.pool, &self.eventlog, &tables::LEASES).await?;
        Ok(MySqlLeases::new(self.pool.clone(), &self.eventlog))
    }

    /// Leases as named locks of one session with its own connection. The locks are free as
    /// soon as this process dies. If the session ends, all leases are lost, which this process
    /// notices within about a second; the next request opens a new session.
    ///
    /// A session has one limit for all its locks (`wait_timeout`). If this process stands still
    /// when the first of its leases has to end, the server ends the session, with all leases, at
    /// most 6 s later: 5 s, rounded up to whole seconds. It also ends a session that was silent
    /// for 30 s, or for twice the `read_timeout` of the configuration if that is below 15 s.
    ///
    /// # Errors
    ///
    /// The server is a node of a Galera cluster, where `GET_LOCK` excludes nobody on other
    /// nodes; or the table cannot be created.
    pub async fn session(&self) -> Result<impl LockBackend + use<>, MySqlLocksError> {
        tables::create(&self.pool, &self.eventlog, &tables::SESSIONS).await?;
        MySqlSessions::open(self.connector.clone(), &self.eventlog).await
    }
}

impl std::fmt::Debug for MySqlLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MySqlLocks").field("eventlog", &self.eventlog).finish_non_exhaustive()
    }
}
