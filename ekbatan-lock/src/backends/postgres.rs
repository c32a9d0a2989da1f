//! Locks in PostgreSQL, with two strategies: a row per key, or the locks of one session.
//!
//! Invariants: the number of connections is constant, however many leases and waiters there
//! are. No statement waits for a key. A server that follows another one grants nothing.

mod address;
mod cleaning;
mod error;
mod key_data;
mod lease;
mod lease_waiters;
mod listener;
mod notify_connection;
mod pool;
mod session;
mod settings;
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
    asynchronous: bool,
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
    /// configuration. `maximum_pool_size` is the number of connections, and `connection_timeout` the
    /// longest time to wait until one of them is free, or until the server accepts one.
    ///
    /// # Errors
    ///
    /// Like [`connect`](Self::connect).
    pub async fn open(server: &DataSourceConfig) -> Result<Self, PostgresLocksError> {
        let address = address::parse(server)?;
        let pool = PostgresLockPool::new(&address, server)?;
        tables::refuse_a_replica(&pool).await?;
        Ok(Self { address, pool, asynchronous: false })
    }

    /// Makes grants of [`leases`](Self::leases) not wait until they are on disk, which makes them
    /// as fast as the server's memory.
    ///
    /// What this gives up: a crash of the server may forget the grants and extensions of the
    /// last moments, up to three times `wal_writer_delay`. Another process can then get a key
    /// whose holder knows nothing of the crash. Tokens grow nevertheless, so the fence refuses
    /// the commits of the first holder once the second one has read.
    #[must_use]
    pub fn asynchronous(mut self) -> Self {
        self.asynchronous = true;
        self
    }

    /// Leases as rows of the table `eventlog.lock_leases`. A lease holds no connection, and
    /// works behind poolers. One connection beyond the pool learns of keys that are handed over
    /// to this process.
    ///
    /// A grant is on disk before its holder learns of it, unless
    /// [`asynchronous`](Self::asynchronous) says otherwise. So leases survive a crash of the
    /// server, and a fail-over to a standby that commits wait for (`synchronous_standby_names`).
    /// A release does not wait for the disk: if a crash forgets it, the key is free when its
    /// term ends.
    ///
    /// # Errors
    ///
    /// The table cannot be created.
    pub async fn leases(&self) -> Result<impl LockBackend + use<>, PostgresLocksError> {
        tables::create(&self.pool, &tables::LEASES).await?;
        Ok(PostgresLeases::new(self.pool.clone(), self.address.clone(), self.asynchronous))
    }

    /// Leases as advisory locks of one session with its own connection. The locks are free as
    /// soon as this process dies. If the session ends, all leases are lost, and the next
    /// request opens a new session.
    ///
    /// A session has one limit for all its locks (`idle_session_timeout`). If this process
    /// stands still when the first of its leases has to end, the server ends the session, with
    /// all its leases, 5 s after that end. If the process stops only after that end, the server
    /// ends the session 5 s after its last statement. A process that runs is not affected,
    /// unless its runtime does not run for more than 3 s.
    ///
    /// # Errors
    ///
    /// A connection is not known to be a session of its own because of a pooler in between, the
    /// server is older than PostgreSQL 14, or the tables cannot be created.
    pub async fn session(&self) -> Result<impl LockBackend + use<>, PostgresLocksError> {
        tables::create(&self.pool, &tables::SESSIONS).await?;
        PostgresSessions::open(self.address.clone(), &self.pool).await
    }
}

impl std::fmt::Debug for PostgresLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresLocks")
            .field("asynchronous", &self.asynchronous)
            .finish_non_exhaustive()
    }
}
