//! The turn of a line: the group so far, handed from member to member.
//!
//! What always holds: a turn is never lost. Dropped, by whoever has it and wherever it is, it
//! goes to the next in line, and where nobody is next the group is committed. What its holder
//! reads, also through repositories that it lends out, goes through the [`Seat`], which knows
//! nothing more once the turn has gone on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::HeldLease;
use super::group::{Fit, Group, Member};
use super::group_commit::GroupCommit;
use super::line::{Next, Run, Waiter};
use super::overlay::Overlay;
use crate::action::executor::Inner;
use crate::action::parts::ShardBatch;
use crate::db::{Committed, DbErrorKind};
use crate::domain::{LockKey, TableKey};
use crate::repository::{PendingReads, PendingRow, RowKey};
use crate::shard::Fencing;

/// What a member of the line is told.
pub(super) enum Told {
    /// It is its turn.
    Turn(Turn, Run),
    /// The group is committed.
    Committed {
        committed: Committed,
        /// How many were committed together.
        members: usize,
        /// Resolves when its effects have run, if it has any.
        effects: Option<oneshot::Receiver<()>>,
    },
    /// Whether the group is committed is unknown.
    Unknown(String),
    /// The database was not to be had, and would not be had for each one alone either.
    Refused(DbErrorKind, String),
}

/// How a commit on its way went; nothing while it is on its way.
type OnItsWay = watch::Receiver<Option<bool>>;

/// What goes from member to member.
struct Work {
    inner: Arc<Inner>,
    key: LockKey,
    group: Group,
    overlay: Overlay,
    /// A group that was sealed while the turn was out, and that what is read builds on.
    sealed: Option<OnItsWay>,
}

/// The turn, as long as somebody has it.
pub(super) struct Turn {
    seat: Arc<Seat>,
}

/// Where reads learn what the group will leave.
pub(crate) struct Seat(Mutex<State>);

struct State {
    /// Until the turn goes on.
    work: Option<Work>,
    /// Whether anything was read that no database has.
    relied: bool,
    /// Whether something of that will never be.
    misled: bool,
}

impl Work {
    /// Hands the turn on.
    fn pass(mut self) {
        if self.sealed.is_some() {
            self.overlay.clear();
        }
        loop {
            let inner = self.inner.clone();
            match inner.strategies.lines.next(&self.key, &self.group) {
                Next::Nobody => return,
                Next::Commit => return self.commit(),
                Next::Waiter(Waiter { tell, run, .. }) => {
                    match tell.send(Told::Turn(Turn::of(self), run)) {
                        // It left in this very moment.
                        Err(Told::Turn(turn, _)) => {
                            let work = turn.seat.lock().work.take();
                            let Some(work) = work else { return };
                            self = work;
                        }
                        _ => return,
                    }
                }
            }
        }
    }

    /// Lets the group be committed, and the turn wait for that.
    fn commit(mut self) {
        let next = Group::new(self.group.options);
        let group = std::mem::replace(&mut self.group, next);
        self.overlay.clear();
        let (inner, key) = (self.inner.clone(), self.key.clone());
        GroupCommit::new(inner, key, group, Some(Turn::of(self)), None).start();
    }

    /// Lets the group so far be committed while the turn stays where it is.
    fn seal(&mut self) {
        if self.group.is_empty() {
            return;
        }
        let (done, on_its_way) = watch::channel(None);
        let mut next = Group::new(self.group.options);
        // Whoever has the turn goes on reading under the lease.
        next.lease = self.group.lease.take();
        next.fencing = self.group.fencing.clone();
        let group = std::mem::replace(&mut self.group, next);
        self.sealed = Some(on_its_way);
        GroupCommit::new(self.inner.clone(), self.key.clone(), group, None, Some(done)).start();
    }
}

impl Turn {
    pub(super) fn new(inner: Arc<Inner>, key: LockKey, group: Group) -> Self {
        Self::of(Work { inner, key, group, overlay: Overlay::default(), sealed: None })
    }

    fn of(work: Work) -> Self {
        let state = State { work: Some(work), relied: false, misled: false };
        Self { seat: Arc::new(Seat(Mutex::new(state))) }
    }

    pub(super) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// Asks the group, which is there as long as the turn is.
    pub(super) fn group<R>(&self, ask: impl FnOnce(&mut Group) -> R) -> Option<R> {
        self.seat.lock().work.as_mut().map(|work| ask(&mut work.group))
    }

    pub(super) fn is_group_empty(&self) -> bool {
        self.group(|group| group.is_empty()).unwrap_or(true)
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.group(|group| group.until()).flatten()
    }

    pub(super) fn fencing(&self) -> Option<Arc<Fencing>> {
        self.group(|group| group.fencing.clone()).flatten()
    }

    /// Takes the lease out, for a commit that needs it and is not the group's.
    pub(super) fn take_lease(&self) -> Option<Box<dyn HeldLease>> {
        self.group(|group| {
            group.fencing = None;
            group.lease.take()
        })
        .flatten()
    }

    pub(super) fn fit(&self, part: &ShardBatch) -> Fit {
        self.group(|group| group.fit(part)).unwrap_or(Fit::Apart)
    }

    /// Whether somebody waits for this turn.
    pub(super) fn is_waited_for(&self) -> bool {
        let state = self.seat.lock();
        state.work.as_ref().is_some_and(|work| work.inner.strategies.lines.has_waiters(&work.key))
    }

    /// Whether what was read holds only if the present group commits.
    pub(super) fn relies_on_group(&self) -> bool {
        let state = self.seat.lock();
        state.relied && state.work.as_ref().is_some_and(|work| !work.group.is_empty())
    }

    /// Whether something was read that will never be.
    pub(super) fn was_misled(&self) -> bool {
        self.seat.lock().misled
    }

    /// Joins the group, and hands the turn on.
    pub(super) fn join(self, member: Member, part: Option<ShardBatch>, rows: Vec<PendingRow>) {
        if let Some(work) = self.seat.lock().work.as_mut() {
            work.group.join(member, part);
            work.overlay.extend(rows);
        }
    }

    /// Hands the turn on and takes the old place in the line again.
    pub(super) fn put_back(self, waiter: Waiter) {
        if let Some(work) = &self.seat.lock().work {
            // The line is there as long as the turn is.
            let _ = work.inner.strategies.lines.put_back(&work.inner, &work.key, vec![waiter]);
        }
    }

    /// The same turn for one who begins again.
    pub(super) fn afresh(self) -> Self {
        match self.seat.lock().work.take() {
            Some(work) => Self::of(work),
            None => Self { seat: self.seat.clone() },
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let work = self.seat.lock().work.take();
        if let Some(work) = work {
            work.pass();
        }
    }
}

impl Seat {
    /// What is guarded stays consistent between statements.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the group so far be committed, without waiting for it.
    pub(super) fn seal(&self) {
        if let Some(work) = &mut self.lock().work {
            work.seal();
        }
    }

    /// Waits for a group that was sealed while the turn was out.
    pub(super) async fn sealed(&self) {
        let on_its_way = self.lock().work.as_ref().and_then(|work| work.sealed.clone());
        let Some(mut on_its_way) = on_its_way else { return };
        let committed = match on_its_way.wait_for(Option::is_some).await {
            Ok(committed) => *committed == Some(true),
            Err(_) => false,
        };
        let mut state = self.lock();
        let State { work: Some(work), relied, misled } = &mut *state else { return };
        // Of those who wait, the first one clears away what all of them waited for.
        if work.sealed.take().is_some() {
            work.overlay.clear();
            *misled |= *relied && !committed;
            *relied = false;
        }
    }
}

impl PendingReads for Seat {
    fn find(&self, key: RowKey) -> Option<PendingRow> {
        let mut state = self.lock();
        let row = state.work.as_ref()?.overlay.find(key).cloned();
        state.relied |= row.is_some();
        row
    }

    fn settle(&self, table: TableKey) -> Option<BoxFuture<'_, ()>> {
        {
            let mut state = self.lock();
            let work = state.work.as_mut()?;
            if !work.overlay.has_rows_of(table) {
                return None;
            }
            work.seal();
        }
        Some(self.sealed().boxed())
    }
}
