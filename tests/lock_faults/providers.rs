//! The providers that the suite runs on.

use std::time::Duration;

use ekbatan::lock::{LockProvider, MySqlLocks, PostgresLocks, ProcessBackend, SqliteLocks};
use ekbatan_lock_etcd::EtcdBackend;
use ekbatan_lock_redis::RedisBackend;
use serde::{Deserialize, Serialize};
use support::soak::rounds;

use crate::stores;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Process,
    Redis,
    Etcd,
    #[cfg(feature = "hbase")]
    HBase,
    MongoDb,
    Aerospike,
    PostgresLease,
    PostgresSession,
    Sqlite,
    MySqlLease,
    MySqlSession,
    MariaDbLease,
    MariaDbSession,
}

/// The size of a provider's connection pool.
const POOL: usize = 4;

/// The size where the address says none.
const STORE_POOL: usize = 10;

impl Kind {
    /// Whether it is one of those of `scripts/test stores`.
    pub fn is_store(self) -> bool {
        matches!(self, Kind::MongoDb | Kind::Aerospike)
    }

    /// A provider, as one process connects it.
    pub async fn connect(self, url: &str) -> LockProvider {
        let postgres = async || PostgresLocks::connect(url, POOL).await.unwrap();
        let mysql = async || {
            let database = url.rsplit('/').next().unwrap_or_default();
            MySqlLocks::connect(url, POOL).await.unwrap().eventlog(database)
        };
        match self {
            Kind::Process => LockProvider::new(ProcessBackend::new(), "test"),
            Kind::Redis => {
                let backend = RedisBackend::connect(url, RedisBackend::NAMESPACE).await.unwrap();
                LockProvider::new(backend, "test")
            }
            Kind::Etcd => {
                let backend = EtcdBackend::connect(url, EtcdBackend::NAMESPACE).await.unwrap();
                LockProvider::new(backend, "test")
            }
            #[cfg(feature = "hbase")]
            Kind::HBase => {
                use ekbatan::lock::HBaseBackend;
                let backend = HBaseBackend::connect(url, HBaseBackend::NAMESPACE).await.unwrap();
                LockProvider::new(backend, "test")
            }
            Kind::MongoDb | Kind::Aerospike => stores::connect(self, url).await,
            Kind::PostgresLease => {
                LockProvider::new(postgres().await.leases().await.unwrap(), "test")
            }
            Kind::PostgresSession => {
                LockProvider::new(postgres().await.session().await.unwrap(), "test")
            }
            Kind::Sqlite => {
                let file = SqliteLocks::connect(url).await.unwrap();
                LockProvider::new(file.leases().await.unwrap(), "test")
            }
            Kind::MySqlLease | Kind::MariaDbLease => {
                LockProvider::new(mysql().await.leases().await.unwrap(), "test")
            }
            Kind::MySqlSession | Kind::MariaDbSession => {
                LockProvider::new(mysql().await.session().await.unwrap(), "test")
            }
        }
    }

    /// The maximum number of connections of a process, whatever it holds and waits for.
    pub fn connections(self) -> usize {
        match self {
            Kind::Process | Kind::Sqlite => 0,
            // One for commands, one for the notifications of releases.
            Kind::Redis => 2,
            Kind::Etcd => 1,
            #[cfg(feature = "hbase")]
            Kind::HBase => 1,
            // The pool, and two that watch the server; the test's own provider has the same.
            Kind::MongoDb | Kind::Aerospike => 2 * (STORE_POOL + 2),
            // The pool, and one for the notifications of releases.
            Kind::PostgresLease => POOL + 1,
            Kind::MySqlLease | Kind::MariaDbLease => POOL,
            kind if kind.is_session() => 1,
            _ => unreachable!("{self:?}"),
        }
    }

    /// The time after which the provider gives up a connection that does not answer.
    pub fn answer_timeout(self) -> Duration {
        match self {
            Kind::Process | Kind::Sqlite => Duration::ZERO,
            #[cfg(feature = "hbase")]
            Kind::HBase => Duration::from_secs(5),
            Kind::Redis | Kind::Etcd | Kind::MongoDb | Kind::Aerospike => Duration::from_secs(5),
            _ => Duration::from_secs(15),
        }
    }

    /// Whether the server ends a lease when its hold is over.
    pub fn expires(self) -> bool {
        !self.is_session()
    }

    /// Whether ending a lease by force ends all leases of its process.
    pub fn force_ends_sessions(self) -> bool {
        matches!(self, Kind::MySqlSession | Kind::MariaDbSession)
    }

    pub fn is_postgres(self) -> bool {
        matches!(self, Kind::PostgresLease | Kind::PostgresSession)
    }

    /// Whether its locks belong to a session of the server.
    pub fn is_session(self) -> bool {
        matches!(self, Kind::PostgresSession | Kind::MySqlSession | Kind::MariaDbSession)
    }

    /// The number of rounds of a test: fewer where another provider with the same code for what
    /// the test is about does the rest.
    pub fn rounds(self, usual: usize, soak: usize) -> usize {
        match self {
            Kind::Process | Kind::Redis | Kind::PostgresLease | Kind::PostgresSession => {
                rounds(usual, soak)
            }
            _ => rounds(usual.div_ceil(3), soak),
        }
    }
}
