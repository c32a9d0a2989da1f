//! The providers that the suite runs on, and how a process gets one.

use ekbatan::lock::{PostgresLocks, ProcessBackend};
use ekbatan::prelude::*;
use ekbatan_lock_redis::RedisBackend;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Process,
    Redis,
    PostgresLease,
    PostgresSession,
}

/// How many connections a pool of locks has here.
const POOL: usize = 4;

impl Kind {
    /// A provider as one process has it.
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

    /// How many connections a process has at most, whatever it holds and waits for.
    pub fn connections(self) -> usize {
        match self {
            Kind::Process => 0,
            // Commands, and word of free keys.
            Kind::Redis => 2,
            // The pool, and word of free keys.
            Kind::PostgresLease => POOL + 1,
            Kind::PostgresSession => 1,
        }
    }

    /// Whether the server ends a lease by itself when its time is over.
    pub fn expires(self) -> bool {
        self != Kind::PostgresSession
    }
}
