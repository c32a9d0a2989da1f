//! What the holder of a group's guard asks the group.

use std::sync::Arc;

use tokio::time::Instant;

use super::group::GroupGuard;
use super::group_batch::size;
use crate::action::contention::{Coalesced, HeldLease};
use crate::action::shard_batches::ShardBatch;
use crate::shard::Fencing;

impl GroupGuard {
    pub(super) fn is_group_empty(&self) -> bool {
        self.ask(|group| group.members.is_empty()).unwrap_or(true)
    }

    /// Gives a group without members the options of its first one.
    pub(super) fn begin(&self, options: Coalesced) {
        self.ask(|group| {
            if group.members.is_empty() {
                group.options = options;
            }
        });
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.ask(|group| group.until()).flatten()
    }

    pub(super) fn fencing(&self) -> Option<Arc<Fencing>> {
        self.ask(|group| group.fencing.clone()).flatten()
    }

    /// Lets the group commit under a lease.
    pub(super) fn set_lease(&self, lease: Box<dyn HeldLease>, fencing: Arc<Fencing>) {
        self.ask(|group| {
            group.lease = Some(lease);
            group.fencing = Some(fencing);
        });
    }

    /// Takes the lease out of the group.
    pub(super) fn take_lease(&self) -> Option<Box<dyn HeldLease>> {
        self.ask(|group| {
            group.fencing = None;
            group.lease.take()
        })
        .flatten()
    }

    /// Whether a call's batch can be committed together with those of the members.
    pub(super) fn can_merge(&self, batch: &ShardBatch) -> bool {
        self.ask(|group| group.batch.can_merge(batch)).unwrap_or(false)
    }

    /// Whether a call's batch is within the group's bounds. An empty group takes any batch.
    pub(super) fn has_room_for(&self, batch: &ShardBatch) -> bool {
        self.ask(|group| {
            group.members.is_empty()
                || group.batch.bytes() + size(&batch.batch) <= group.options.bytes
        })
        .unwrap_or(true)
    }

    /// Whether another call waits for this guard.
    pub(super) fn is_waited_for(&self) -> bool {
        self.ask(|group| group.coalescer.queues.has_waiters(&group.key)).unwrap_or(false)
    }

    /// Whether the holder's result is valid only if the present members commit.
    pub(super) fn relies_on_members(&self) -> bool {
        self.ask(|group| group.relied && !group.members.is_empty()).unwrap_or(false)
    }
}
