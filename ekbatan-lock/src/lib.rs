//! Keyed locks: leases on keys, with one contract over every backend.
//!
//! Two callers that name the same key exclude each other. Callers that name different keys
//! never wait for each other. A lease ends by itself after the time that its holder asked for,
//! and a commit that is fenced by it is rejected afterwards.
//!
//! The layers: a [`LockBackend`] grants and releases keys at one server. [`LockProvider`] adds
//! what is the same for every backend: the fair queue within the process, re-entry, deadlines,
//! renewal and loss. [`LockRegistry`] has one provider per shard, as the configuration says.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod backend;
mod cleaning;
mod error;
mod execute_locked;
mod force;
mod inline_task;
mod key_hints;
mod key_poller;
mod key_queue;
mod key_worker;
mod lead;
mod lease;
mod leases;
mod listing;
#[cfg(feature = "mysql")]
mod mysql;
mod options;
#[cfg(feature = "postgres")]
mod postgres;
mod process;
mod provider;
mod provider_state;
mod read_write;
mod registry;
mod renewals;
mod run_once;
mod scope;
mod semaphore;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod server_clock;
mod servers;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod session;
mod slots;
mod source;
#[cfg(feature = "sqlite")]
mod sqlite;
mod telemetry;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod to_the_end;
mod with_lock;

pub use backend::{
    Attempt, BackendError, FailureKind, Grant, GrantExtension, GrantRequest, HandOver, Holder,
    LockBackend, Released,
};
pub use cleaning::CleaningSlices;
pub use ekbatan_core::domain::{KeyPart, LockKey, LockLevel};
pub use ekbatan_core::lock_key;
pub use error::{LockError, LossCause, WithLockError};
pub use execute_locked::ExecuteLocked;
pub use key_hints::KeyHints;
pub use key_poller::{KeyPoller, KeyState, KeyStates, Pace};
pub use lease::Lease;
pub use listing::{HeldKey, HeldKeys};
#[cfg(feature = "mysql")]
pub use mysql::{MySqlLocks, MySqlLocksError};
pub use options::LockOptions;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresLocks, PostgresLocksError};
pub use process::ProcessBackend;
pub use provider::{KeyedLockProvider, LockProvider};
pub use read_write::{ReadWriteLock, WriteLease};
pub use registry::{KeyedLocksError, LockRegistry, ShardLocksError};
pub use run_once::{RunOnce, RunOnceError};
pub use scope::LockScope;
pub use semaphore::Semaphore;
pub use servers::{BuiltIn, LockServers};
pub use source::LockSource;
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteLocks, SqliteLocksError};
pub use telemetry::LockCounters;
