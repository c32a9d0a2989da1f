//! What goes wrong around locks, told apart by type. That a lock is busy is none of it.

use std::time::Duration;

use ekbatan_core::config::LockProviderKind;
use ekbatan_core::db::DbError;
use ekbatan_core::domain::ShardIdentifier;
use ekbatan_core::shard::ShardError;

use super::{BackendError, LockKey};

/// How a lease ended before it was released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LossCause {
    /// It was held for as long as it may be.
    #[error("it was held for {0:?}, which is all that was asked for")]
    Expired(Duration),
    /// Its term ran out at the server before it could be renewed.
    #[error("its term could not be renewed in time: {0}")]
    NotRenewed(String),
    /// The server session that held it is gone.
    #[error("the session that held it is gone: {0}")]
    SessionGone(String),
    /// Somebody else has it.
    #[error("somebody else has taken it")]
    Taken,
    /// The locks of this process were closed.
    #[error("the locks were closed")]
    Closed,
    /// An operator ended it.
    #[error("it was ended by force: {0}")]
    Forced(String),
}

/// A lock that could not be had, held or given back, for another reason than that it is busy.
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
    /// The backend failed; the lock is not held.
    #[error("the lock on `{key}` could not be had: {source}")]
    Backend {
        /// The key.
        key: LockKey,
        /// Why.
        source: BackendError,
    },
    /// A lease was ended by force, and its fence could not be raised everywhere: what it was
    /// committing may still go through. Do it again.
    #[error(
        "the lease on `{key}` was ended, but its fence could not be raised on every shard: {source}; end it again"
    )]
    Fence {
        /// The key.
        key: LockKey,
        /// Why.
        source: DbError,
    },
    /// The backend could not be set up.
    #[error("locks are not to be had here: {source}")]
    Start {
        /// Why.
        source: BackendError,
    },
    /// The backend cannot keep its promise as it is set up.
    #[error("locks are refused here: {reason}")]
    Unsafe {
        /// Why, and what to do.
        reason: String,
    },
    /// A duration that no lock can have.
    #[error("`{key}`: {what} is {value:?}; it must be longer than zero")]
    Duration {
        /// The key.
        key: LockKey,
        /// Which.
        what: &'static str,
        /// The value.
        value: Duration,
    },
    /// The key is blank.
    #[error("a lock's key is blank; name what is locked, such as `wallet:17`")]
    BlankKey,
    /// The shard that the key belongs to has no locks.
    #[error("`{key}` has no lock: shard {shard} has no `lock-config`. {advice}")]
    NoLocks {
        /// The key.
        key: LockKey,
        /// The shard.
        shard: ShardIdentifier,
        /// What to add to the configuration.
        advice: String,
    },
    /// The shard that the key belongs to is not configured.
    #[error("`{key}` has no lock: {source}")]
    Shard {
        /// The key.
        key: LockKey,
        /// Which shard, and which there are.
        source: ShardError,
    },
    /// What the configuration names is not compiled in.
    #[error("the provider `{provider}` is not compiled in: {advice}")]
    NotCompiledIn {
        /// What is named.
        provider: LockProviderKind,
        /// What to do.
        advice: &'static str,
    },
    /// The locks were closed.
    #[error("the locks were closed while `{key}` was waited for")]
    Closed {
        /// The key.
        key: LockKey,
    },
}

/// Why `with_lock` has no output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WithLockError<E> {
    /// The work's own error, untouched.
    #[error(transparent)]
    Work(E),
    /// The lock was not to be had in time; the work did not begin.
    #[error("`{key}` was held by somebody else for all of {waited:?}")]
    Busy {
        /// The key.
        key: LockKey,
        /// How long was waited.
        waited: Duration,
    },
    /// The lock failed; the work did not begin.
    #[error(transparent)]
    Lock(#[from] LockError),
}
