//! Errors of locks, distinguished by type. A busy lock is not an error.

use std::time::Duration;

use ekbatan_core::config::LockProviderKind;
use ekbatan_core::db::DbError;
use ekbatan_core::domain::ShardIdentifier;
use ekbatan_core::shard::ShardError;

use crate::{BackendError, FailureKind, LockKey};

/// How a lease ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LossCause {
    /// `max_hold` has passed.
    #[error("it was held for {0:?}, its maximum")]
    Expired(Duration),
    /// The term at the server ended before it could be renewed.
    #[error("its term could not be renewed in time: {0}")]
    NotRenewed(String),
    /// The server session that held the key is gone.
    #[error("the session that held it is gone: {0}")]
    SessionGone(String),
    /// Another holder has the key.
    #[error("another holder has taken the key")]
    Taken,
    /// The provider was closed.
    #[error("the locks were closed")]
    Closed,
    /// The task of this process that kept the lease has ended, with its runtime or by a panic.
    #[error("the task that kept it has ended")]
    Abandoned,
    /// The lease was released, and then used. [`Lease::lost`](crate::Lease::lost) does not resolve with it.
    #[error("it was released")]
    Released,
    /// An operator ended the lease.
    #[error("it was ended by force: {0}")]
    Forced(String),
}

/// Error returned when a lock cannot be acquired, kept or released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The lease is over.
    #[error("the lease on `{key}` is over: {cause}")]
    Lost {
        /// The key.
        key: LockKey,
        /// How it ended.
        cause: LossCause,
    },
    /// The lock server cannot be used at present. The request had no effect. The holder of
    /// the lock is not known.
    #[error("the lock server of `{key}` is not available: {source}")]
    Unavailable {
        /// The key.
        key: LockKey,
        /// The cause.
        source: BackendError,
    },
    /// The lock server did not answer a request that was sent to it. The request may have had
    /// its effect. The caller has no lease: a grant that it does not know of is released, at
    /// the latest when its term ends.
    #[error("the lock server did not answer about `{key}`: {source}")]
    InDoubt {
        /// The key.
        key: LockKey,
        /// The cause.
        source: BackendError,
    },
    /// The lock server refused the request. The lock is not held.
    #[error("the lock on `{key}` was refused: {source}")]
    Backend {
        /// The key.
        key: LockKey,
        /// The cause.
        source: BackendError,
    },
    /// A lease was ended by force, but its fence could not be raised on every shard. A commit
    /// under the lease may still succeed. Repeat the call.
    #[error(
        "the lease on `{key}` was ended, but its fence could not be raised on every shard: {source}; end it again"
    )]
    Fence {
        /// The key.
        key: LockKey,
        /// The cause.
        source: DbError,
    },
    /// The keys that are held could not be listed.
    #[error("the locks could not be listed: {source}")]
    List {
        /// The cause.
        source: BackendError,
    },
    /// The backend could not be started.
    #[error("the lock backend could not be started: {source}")]
    Start {
        /// The cause.
        source: BackendError,
    },
    /// The server is set up so that locks on it are not safe.
    #[error("locks are not safe here: {reason}")]
    Unsafe {
        /// The reason, and what to do.
        reason: String,
    },
    /// A duration that must be longer than zero is zero.
    #[error("`{key}`: {what} is {value:?}; it must be longer than zero")]
    Duration {
        /// The key.
        key: LockKey,
        /// The name of the option.
        what: &'static str,
        /// The value.
        value: Duration,
    },
    /// The number of permits or readers is out of range.
    #[error("`{key}` has {count} {what}; name a number from 1 to {most}")]
    Count {
        /// The key.
        key: LockKey,
        /// What is counted.
        what: &'static str,
        /// The number.
        count: usize,
        /// The greatest number.
        most: usize,
    },
    /// A scope that reads under a read/write lock asked to write.
    #[error(
        "the scope reads under `{key}` and cannot write: two readers that both want to write would wait for each other; release the read lease first, or write from the start"
    )]
    Upgrade {
        /// The key.
        key: LockKey,
    },
    /// The key is one of all zones, and the locks cannot be reached from other zones.
    #[error(
        "`{key}` is a key of all zones, and {backend} locks can be reached from one zone only: take it from a lock server that all zones reach, or give it `LockLevel::Zone`"
    )]
    OneZone {
        /// The key.
        key: LockKey,
        /// The name of the backend.
        backend: &'static str,
    },
    /// The key is blank.
    #[error("a lock's key is blank; name what is locked, such as `wallet:17`")]
    BlankKey,
    /// The key's shard has no locks.
    #[error("`{key}` has no lock: shard {shard} has no `lock-config`. {advice}")]
    NoLocks {
        /// The key.
        key: LockKey,
        /// The shard.
        shard: ShardIdentifier,
        /// The configuration to add.
        advice: String,
    },
    /// The key's shard is not configured.
    #[error("`{key}` has no lock: {source}")]
    Shard {
        /// The key.
        key: LockKey,
        /// The shard, and the shards that exist.
        source: ShardError,
    },
    /// The configured provider is not compiled in.
    #[error("the provider `{provider}` is not compiled in: {advice}")]
    NotCompiledIn {
        /// The provider.
        provider: LockProviderKind,
        /// What to do.
        advice: &'static str,
    },
    /// The provider was closed.
    #[error("the locks were closed while waiting for `{key}`")]
    Closed {
        /// The key.
        key: LockKey,
    },
}

impl LockError {
    /// The error of a request about the key.
    pub(crate) fn of(key: &LockKey, source: BackendError) -> Self {
        let key = key.clone();
        match source.kind() {
            FailureKind::Unavailable => Self::Unavailable { key, source },
            FailureKind::InDoubt => Self::InDoubt { key, source },
            FailureKind::Refused => Self::Backend { key, source },
        }
    }
}

/// Error of [`LockSource::with_lock`](crate::LockSource::with_lock), `with_locks`, `with_permit`,
/// `with_read`, `with_write` and [`ExecuteLocked`](crate::ExecuteLocked).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WithLockError<E> {
    /// The work's own error, unchanged.
    #[error(transparent)]
    Work(E),
    /// Others had the key during the whole wait: another holder, or as many as it has permits. The
    /// work did not begin.
    #[error("`{key}` was held by others during the whole wait of {waited:?}")]
    Busy {
        /// The key.
        key: LockKey,
        /// How long the call waited.
        waited: Duration,
    },
    /// The lock failed. The work did not begin.
    #[error(transparent)]
    Lock(#[from] LockError),
}
