//! The providers that the suite runs on.

use std::time::Duration;

use ekbatan::lock::{LockProvider, PostgresLocks, ProcessBackend};
use ekbatan_lock_redis::RedisBackend;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Process,
    Redis,
    PostgresLease,
    PostgresSession,
}

/// The size of a provider's connection pool.
const POOL: usize = 4;

impl Kind {
    /// A provider, as one process connects it.
    pub async fn connect(self, url: &str) -> LockProvider {
        let postgres = async || PostgresLocks::connect(url, POOL).await.unwrap();
        match self {
            Kind::Process => LockProvider::new(ProcessBackend::new(), "test"),
            Kind::Redis => {
                let backend = RedisBackend::connect(url, RedisBackend::NAMESPACE).await.unwrap();
                LockProvider::new(backend, "test")
            }
            Kind::PostgresLease => {
                LockProvider::new(postgres().await.leases().await.unwrap(), "test")
            }
            Kind::PostgresSession => {
                LockProvider::new(postgres().await.session().await.unwrap(), "test")
            }
        }
    }

    /// The maximum number of connections of a process, whatever it holds and waits for.
    pub fn connections(self) -> usize {
        match self {
            Kind::Process => 0,
            // One for commands, one for the notifications of releases.
            Kind::Redis => 2,
            // The pool, and one for the notifications of releases.
            Kind::PostgresLease => POOL + 1,
            Kind::PostgresSession => 1,
        }
    }

    /// The time after which the provider gives up a connection that does not answer.
    pub fn answer_timeout(self) -> Duration {
        match self {
            Kind::Process => Duration::ZERO,
            Kind::Redis => Duration::from_secs(5),
            Kind::PostgresLease | Kind::PostgresSession => Duration::from_secs(15),
        }
    }

    /// Whether the server ends a lease when its hold is over.
    pub fn expires(self) -> bool {
        self != Kind::PostgresSession
    }
}
