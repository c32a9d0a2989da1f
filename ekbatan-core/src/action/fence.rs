//! The fence: what a lease gives a commit to be held back by.
//!
//! What always holds: on every shard that an action reads, the fence is raised before it reads
//! there; on a shard that it only writes, before it commits. Of a lease whose fence was passed
//! by a later one nothing is committed, whatever the action makes of the error.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::commit::Deadline;
use super::parts::ShardBatch;
use super::{Action, ActionExecutor, ExecuteError, Execution};
use crate::db::FenceCheck;
use crate::shard::{Fencing, FencingError};

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

impl ActionExecutor {
    /// A lease's fence, beside those of leases `before` it.
    pub(super) fn fencing<L>(&self, before: Option<&Fencing>, lease: &L) -> Arc<Fencing>
    where
        L: AsFence + ?Sized,
    {
        // The time first: a lease is never made longer by being asked.
        let asked = Instant::now();
        let fence = lease.as_fence();
        let until = asked + fence.remaining;
        let check = FenceCheck { key: fence.key, token: fence.token };
        // A crash may forget the fence of a shard that is read and not committed on, and a
        // lease that is over could then change what was read. With one shard, what matters is
        // committed there, and that commit finds the fence gone.
        let to_disk = !self.databases().shards.is_single();
        Arc::new(Fencing::new(before, check, until, to_disk))
    }
}

impl<A: Action> Execution<'_, A> {
    /// Refuses to begin under a lease that is known to be over, without a trip.
    pub(super) fn check_lease(&self) -> Result<(), ExecuteError<A::Error>> {
        match self.options.fencing.as_ref().and_then(|fencing| fencing.over()) {
            Some(key) => Err(ExecuteError::FenceLost { key: key.to_owned() }),
            None => Ok(()),
        }
    }

    /// The answer of an action to which a read was refused.
    pub(super) fn fence_lost(&self) -> Option<ExecuteError<A::Error>> {
        let key = self.options.fencing.as_ref()?.refused()?;
        Some(ExecuteError::FenceLost { key: key.to_owned() })
    }

    /// Raises the fence on the shards that were not read: the commit alone could not tell
    /// whether a later lease was there before, nor by the server's clock when this one ends.
    /// Behind the first of several shards it is raised once more, since what has committed on
    /// one is not taken back when the next refuses.
    pub(super) async fn raise_before_commit(
        &self,
        parts: &[ShardBatch],
        deadline: Deadline,
    ) -> Result<(), ExecuteError<A::Error>> {
        let Some(fencing) = &self.options.fencing else { return Ok(()) };
        // The server counts from when it was told, and so a little longer than this process.
        self.check_lease()?;
        let raising = async {
            if parts.is_empty() && fencing.stands_nowhere() {
                // An action that neither reads nor writes may have effects.
                let default = self.executor.inner.databases.shards.default();
                fencing.stand(default, A::NAME).await?;
            }
            for (n, part) in parts.iter().enumerate() {
                match n {
                    0 => fencing.stand(&part.database, A::NAME).await?,
                    _ => fencing.stand_again(&part.database, A::NAME).await?,
                }
            }
            Ok(())
        };
        match deadline.bound(raising).await.map_err(|after| ExecuteError::Deadline { after })? {
            Ok(()) => Ok(()),
            Err(FencingError::Lost(key)) => Err(ExecuteError::FenceLost { key }),
            Err(FencingError::Database(error)) => Err(error.into()),
        }
    }
}
