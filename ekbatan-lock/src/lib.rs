//! Keyed locks: leases on keys, with one contract over every backend.
//!
//! Two callers who name the same key exclude each other; callers who name different keys
//! never wait for each other. A lease ends by itself after the time that its holder asked
//! for, and a commit that is fenced by it cannot go through afterwards.
//!
//! Who knows whom: a [`LockBackend`] grants and releases keys at a server and knows nothing
//! else. [`LockProvider`] stands on one and does what is the same for all of them: the fair
//! queue within the process, re-entry, deadlines, renewal, loss. [`KeyedLocks`] has one for
//! each shard, as the configuration says.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backend;
mod desk;
mod error;
mod force;
mod lease;
mod leases;
#[cfg(feature = "mysql")]
mod mysql;
mod options;
#[cfg(feature = "postgres")]
mod postgres;
mod process;
mod provider;
mod registry;
mod run_once;
mod scope;
mod servers;
#[cfg(feature = "sqlite")]
mod sqlite;
mod telemetry;
mod with_lock;

pub use backend::{Attempt, BackendError, Grant, GrantRequest, Holder, LockBackend, Released};
pub use ekbatan_core::domain::{KeyPart, LockKey, LockLevel};
pub use ekbatan_core::lock_key;
pub use error::{LockError, LossCause, WithLockError};
pub use lease::Lease;
#[cfg(feature = "mysql")]
pub use mysql::{MySqlLeaseBackend, MySqlLocks, MySqlLocksError, MySqlSessionBackend};
pub use options::LockOptions;
#[cfg(feature = "postgres")]
pub use postgres::{
    PostgresLeaseBackend, PostgresLocks, PostgresLocksError, PostgresSessionBackend,
};
pub use process::ProcessBackend;
pub use provider::{KeyedLockProvider, LockProvider};
pub use registry::{KeyedLocks, KeyedLocksError, LockRegistry, ShardLocksError};
pub use run_once::{RunOnce, RunOnceError, run_once};
pub use scope::LockScope;
pub use servers::{BuiltIn, LockServers};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteLeaseBackend, SqliteLocks, SqliteLocksError};
pub use telemetry::LockCounters;
pub use with_lock::{ExecuteLocked, with_lock, with_locks};
