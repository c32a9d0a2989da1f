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
//! A holder that keeps others waiting for longer than its turn may last loses the group, in
//! whatever state: the group is passed on as if the guard were dropped, and the holder is left
//! with a guard that is *Lost*; see [`late_turns`](super::late_turns).
//!
//! Invariants: a group always has a guard. Wherever the guard is dropped, the group goes to the
//! next waiter or is committed. A repository of the holder that outlives its turn reads from the
//! database only.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tracing::Instrument;

use super::call_group::CallGroup;
use super::group_commit::{GroupCommit, GroupOutcome, GroupRequest};
use crate::action::attempt::Attempt;
use crate::action::call_queues::{CallQueues, QueuedCall};
use crate::action::contention::conflict_tracker::ConflictTracker;
use crate::action::contention::{Coalesced, HeldLease};
use crate::action::effect::EffectRunner;
use crate::domain::{LockKey, TableKey};
use crate::repository::{PendingReads, PendingRow, RowKey};

/// What a waiting call or a member receives.
pub(super) type MemberOutcome = GroupOutcome<GroupGuard>;
/// The place of a call in the queue of its key.
pub(super) type QueuePlace = QueuedCall<GroupRequest, MemberOutcome>;

/// The groups of an executor.
pub(in crate::action::contention) struct Coalescer {
    pub(super) queues: CallQueues<LockKey, GroupRequest, MemberOutcome, CurrentTurn>,
    pub(super) tracker: Arc<ConflictTracker>,
    effects: EffectRunner,
    /// A call can be dropped outside of a runtime and leave a group that must be committed.
    runtime: OnceLock<Handle>,
    /// Whether a task ends late turns.
    pub(super) is_watched: AtomicBool,
}

impl Coalescer {
    pub(in crate::action::contention) fn new(
        tracker: Arc<ConflictTracker>,
        effects: EffectRunner,
    ) -> Self {
        Self {
            queues: CallQueues::default(),
            tracker,
            effects,
            runtime: OnceLock::new(),
            is_watched: AtomicBool::new(false),
        }
    }

    /// The place of a call in every queue. It keeps the first one that it gets, so that a call that runs
    /// again goes before those that came after it.
    pub(in crate::action::contention) fn number(&self, attempt: &mut Attempt) -> u64 {
        *attempt.queue_number.get_or_insert_with(|| self.queues.draw_number())
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
        let turn = self.queues.enter(key, number, request)?;
        Ok(self.open(key, turn, request.options))
    }

    /// Puts calls back in their old places. Returns the guard if the key was free.
    fn put_back(self: &Arc<Self>, key: &LockKey, places: Vec<QueuePlace>) -> Option<GroupGuard> {
        let options = places.first()?.request.options;
        let turn = self.queues.put_back(key, places);
        // They may wait for a call that entered when nobody waited. A task that ends looks at the
        // queues once more, so this comes after the calls are there.
        self.watch_turns();
        Some(self.open(key, turn?, options))
    }

    fn open(self: &Arc<Self>, key: &LockKey, turn: CurrentTurn, options: Coalesced) -> GroupGuard {
        let calls = CallGroup::new(options);
        let group = KeyGroup { coalescer: self.clone(), key: key.clone(), turn, calls };
        GroupGuard::begin_turn(GroupState::Open(group), options.turn)
    }
}

/// The group of a key.
pub(super) struct KeyGroup {
    pub(super) coalescer: Arc<Coalescer>,
    pub(super) key: LockKey,
    turn: CurrentTurn,
    pub(super) calls: CallGroup<GroupGuard>,
}

impl KeyGroup {
    /// Whether any call waits until the holder has passed the group on.
    fn is_waited_for(&self) -> bool {
        !self.calls.members.is_empty() || self.has_waiters()
    }

    /// Whether any call waits for the guard.
    pub(super) fn has_waiters(&self) -> bool {
        self.coalescer.queues.has_waiters(&self.key)
    }

    /// Takes out the members so far, with what they commit.
    fn take_members(&mut self, lease: Option<Box<dyn HeldLease>>) -> GroupCommit<GroupGuard> {
        let (members, batch, fencing) = self.calls.take_members();
        GroupCommit {
            key: self.key.clone(),
            members,
            batch,
            fencing,
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
pub(super) enum GroupState {
    Open(KeyGroup),
    /// The channel carries whether the sealed members are committed, once that is known.
    Sealed(KeyGroup, watch::Receiver<Option<bool>>),
    Invalid(KeyGroup),
    /// The holder has passed the group on.
    PassedOn,
    /// The holder's turn was ended because it lasted too long.
    Lost {
        /// Whether what the holder read may never be committed.
        relied: bool,
    },
}

impl GroupState {
    pub(super) fn group(&mut self) -> Option<&mut KeyGroup> {
        match self {
            Self::Open(group) | Self::Sealed(group, _) | Self::Invalid(group) => Some(group),
            Self::PassedOn | Self::Lost { .. } => None,
        }
    }

    /// The group, if its pending rows may be read.
    fn readable(&mut self) -> Option<&mut KeyGroup> {
        match self {
            Self::Open(group) | Self::Sealed(group, _) => Some(group),
            Self::Invalid(_) | Self::PassedOn | Self::Lost { .. } => None,
        }
    }

    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::PassedOn)
    }

    /// Takes the group away from its holder.
    fn lose(&mut self) -> Self {
        let relied = match self {
            Self::Open(group) | Self::Sealed(group, _) => group.calls.relied,
            Self::Invalid(_) => true,
            Self::PassedOn => false,
            Self::Lost { relied } => *relied,
        };
        std::mem::replace(self, Self::Lost { relied })
    }

    /// Open -> Sealed, if there are members. The holder keeps the lease.
    pub(super) fn seal(&mut self) {
        match self.take() {
            Self::Open(mut group) if !group.calls.members.is_empty() => {
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
                group.calls.pending.clear();
                let relied = std::mem::take(&mut group.calls.relied);
                *self = if relied && !committed { Self::Invalid(group) } else { Self::Open(group) };
            }
            other => *self = other,
        }
    }

    /// The state that the next holder starts with.
    fn renewed(self) -> Self {
        match self {
            Self::Open(mut group) | Self::Invalid(mut group) => {
                group.calls.relied = false;
                Self::Open(group)
            }
            Self::Sealed(mut group, sealed) => {
                group.calls.relied = false;
                group.calls.pending.clear();
                Self::Sealed(group, sealed)
            }
            other => other,
        }
    }

    /// Hands the group to the next waiter, commits it, or ends it.
    fn pass_on(self) {
        let mut state = self.renewed();
        while let Some(group) = state.group() {
            let has_members = !group.calls.members.is_empty();
            let queues = &group.coalescer.queues;
            let next = queues.next(&group.key, has_members, |request| group.calls.accepts(request));
            match next {
                Some(QueuePlace { reply, request, .. }) => {
                    let guard = GroupGuard::begin_turn(state, request.options.turn);
                    match reply.send(GroupOutcome::Run(guard, request.mode)) {
                        // The waiter was dropped in this moment.
                        Err(GroupOutcome::Run(guard, _)) => state = guard.0.lock().state.take(),
                        _ => return,
                    }
                }
                None if has_members => {
                    let lease = group.calls.lease.take();
                    let commit = group.take_members(lease);
                    group.calls.fencing = None;
                    group.calls.pending.clear();
                    let coalescer = group.coalescer.clone();
                    return start_commit(coalescer, commit, Some(GroupGuard::idle(state)), None);
                }
                None => return,
            }
        }
    }
}

/// The group during one turn, as the holder, its repositories, and those who end late turns see
/// it.
pub(super) struct GroupReads(Mutex<Turn>);

/// A call's turn on a group.
pub(super) struct Turn {
    pub(super) state: GroupState,
    /// When the turn ends if others wait; `None` if it has no bound.
    until: Option<Instant>,
}

impl GroupReads {
    /// No panic can leave the state inconsistent: every transition ends with an assignment.
    pub(super) fn lock(&self) -> MutexGuard<'_, Turn> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until sealed members are committed or not.
    pub(super) async fn sealed(&self) {
        let mut sealed = match &self.lock().state {
            GroupState::Sealed(_, sealed) => sealed.clone(),
            _ => return,
        };
        let result = sealed.wait_for(Option::is_some).await;
        let committed = result.is_ok_and(|committed| *committed == Some(true));
        // Several readers may wait; the first of them unseals.
        self.lock().state.unseal(committed);
    }

    /// Passes the group on if the turn is over and others wait.
    fn end_if_late(&self, now: Instant) {
        let mut turn = self.lock();
        let is_over = turn.until.is_some_and(|until| until <= now);
        if is_over && turn.state.group().is_some_and(|group| group.is_waited_for()) {
            let state = turn.state.lose();
            drop(turn);
            state.pass_on();
        }
    }
}

impl PendingReads for GroupReads {
    fn find(&self, key: RowKey) -> Option<PendingRow> {
        let mut turn = self.lock();
        let group = turn.state.readable()?;
        let row = group.calls.pending.get(&key).cloned();
        group.calls.relied |= row.is_some();
        row
    }

    fn settle(&self, table: TableKey) -> Option<BoxFuture<'_, ()>> {
        let mut turn = self.lock();
        if !turn.state.readable()?.calls.pending.keys().any(|(of, _)| *of == table) {
            return None;
        }
        turn.state.seal();
        drop(turn);
        Some(self.sealed().boxed())
    }
}

/// The latest turn on a key.
#[derive(Clone, Default)]
pub(super) struct CurrentTurn(Arc<Mutex<Weak<GroupReads>>>);

impl CurrentTurn {
    fn lock(&self) -> MutexGuard<'_, Weak<GroupReads>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the turn if it is over and others wait.
    pub(super) fn end_if_late(&self, now: Instant) {
        let reads = self.lock().upgrade();
        if let Some(reads) = reads {
            reads.end_if_late(now);
        }
    }
}

/// The right to run on a group, unless the turn is lost. Dropping it passes the group on.
pub(super) struct GroupGuard(pub(super) Arc<GroupReads>);

impl GroupGuard {
    /// The guard of a call whose turn begins.
    fn begin_turn(mut state: GroupState, bound: Duration) -> Self {
        let current = state.group().map(|group| group.turn.clone());
        let guard = Self::idle(state);
        guard.0.lock().until = Instant::now().checked_add(bound);
        if let Some(current) = current {
            *current.lock() = Arc::downgrade(&guard.0);
        }
        guard
    }

    /// A guard that no call holds.
    fn idle(state: GroupState) -> Self {
        Self(Arc::new(GroupReads(Mutex::new(Turn { state, until: None }))))
    }

    /// Lets the turn begin now, and last for so long. Fails if the turn is lost.
    pub(super) fn restart_turn(&self, bound: Duration) -> bool {
        let mut turn = self.0.lock();
        turn.until = Instant::now().checked_add(bound);
        turn.state.group().is_some()
    }

    /// The guard of the same group for a call that runs again. Earlier reads through the group
    /// no longer see it.
    pub(super) fn renew(self, bound: Duration) -> Self {
        let state = self.0.lock().state.take();
        Self::begin_turn(state.renewed(), bound)
    }
}

impl Drop for GroupGuard {
    fn drop(&mut self) {
        let state = self.0.lock().state.take();
        state.pass_on();
    }
}

#[cfg(test)]
mod tests {
    use super::super::group_commit::RunMode;
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
            assert_eq!((queues.holders().len(), queues.has_waiters(&key)), (1, true));
            drop(dropped);
            drop(guard);
            let Ok(GroupOutcome::Run(guard, RunMode::First)) = next.await else {
                panic!("the next waiter holds {key}")
            };
            assert!(!queues.has_waiters(&key));
            drop(guard);
            assert!(queues.holders().is_empty());
        }
    }
}
