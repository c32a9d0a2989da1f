//! The fence: what a lease gives a commit to be held back by.

use std::time::Duration;

/// A lease's token, by which a commit makes sure that the lease still holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// The lock's key.
    pub key: String,
    /// The token, which grows with every grant of the key.
    pub token: i64,
    /// How long the lease lasts from now on.
    pub remaining: Duration,
}

/// What can fence a commit: a lease.
pub trait AsFence {
    /// The fence, as it stands now.
    fn as_fence(&self) -> Fence;
}

impl AsFence for Fence {
    fn as_fence(&self) -> Fence {
        self.clone()
    }
}

impl<F: AsFence> AsFence for &F {
    fn as_fence(&self) -> Fence {
        (*self).as_fence()
    }
}
