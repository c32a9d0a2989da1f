//! What the executor needs of locks: a lease on a key, by which a commit is fenced.

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;

use super::{ContentionKey, Pessimistic};
use crate::action::AsFence;

/// Gives leases on what calls contend for. The lock provider of `ekbatan::lock` is one.
#[async_trait]
pub trait Leases: Send + Sync + 'static {
    /// Waits for the key's lease as long as the options say. The future may be dropped at any
    /// await and leaves nothing behind.
    async fn lease(
        &self,
        key: &ContentionKey,
        options: &Pessimistic,
    ) -> Result<Box<dyn HeldLease>, LeaseError>;
}

/// A lease that is held. Dropping it gives it back without waiting.
#[async_trait]
pub trait HeldLease: AsFence + Send + Sync {
    /// Gives it back: the next one may have the key.
    async fn release(self: Box<Self>);
}

/// A lease that could not be had; the action did not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// Somebody else held the key for all of the wait.
    #[error(
        "the lease on `{key}` was held by somebody else for all of {waited:?}; nothing was written"
    )]
    Busy {
        /// The key.
        key: ContentionKey,
        /// How long was waited.
        waited: Duration,
    },
    /// The locks failed.
    #[error("the lease on `{key}` could not be had: {source}")]
    Failed {
        /// The key.
        key: ContentionKey,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
}
