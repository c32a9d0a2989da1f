//! The state machine of a group.
//!
//! ```text
//!                     enter: the key was free
//!                               |
//!                               v
//!                        +-------------+   join, and the next waiter fits
//!        run again   +-> |    Open     | -----------------------------------> Open
//!     +------------> |   +-------------+
//!     |              |     |    |    |    join, and no waiter fits     +------------+
//!     |              |     |    |    +-------------------------------> | committing | --> Open
//!     |              |     |    |                                      +------------+
//!     |              |     |    |   leave, no members and no waiter
//!     |   committed, |     |    +-----------------------------------> the key is free
//!     |   or no row  |     | seal
//!     |   was read   |     v
//!     |              |   +-------------+
//!     |              +-- |   Sealed    |
//!     |                  +-------------+
//!     |                    | not committed
//!     |                    v
//!     |                  +-------------+
//!     +----------------- |   Invalid   |
//!                        +-------------+
//! ```
//!
//! - *Open*: a call holds the [`GroupGuard`]. It reads the rows that the members stage, then
//!   joins and passes the guard on.
//! - *Sealed*: the members so far are being committed while the holder goes on. It seals when
//!   the group's time is up, when it reads more than rows by id, and when its own rows do not
//!   fit into the group.
//! - *Invalid*: the holder read rows of sealed members that were then not committed.
//! - *committing*: the guard waits in the task of [`GroupCommit`].
//!
//! Invariants: the guard is never lost. Wherever it is dropped, it goes to the next waiter, or
//! the group is committed. A repository of the holder that outlives the guard reads from the
//! database only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tracing::Instrument;

use super::group_batch::GroupBatch;
use super::group_commit::{GroupCommit, GroupOutcome, GroupRequest, Member, RunMode};
use crate::action::call_queues::{CallQueues, QueuedCall};
use crate::action::contention::conflict_tracker::ConflictTracker;
use crate::action::contention::{Coalesced, HeldLease};
use crate::action::effect::EffectRunner;
use crate::action::shard_batches::ShardBatch;
use crate::domain::{LockKey, TableKey};
use crate::repository::{PendingReads, PendingRow, RowKey};
use crate::shard::Fencing;

/// What a waiting call or a member receives.
pub(super) type MemberOutcome = GroupOutcome<GroupGuard>;
/// The place of a call in the queue of its key.
pub(super) type QueuePlace = QueuedCall<GroupRequest, MemberOutcome>;

/// The groups of an executor.
pub(in crate::action::contention) struct Coalescer {
    pub(super) queues: CallQueues<LockKey, GroupRequest, MemberOutcome>,
    pub(super) tracker: Arc<ConflictTracker>,
    effects: EffectRunner,
    /// A call can be dropped outside of a runtime and leave a group that must be committed.
    runtime: OnceLock<Handle>,
}

impl Coalescer {
    pub(in crate::action::contention) fn new(
        tracker: Arc<ConflictTracker>,
        effects: EffectRunner,
    ) -> Self {
        Self { queues: CallQueues::default(), tracker, effects, runtime: OnceLock::new() }
    }

    /// Enters the queue of a key. Returns the guard if the key is free, otherwise the channel
    /// to wait on.
    pub(super) fn enter(
        self: &Arc<Self>,
        key: &LockKey,
        number: u64,
        request: GroupRequest,
    ) -> Result<GroupGuard, oneshot::Receiver<MemberOutcome>> {
        self.runtime.get_or_init(Handle::current);
        match self.queues.enter(key, number, request) {
            Some(waiting) => Err(waiting),
            None => Ok(self.open(key, request.options)),
        }
    }

    /// Puts calls back in their old places. Returns the guard if the key was free.
    fn put_back(self: &Arc<Self>, key: &LockKey, places: Vec<QueuePlace>) -> Option<GroupGuard> {
        let options = places.first()?.request.options;
        self.queues.put_back(key, places).then(|| self.open(key, options))
    }

    fn open(self: &Arc<Self>, key: &LockKey, options: Coalesced) -> GroupGuard {
        GroupGuard::new(GroupState::Open(CallGroup::new(self.clone(), key.clone(), options)))
    }
}

/// A group: the calls that are going to commit together.
pub(super) struct CallGroup {
    pub(super) coalescer: Arc<Coalescer>,
    pub(super) key: LockKey,
    /// The options of the first member.
    pub(super) options: Coalesced,
    pub(super) members: Vec<Member<GroupGuard>>,
    pub(super) batch: GroupBatch,
    /// The rows that the members stage. Sealed members' rows stay until their commit ends.
    pending: HashMap<RowKey, PendingRow>,
    /// Whether the holder has read pending rows.
    pub(super) relied: bool,
    /// When the first member joined.
    opened: Option<Instant>,
    /// The fence of the lease under which the group commits, if there is one.
    pub(super) fencing: Option<Arc<Fencing>>,
    pub(super) lease: Option<Box<dyn HeldLease>>,
}

impl CallGroup {
    fn new(coalescer: Arc<Coalescer>, key: LockKey, options: Coalesced) -> Self {
        Self {
            coalescer,
            key,
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

    /// When the group must be committed at the latest.
    pub(super) fn until(&self) -> Option<Instant> {
        self.opened.map(|opened| opened + self.options.time)
    }

    fn is_full(&self) -> bool {
        self.members.len() >= self.options.members
            || self.batch.bytes() >= self.options.bytes
            || self.until().is_some_and(|until| Instant::now() >= until)
    }

    /// Whether a waiter may run on this group.
    fn accepts(&self, request: &GroupRequest) -> bool {
        self.members.is_empty()
            || (request.mode != RunMode::Alone
                && request.options.lease == self.options.lease
                && !self.is_full())
    }

    fn join(
        &mut self,
        member: Member<GroupGuard>,
        batch: Option<ShardBatch>,
        pending: Vec<PendingRow>,
    ) {
        self.opened.get_or_insert_with(Instant::now);
        if let Some(batch) = batch {
            self.batch.merge(member.action, batch);
        }
        self.members.push(member);
        self.pending.extend(pending.into_iter().map(|row| (row.key, row)));
    }

    /// Takes out the members so far, with what they commit.
    fn take_members(&mut self, lease: Option<Box<dyn HeldLease>>) -> GroupCommit<GroupGuard> {
        self.opened = None;
        GroupCommit {
            key: self.key.clone(),
            members: std::mem::take(&mut self.members),
            batch: std::mem::take(&mut self.batch),
            fencing: self.fencing.clone(),
            lease,
            tracker: self.coalescer.tracker.clone(),
            effects: self.coalescer.effects.clone(),
        }
    }
}

/// Starts the commit of a group. When it ends, the guard is passed on, if it waits for the
/// commit, and the result is sent to a holder that goes on meanwhile.
fn start_commit(
    coalescer: Arc<Coalescer>,
    commit: GroupCommit<GroupGuard>,
    guard: Option<GroupGuard>,
    result: Option<watch::Sender<Option<bool>>>,
) {
    let (groups, key, span) = (coalescer.clone(), commit.key.clone(), commit.span());
    let ended = move |committed: bool, again: Vec<QueuePlace>| {
        let put_back = groups.put_back(&key, again);
        if let Some(result) = result {
            let _ = result.send(Some(committed));
        }
        // After a seal the holder may have ended, and the key may have become free.
        drop(guard.or(put_back));
    };
    let committing = commit.run(ended).instrument(span);
    match Handle::try_current().ok().as_ref().or(coalescer.runtime.get()) {
        Some(runtime) => drop(runtime.spawn(committing)),
        // Not reached: the first call that entered a queue has stored its runtime.
        None => drop(committing),
    }
}

/// The states that a holder of the guard meets; see the diagram above.
enum GroupState {
    Open(CallGroup),
    /// The channel carries whether the sealed members are committed, once that is known.
    Sealed(CallGroup, watch::Receiver<Option<bool>>),
    Invalid(CallGroup),
    /// The guard was passed on, and with it the group.
    PassedOn,
}

impl GroupState {
    fn group(&mut self) -> Option<&mut CallGroup> {
        match self {
            Self::Open(group) | Self::Sealed(group, _) | Self::Invalid(group) => Some(group),
            Self::PassedOn => None,
        }
    }

    /// The group, if its pending rows may be read.
    fn readable(&mut self) -> Option<&mut CallGroup> {
        match self {
            Self::Open(group) | Self::Sealed(group, _) => Some(group),
            Self::Invalid(_) | Self::PassedOn => None,
        }
    }

    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::PassedOn)
    }

    /// Open -> Sealed, if there are members. The holder keeps the lease.
    fn seal(&mut self) {
        match self.take() {
            Self::Open(mut group) if !group.members.is_empty() => {
                let (result, sealed) = watch::channel(None);
                let commit = group.take_members(None);
                start_commit(group.coalescer.clone(), commit, None, Some(result));
                *self = Self::Sealed(group, sealed);
            }
            other => *self = other,
        }
    }

    /// Sealed -> Open or Invalid, when the commit of the sealed members has ended.
    fn unseal(&mut self, committed: bool) {
        match self.take() {
            Self::Sealed(mut group, _) => {
                group.pending.clear();
                let relied = std::mem::take(&mut group.relied);
                *self = if relied && !committed { Self::Invalid(group) } else { Self::Open(group) };
            }
            other => *self = other,
        }
    }

    /// The state that the next holder starts with.
    fn renewed(self) -> Self {
        match self {
            Self::Open(mut group) | Self::Invalid(mut group) => {
                group.relied = false;
                Self::Open(group)
            }
            Self::Sealed(mut group, sealed) => {
                group.relied = false;
                group.pending.clear();
                Self::Sealed(group, sealed)
            }
            Self::PassedOn => Self::PassedOn,
        }
    }

    /// Hands the group to the next waiter, commits it, or ends it.
    fn pass_on(self) {
        let mut state = self.renewed();
        while let Some(group) = state.group() {
            let has_members = !group.members.is_empty();
            let queues = &group.coalescer.queues;
            let next = queues.next(&group.key, has_members, |request| group.accepts(request));
            match next {
                Some(QueuePlace { reply, request, .. }) => {
                    let outcome = GroupOutcome::Run(GroupGuard::new(state), request.mode);
                    match reply.send(outcome) {
                        // The waiter was dropped in this moment.
                        Err(GroupOutcome::Run(guard, _)) => state = guard.0.lock().take(),
                        _ => return,
                    }
                }
                None if has_members => {
                    let lease = group.lease.take();
                    let commit = group.take_members(lease);
                    group.fencing = None;
                    group.pending.clear();
                    let coalescer = group.coalescer.clone();
                    return start_commit(coalescer, commit, Some(GroupGuard::new(state)), None);
                }
                None => return,
            }
        }
    }
}

/// The group as its holder and the holder's repositories see it.
pub(super) struct GroupReads(Mutex<GroupState>);

impl GroupReads {
    /// No panic can leave the state inconsistent: every transition ends with an assignment.
    fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn sealed(&self) {
        let mut sealed = match &*self.lock() {
            GroupState::Sealed(_, sealed) => sealed.clone(),
            _ => return,
        };
        let result = sealed.wait_for(Option::is_some).await;
        let committed = result.is_ok_and(|committed| *committed == Some(true));
        // Several readers may wait; the first of them unseals.
        self.lock().unseal(committed);
    }
}

impl PendingReads for GroupReads {
    fn find(&self, key: RowKey) -> Option<PendingRow> {
        let mut state = self.lock();
        let group = state.readable()?;
        let row = group.pending.get(&key).cloned();
        group.relied |= row.is_some();
        row
    }

    fn settle(&self, table: TableKey) -> Option<BoxFuture<'_, ()>> {
        let mut state = self.lock();
        if !state.readable()?.pending.keys().any(|(of, _)| *of == table) {
            return None;
        }
        state.seal();
        drop(state);
        Some(self.sealed().boxed())
    }
}

/// The right to run on a group. Dropping it passes the group on.
pub(super) struct GroupGuard(Arc<GroupReads>);

impl GroupGuard {
    fn new(state: GroupState) -> Self {
        Self(Arc::new(GroupReads(Mutex::new(state))))
    }

    /// Reads through the rows of the members.
    pub(super) fn reads(&self) -> Arc<GroupReads> {
        self.0.clone()
    }

    /// The group exists as long as its guard: `None` is never returned.
    pub(super) fn ask<R>(&self, ask: impl FnOnce(&mut CallGroup) -> R) -> Option<R> {
        self.0.lock().group().map(ask)
    }

    /// Whether the holder read rows that will never be committed.
    pub(super) fn is_invalid(&self) -> bool {
        matches!(&*self.0.lock(), GroupState::Invalid(_))
    }

    /// Starts to commit the members so far, without waiting for it.
    pub(super) fn seal(&self) {
        self.0.lock().seal();
    }

    /// Waits until sealed members are committed or not.
    pub(super) async fn sealed(&self) {
        self.0.sealed().await;
    }

    /// Adds the holder's call to the group and passes the guard on.
    pub(super) fn join(
        self,
        member: Member<GroupGuard>,
        batch: Option<ShardBatch>,
        pending: Vec<PendingRow>,
    ) {
        self.ask(|group| group.join(member, batch, pending));
    }

    /// Puts the holder's call back in its place and passes the guard on.
    pub(super) fn put_back(self, place: QueuePlace) {
        // The key is in use while the guard exists, so this returns no second guard.
        self.ask(|group| group.coalescer.queues.put_back(&group.key, vec![place]));
    }

    /// The guard of the same group for a call that runs again. Earlier reads through the group
    /// no longer see it.
    pub(super) fn renew(self) -> Self {
        let state = self.0.lock().take();
        Self::new(state.renewed())
    }
}

impl Drop for GroupGuard {
    fn drop(&mut self) {
        let state = self.0.lock().take();
        state.pass_on();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_has_a_queue_only_while_a_call_holds_its_guard() {
        let tracker = Arc::new(ConflictTracker::new(false));
        let coalescer = Arc::new(Coalescer::new(tracker, EffectRunner::default()));
        let queues = &coalescer.queues;
        let request = GroupRequest { mode: RunMode::First, options: Coalesced::default() };
        let enter = |key: &LockKey| coalescer.enter(key, queues.draw_number(), request);
        for n in 0..10_000 {
            let key = LockKey::of("wallet", n);
            let Ok(guard) = enter(&key) else { panic!("{key} is free") };
            let (Err(dropped), Err(next)) = (enter(&key), enter(&key)) else {
                panic!("a call holds {key}");
            };
            assert_eq!((queues.count(), queues.has_waiters(&key)), (1, true));
            drop(dropped);
            drop(guard);
            let Ok(GroupOutcome::Run(guard, RunMode::First)) = next.await else {
                panic!("the next waiter holds {key}")
            };
            assert!(!queues.has_waiters(&key));
            drop(guard);
            assert_eq!(queues.count(), 0);
        }
    }
}
