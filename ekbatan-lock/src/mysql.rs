//! Locks in MySQL and MariaDB: one driver in two flavours, told apart by the server's version.
//!
//! What always holds: the number of connections is what was asked for, whatever the number of
//! leases and of those who wait; no statement waits for a lock; and nothing is granted by a
//! server that cannot be written to.

mod error;
mod lease;
mod link;
mod pool;
mod server;
mod session;
mod sql;
mod tables;

pub use error::MySqlLocksError;
pub use lease::MySqlLeaseBackend;
pub use session::MySqlSessionBackend;

use std::sync::Arc;

use ekbatan_core::config::DataSourceConfig;

use link::Opener;
use pool::LockPool;

/// One server whose locks are used, and the connections for it.
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
/// What is kept lies in a database of the framework's own, [`eventlog`](Self::eventlog), and
/// is created when it is not there. It is also what keeps the keys of several applications on
/// one server apart: all who lock the same keys have to name the same one, and to use the same
/// strategy.
#[derive(Clone)]
pub struct MySqlLocks {
    opener: Arc<Opener>,
    pool: LockPool,
    eventlog: String,
}

impl MySqlLocks {
    /// Looks at the server behind `url`, which begins with `mysql:` or `mariadb:`, and makes a
    /// pool of at most so many connections, which [`leases`](Self::leases) share. Connections
    /// are opened when they are needed.
    ///
    /// # Errors
    ///
    /// When the address is none or leads to no server; or to one on which locks are not safe,
    /// such as a replica that is read only, or one that is too old.
    pub async fn connect(url: &str, connections: usize) -> Result<Self, MySqlLocksError> {
        Self::open(&DataSourceConfig::new(url).maximum_pool_size(connections)).await
    }

    /// Looks at the server that a configuration names, with its login, its encryption, its
    /// `eventlog` and as many connections as its pool may have.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub async fn open(server: &DataSourceConfig) -> Result<Self, MySqlLocksError> {
        let opener = Arc::new(Opener::new(server)?);
        let pool = LockPool::new(opener.clone(), server.maximum_pool_size)?;
        // Whoever opens a connection looks at the server; one now, so that it is looked at.
        drop(pool.link().await?);
        Ok(Self { opener, pool, eventlog: server.eventlog.clone() })
    }

    /// Names the database that keeps the locks, where it is not `eventlog`: the one that the
    /// setting `eventlog` of the data source names.
    #[must_use]
    pub fn eventlog(mut self, database: impl Into<String>) -> Self {
        self.eventlog = database.into();
        self
    }

    /// Leases as rows of a table: no connection is held, and fail-overs do no harm that the
    /// fence in the commit does not catch. Each grant is a commit of its own at the server.
    ///
    /// # Errors
    ///
    /// When the table cannot be created.
    pub async fn leases(&self) -> Result<MySqlLeaseBackend, MySqlLocksError> {
        tables::create(&self.pool, &self.eventlog, &tables::LEASES).await?;
        Ok(MySqlLeaseBackend::new(self.pool.clone(), &self.eventlog))
    }

    /// Leases as named locks of one session of their own, which are free the moment this
    /// process dies, and all lost when the session is. That is noticed within about a second.
    ///
    /// # Errors
    ///
    /// On a node of a Galera cluster, which grants named locks for itself or not at all; or
    /// when what is needed cannot be created.
    pub async fn session(&self) -> Result<MySqlSessionBackend, MySqlLocksError> {
        tables::create(&self.pool, &self.eventlog, &tables::SESSIONS).await?;
        MySqlSessionBackend::open(self.opener.clone(), &self.eventlog).await
    }
}
