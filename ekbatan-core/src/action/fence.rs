//! The fence of a commit: a lease's token, which the database compares at the commit.
//!
//! Invariants: on every shard that an action reads, the fence is raised before the first
//! read; on a shard that it only writes, before the commit. Once a later lease has raised the
//! fence of the same key, nothing is committed under the earlier one, whatever the action
//! does with the error.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::db::{FenceCheck, LeaseEnd};
use crate::shard::{Fencing, Shards};

/// The longest time until a lease ends. Clocks cannot count to the end of every `Duration`.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 86_400);

/// A lease's token, by which a commit checks that the lease is still valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// The lock's key: at most 255 characters, none of them the character 0. Every character counts, also a
    /// space at the end.
    pub key: String,
    /// The token, which grows with every grant of the key.
    ///
    /// The bits above the lowest 16 are taken for the time of the grant, in milliseconds since
    /// 1970, unless they are less than those of the year 2020: such tokens merely count. On a shard
    /// that has no fence of the key, or no longer, a token that is a time and more than 30 days old
    /// is refused. A fence whose token merely counts is kept for ever.
    pub token: i64,
    /// The time until the lease ends, counted from now.
    pub remaining: Duration,
}

/// A lease that can fence a commit.
pub trait AsFence {
    /// The fence in its present state.
    fn as_fence(&self) -> Fence;

    /// The time until the lease ends, whenever it is called. A lease that can be extended
    /// returns this, so that its fence lasts as long as the lease.
    fn remaining_later(&self) -> Option<Arc<dyn Fn() -> Duration + Send + Sync>> {
        None
    }

    /// Further leases of the same holder, which fence the call as well: a holder may have several.
    fn others(&self) -> Vec<&dyn AsFence> {
        Vec::new()
    }
}

impl AsFence for Fence {
    fn as_fence(&self) -> Fence {
        self.clone()
    }
}

/// What points to a lease fences as the lease does.
macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<F: AsFence + ?Sized> AsFence for $pointer {
            fn as_fence(&self) -> Fence {
                (**self).as_fence()
            }

            fn remaining_later(&self) -> Option<Arc<dyn Fn() -> Duration + Send + Sync>> {
                (**self).remaining_later()
            }

            fn others(&self) -> Vec<&dyn AsFence> {
                (**self).others()
            }
        }
    )*};
}

pointers!(&F, Box<F>, Arc<F>);

/// The fencing of a call under a lease, in addition to the leases `before` it.
pub(super) fn fenced_by<L>(shards: &Shards, before: Option<&Fencing>, lease: &L) -> Arc<Fencing>
where
    L: AsFence + ?Sized,
{
    // Read the clock first: a slow `as_fence` must not prolong the lease.
    let asked = Instant::now();
    let fence = lease.as_fence();
    let until = LeaseEnd::new(asked + fence.remaining.min(LONGEST), lease.remaining_later());
    let check = FenceCheck { key: fence.key, token: fence.token };
    // A crash of the server may lose the fence of a shard that was only read; then an expired
    // lease could change the rows that were read. With one shard the commit itself finds the
    // fence missing, so the fence need not reach the disk first.
    let to_disk = !shards.is_single();
    let fencing = Arc::new(Fencing::new(before, check, until, to_disk));
    let others = lease.others();
    others.iter().fold(fencing, |fencing, other| fenced_by(shards, Some(&fencing), *other))
}
