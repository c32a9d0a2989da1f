//! Locks in PostgreSQL, with two strategies: a row per key, or the locks of one session.
//!
//! Invariants: the number of connections is constant, however many leases and waiters there
//! are. No statement waits for a lock. A server that follows another one grants nothing.

mod address;
mod error;
mod lease;
mod listener;
mod notify_connection;
mod pool;
mod session;
mod tables;
mod tls;

pub use error::PostgresLocksError;

use ekbatan_core::config::DataSourceConfig;

use crate::LockBackend;
use address::PostgresAddress;
use lease::PostgresLeases;
use pool::PostgresLockPool;
use session::PostgresSessions;

/// One database that keeps locks, and the connections to it.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use ekbatan_lock::{LockProvider, PostgresLocks};
///
/// let database = PostgresLocks::connect("postgres://app:secret@db:5432/shop", 4).await?;
/// let locks = LockProvider::new(database.leases().await?, "eu");
/// # Ok(())
/// # }
/// ```
///
/// The two strategies do not exclude each other: all processes that lock the same keys have to
/// use the same one. Both keep their data in the schema `eventlog` and create it if it does
/// not exist.
#[derive(Clone)]
pub struct PostgresLocks {
    address: PostgresAddress,
    pool: PostgresLockPool,
}

impl PostgresLocks {
    /// Checks the database at `url` and makes a pool of at most this many connections, which
    /// [`leases`](Self::leases) share. Connections are opened when they are needed.
    ///
    /// # Errors
    ///
    /// The address is invalid, the server cannot be reached or not with the requested
    /// encryption, or locks on the server are not safe, for example because it is a replica.
    pub async fn connect(url: &str, connections: usize) -> Result<Self, PostgresLocksError> {
        Self::open(&DataSourceConfig::new(url).maximum_pool_size(connections)).await
    }

    /// Like [`connect`](Self::connect), with the login, encryption and names of a
    /// configuration. `maximum_pool_size` is the number of connections.
    ///
    /// # Errors
    ///
    /// Like [`connect`](Self::connect).
    pub async fn open(server: &DataSourceConfig) -> Result<Self, PostgresLocksError> {
        let connections = server.maximum_pool_size;
        let address = address::parse(server)?;
        let pool = PostgresLockPool::new(&address, connections)?;
        tables::refuse_a_replica(&pool).await?;
        Ok(Self { address, pool })
    }

    /// Leases as rows of the table `eventlog.lock_leases`. A lease holds no connection, and
    /// works behind poolers and across fail-overs. One connection beyond the pool listens for
    /// released keys.
    ///
    /// # Errors
    ///
    /// The table cannot be created.
    pub async fn leases(&self) -> Result<impl LockBackend + use<>, PostgresLocksError> {
        tables::create(&self.pool, &tables::LEASES).await?;
        Ok(PostgresLeases::new(self.pool.clone(), self.address.clone()))
    }

    /// Leases as advisory locks of one session with its own connection. The locks are free as
    /// soon as this process dies. If the session ends, all leases are lost, and the next
    /// request opens a new session.
    ///
    /// # Errors
    ///
    /// A connection is not a session of its own because of a pooler in between, or the tables
    /// cannot be created.
    pub async fn session(&self) -> Result<impl LockBackend + use<>, PostgresLocksError> {
        tables::create(&self.pool, &tables::SESSIONS).await?;
        PostgresSessions::open(self.address.clone(), &self.pool).await
    }
}
