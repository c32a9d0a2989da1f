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
mod backends;
mod error;
mod execute_locked;
mod lead;
mod listing;
mod options;
mod provider;
mod read_write;
mod registry;
mod run_once;
mod scope;
mod semaphore;
mod slots;
mod source;
mod with_lock;

pub use backend::{
    Attempt, BackendError, FailureKind, Grant, GrantExtension, GrantRequest, HandOver, Holder,
    LockBackend, Released,
};
pub use backends::cleaning::CleaningSlices;
pub use backends::current_client::{ClientFactory, CurrentClient, RequestClient};
pub use backends::hosts::with_port;
pub use backends::key_hints::KeyHints;
pub use backends::key_poller::{KeyPoller, KeyState, KeyStates, Pace};
#[cfg(feature = "mysql")]
pub use backends::mysql::{MySqlLocks, MySqlLocksError};
#[cfg(feature = "postgres")]
pub use backends::postgres::{PostgresLocks, PostgresLocksError};
pub use backends::process::ProcessBackend;
#[cfg(feature = "sqlite")]
pub use backends::sqlite::{SqliteLocks, SqliteLocksError};
pub use ekbatan_core::domain::{KeyPart, LockKey, LockLevel};
pub use ekbatan_core::lock_key;
pub use error::{LockError, LossCause, WithLockError};
pub use execute_locked::ExecuteLocked;
pub use listing::{HeldKey, HeldKeys};
pub use options::LockOptions;
pub use provider::lease::Lease;
pub use provider::lock_provider::{KeyedLockProvider, LockProvider};
pub use provider::telemetry::LockCounters;
pub use read_write::{ReadWriteLock, WriteLease};
pub use registry::servers::{BuiltIn, LockServers};
pub use registry::{KeyedLocksError, LockRegistry, ShardLocksError};
pub use run_once::{RunOnce, RunOnceError};
pub use scope::LockScope;
pub use semaphore::Semaphore;
pub use source::LockSource;
