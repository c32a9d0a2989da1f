//! Locks in PostgreSQL, by two strategies: a row per key, or the locks of one session.
//!
//! What always holds: the number of connections is what was asked for, whatever the number
//! of leases and of those who wait; no statement waits for a lock; and nothing is granted by
//! a server that follows another one.

mod address;
mod error;
mod hints;
mod lease;
mod listener;
mod pool;
mod session;
mod tables;
mod tls;
mod wire;

pub use error::PostgresLocksError;
pub use lease::PostgresLeaseBackend;
pub use session::PostgresSessionBackend;

use ekbatan_core::config::DataSourceConfig;

use pool::LockPool;

/// One database whose locks are used, and the connections for it.
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
/// Two strategies on one database know nothing of each other: all who lock the same keys have
/// to use the same one. Both keep what they need in the schema `eventlog`, and create it when
/// it is not there.
#[derive(Clone)]
pub struct PostgresLocks {
    server: address::Server,
    pool: LockPool,
}

impl PostgresLocks {
    /// Looks at the database behind `url` and makes a pool of at most so many connections,
    /// which [`leases`](Self::leases) share. Connections are opened when they are needed.
    ///
    /// # Errors
    ///
    /// When the address is none, leads to no server, or to one that cannot be had as encrypted
    /// as it asks for; or to one on which locks are not safe, such as a replica.
    pub async fn connect(url: &str, connections: usize) -> Result<Self, PostgresLocksError> {
        Self::open(&DataSourceConfig::new(url).maximum_pool_size(connections)).await
    }

    /// As [`connect`](Self::connect), with the login, the encryption and the names of a
    /// configuration; `maximum_pool_size` is the number of connections.
    ///
    /// # Errors
    ///
    /// As of [`connect`](Self::connect).
    pub async fn open(server: &DataSourceConfig) -> Result<Self, PostgresLocksError> {
        let connections = server.maximum_pool_size;
        let server = address::parse(server)?;
        let pool = LockPool::new(&server, connections)?;
        tables::refuse_a_replica(&pool).await?;
        Ok(Self { server, pool })
    }

    /// Leases as rows of a table: no connection is held, and poolers and fail-overs do no harm.
    /// One connection beyond the pool's listens for keys that are given back.
    ///
    /// # Errors
    ///
    /// When the table cannot be created.
    pub async fn leases(&self) -> Result<PostgresLeaseBackend, PostgresLocksError> {
        tables::create(&self.pool, &tables::LEASES).await?;
        Ok(PostgresLeaseBackend::new(self.pool.clone(), self.server.clone()))
    }

    /// Leases as locks of one session of their own, which are free the moment this process
    /// dies, and all lost when the session is.
    ///
    /// # Errors
    ///
    /// When a session is not what one gets, because of a pooler in between; or when what it
    /// needs cannot be created.
    pub async fn session(&self) -> Result<PostgresSessionBackend, PostgresLocksError> {
        tables::create(&self.pool, &tables::SESSIONS).await?;
        PostgresSessionBackend::open(self.server.clone(), &self.pool).await
    }
}
