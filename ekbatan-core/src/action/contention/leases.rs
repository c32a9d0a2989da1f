//! The leases that the executor needs: one on a key, which fences the commits made under it.

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;

use super::Pessimistic;
use crate::action::AsFence;
use crate::domain::LockKey;

/// A source of leases on contention keys. `LockProvider` and `KeyedLocks` of `ekbatan::lock`
/// implement it.
#[async_trait]
pub trait Leases: Send + Sync + 'static {
    /// Waits for a lease on the key, at most for as long as the options allow. Dropping the
    /// future at any await leaves nothing behind.
    async fn lease(
        &self,
        key: &LockKey,
        options: &Pessimistic,
    ) -> Result<Box<dyn HeldLease>, LeaseError>;

    /// The key by the one name that its lock has, if keys of several names lead to one lock. A call
    /// takes each lock once: it would wait for itself otherwise. All calls take their locks in the
    /// order of these names.
    fn named(&self, key: &LockKey) -> LockKey {
        key.clone()
    }
}

/// A lease that is held. Dropping it releases it without waiting.
#[async_trait]
pub trait HeldLease: AsFence + Send + Sync {
    /// Releases the lease, so that the next waiter can have the key.
    async fn release(self: Box<Self>);
}

/// Error returned when an action did not get its lease. The action did not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// Another holder had the key during the whole wait.
    #[error(
        "`{key}` was held by another holder during the whole wait of {waited:?}; nothing was written"
    )]
    Busy {
        /// The key.
        key: LockKey,
        /// How long the call waited.
        waited: Duration,
    },
    /// The lock backend failed.
    #[error("the lease on `{key}` could not be acquired: {source}")]
    Failed {
        /// The key.
        key: LockKey,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
}
