//! What the holder of a group's guard asks the group.

use std::sync::Arc;

use tokio::time::Instant;

use super::call_group::CallGroup;
use super::group::{GroupGuard, GroupReads, GroupState, KeyGroup};
use super::group_commit::Member;
use crate::action::contention::{Coalesced, HeldLease};
use crate::action::shard_batches::ShardBatch;
use crate::repository::PendingRow;
use crate::shard::Fencing;

/// What a holder needs to know once it has performed. All of it is true at the same moment.
pub(super) enum Standing {
    /// The holder can join the group.
    Holds(GroupView),
    /// The holder read rows that will never be committed.
    Invalid,
    /// The turn was ended.
    Lost {
        /// Whether the holder read rows that may never be committed.
        relied: bool,
    },
}

/// A group, as its holder sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupView {
    pub(super) is_empty: bool,
    /// Whether the batch can be committed together with those of the members.
    pub(super) may_join: bool,
    /// Whether the holder's batch is stale once the members are committed.
    pub(super) is_outdated: bool,
    /// Whether the batch is within the group's bounds. An empty group takes any batch.
    pub(super) has_room: bool,
    /// Whether the holder's result is valid only if the present members commit.
    pub(super) relies_on_members: bool,
    /// Whether another call waits for this guard.
    pub(super) has_waiters: bool,
}

impl GroupView {
    fn new(group: &KeyGroup, batches: &[ShardBatch]) -> Self {
        let calls = &group.calls;
        let is_empty = calls.members.is_empty();
        let (may_join, has_room) = match batches {
            [] => (true, true),
            [batch] => {
                let bytes = calls.batch.bytes() + batch.batch.size();
                // A commit that the database refuses for its size would run all members again.
                let most = calls.options.bytes.min(batch.database.sizes().commit());
                (calls.batch.can_join(batch), is_empty || bytes <= most)
            }
            _ => (false, true),
        };
        Self {
            is_empty,
            may_join,
            is_outdated: !may_join && batches.iter().any(|batch| calls.batch.outdates(batch)),
            has_room,
            relies_on_members: calls.relied && !is_empty,
            has_waiters: group.has_waiters(),
        }
    }
}

impl GroupGuard {
    /// Asks the group; `None` if the turn is lost.
    fn ask<R>(&self, ask: impl FnOnce(&mut CallGroup<GroupGuard>) -> R) -> Option<R> {
        self.0.lock().state.group().map(|group| ask(&mut group.calls))
    }

    /// Reads through the rows of the members.
    pub(super) fn reads(&self) -> Arc<GroupReads> {
        self.0.clone()
    }

    /// How the holder stands with the batches that it wants to commit; `None` while sealed members
    /// are being committed, whose rows it may have read.
    pub(super) fn standing(&self, batches: &[ShardBatch]) -> Option<Standing> {
        Some(match &self.0.lock().state {
            GroupState::Open(group) => Standing::Holds(GroupView::new(group, batches)),
            GroupState::Sealed(..) => return None,
            GroupState::Invalid(_) => Standing::Invalid,
            GroupState::Lost { relied } => Standing::Lost { relied: *relied },
            // Not reached: passing the group on consumes the guard.
            GroupState::PassedOn => Standing::Lost { relied: true },
        })
    }

    pub(super) fn is_lost(&self) -> bool {
        self.ask(|_| ()).is_none()
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

    /// Lets the group commit under a lease. Releases the lease if the turn is lost.
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

    /// Takes the lease out of a group without members.
    pub(super) fn take_unused_lease(&self) -> Option<Box<dyn HeldLease>> {
        let is_empty = self.ask(|group| group.members.is_empty());
        if is_empty == Some(true) { self.take_lease() } else { None }
    }

    /// Starts to commit the members so far, without waiting for it.
    pub(super) fn seal(&self) {
        self.0.lock().state.seal();
    }

    /// Waits until sealed members are committed or not.
    pub(super) async fn sealed(&self) {
        self.0.sealed().await;
    }

    /// Adds the holder's call to the group and passes the guard on. Fails if the turn is lost, or if
    /// a repository of the holder has sealed the group.
    pub(super) fn join(
        self,
        member: Member<GroupGuard>,
        batch: Option<ShardBatch>,
        pending: Vec<PendingRow>,
    ) -> bool {
        let mut turn = self.0.lock();
        let GroupState::Open(group) = &mut turn.state else { return false };
        group.calls.join(member, batch, pending);
        true
    }
}
