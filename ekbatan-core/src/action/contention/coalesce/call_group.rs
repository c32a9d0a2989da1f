//! The calls that are going to commit together, and what they commit.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::group_batch::GroupBatch;
use super::group_commit::{GroupRequest, Member, RunMode};
use crate::action::contention::{Coalesced, HeldLease};
use crate::action::shard_batches::ShardBatch;
use crate::repository::{PendingRow, RowKey};
use crate::shard::Fencing;

/// A group of calls. `G` is its guard, which [`group`](super::group) defines.
pub(super) struct CallGroup<G> {
    /// The options of the first member.
    pub(super) options: Coalesced,
    pub(super) members: Vec<Member<G>>,
    pub(super) batch: GroupBatch,
    /// The rows that the members stage. Sealed members' rows stay until their commit ends.
    pub(super) pending: HashMap<RowKey, PendingRow>,
    /// Whether the holder has read pending rows.
    pub(super) relied: bool,
    /// When the first member joined.
    opened: Option<Instant>,
    /// The fence of the lease under which the group commits, if there is one.
    pub(super) fencing: Option<Arc<Fencing>>,
    pub(super) lease: Option<Box<dyn HeldLease>>,
}

impl<G> CallGroup<G> {
    pub(super) fn new(options: Coalesced) -> Self {
        Self {
            options,
            members: Vec::new(),
            batch: GroupBatch::default(),
            pending: HashMap::new(),
            relied: false,
            opened: None,
            fencing: None,
            lease: None,
        }
    }

    /// When the group must be committed at the latest, if it has members and a bound.
    pub(super) fn until(&self) -> Option<Instant> {
        self.opened?.checked_add(self.options.time)
    }

    fn is_full(&self) -> bool {
        self.members.len() >= self.options.members
            || self.batch.bytes() >= self.options.bytes
            || self.until().is_some_and(|until| Instant::now() >= until)
    }

    /// Whether a waiter may run on this group.
    pub(super) fn accepts(&self, request: &GroupRequest) -> bool {
        self.members.is_empty()
            || (request.mode != RunMode::Alone
                && request.options.lease == self.options.lease
                && !self.is_full())
    }

    pub(super) fn join(
        &mut self,
        member: Member<G>,
        batch: Option<ShardBatch>,
        pending: Vec<PendingRow>,
    ) {
        self.opened.get_or_insert_with(Instant::now);
        if let Some(batch) = batch {
            self.batch.join(self.members.len(), batch);
        }
        self.members.push(member);
        self.pending.extend(pending.into_iter().map(|row| (row.key, row)));
    }

    /// Takes out the members so far, with what they commit and the fence under which they do.
    pub(super) fn take_members(&mut self) -> (Vec<Member<G>>, GroupBatch, Option<Arc<Fencing>>) {
        self.opened = None;
        let members = std::mem::take(&mut self.members);
        (members, std::mem::take(&mut self.batch), self.fencing.clone())
    }
}
