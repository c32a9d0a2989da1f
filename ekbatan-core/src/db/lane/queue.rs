//! The batches that wait for a lane.
//!
//! A batch leaves the queue in one of two ways: a lane takes it, or its caller withdraws it (its
//! future was dropped, or its deadline has passed). Both happen under one lock, so a caller
//! knows which of the two it was.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use uuid::Uuid;

use super::batches::{Answer, QueuedBatch, TakenBatches, UnsettledActions};
use super::limit::LaneLimit;
use super::open_actions::OpenActions;
use super::queued_batches::QueuedBatches;
use super::tasks::LaneTasks;
use crate::db::{ActionId, CommitBatch, CommitError, DbError, DbErrorKind, RowChange, RowRef};
use crate::domain::TableKey;

/// How many bytes the batches of one statement have; further batches wait for the next one. A
/// single batch may have more.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Identifies a row that an update or a delete changes.
type RowKey = (TableKey, Uuid);

fn row_key(change: &RowChange) -> RowKey {
    (change.table.table.key(), change.id)
}

#[derive(Default)]
pub(super) struct State {
    /// Every batch that no lane has taken.
    queued: QueuedBatches,
    /// The order in which they are taken. Skips those that are parked, and may still name some
    /// that were withdrawn.
    waiting: VecDeque<ActionId>,
    /// Rows that a batch in flight updates or deletes, each with the actions whose batches change
    /// it or expect it to be unchanged, and are parked behind it. These, too, may have been
    /// withdrawn.
    in_flight: HashMap<RowKey, Vec<ActionId>>,
    /// What lanes had taken when they died.
    pub(super) abandoned: Vec<TakenBatches>,
    /// What tasks asked for that were dropped.
    pub(super) unsettled: Vec<UnsettledActions>,
    pub(super) tasks: LaneTasks,
    pub(super) closed: bool,
}

impl State {
    /// Whether there is anything to do for a lane.
    pub(super) fn has_work(&self) -> bool {
        !self.queued.is_empty() || !self.abandoned.is_empty()
    }

    /// The batches whose callers wait for an answer.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = &QueuedBatch> {
        self.abandoned.iter().flat_map(|taken| &taken.batches).chain(self.queued.iter())
    }

    /// Removes the names of withdrawn batches when they are more than those of others.
    fn forget_withdrawn(&mut self) {
        if self.waiting.len() > 2 * self.queued.len() + 64 {
            self.waiting.retain(|action| self.queued.contains(*action));
        }
    }

    fn park(&mut self, row: &RowKey, action: ActionId) {
        let Some(parked) = self.in_flight.get_mut(row) else { return };
        if parked.len() == parked.capacity() {
            parked.retain(|action| self.queued.contains(*action));
        }
        parked.push(action);
    }
}

pub(super) struct CommitQueue {
    state: Mutex<State>,
    /// The number of batches that may be queued.
    limit: usize,
    /// The number of bytes that the queued batches may have. A queue that is empty takes any batch.
    limit_bytes: usize,
    wake: Notify,
    closing: Notify,
    /// A lane has ended, or left something behind.
    pub(super) lane_ended: Notify,
    open_actions: Arc<OpenActions>,
}

impl CommitQueue {
    pub(super) fn new(limit: usize, limit_bytes: usize, lanes: &LaneLimit) -> Self {
        let state = State { tasks: LaneTasks::new(lanes.lanes()), ..State::default() };
        Self {
            state: Mutex::new(state),
            limit,
            limit_bytes,
            wake: Notify::new(),
            closing: Notify::new(),
            lane_ended: Notify::new(),
            open_actions: Arc::default(),
        }
    }

    pub(super) fn open_actions(&self) -> &Arc<OpenActions> {
        &self.open_actions
    }

    /// The state is consistent between statements, so a panic elsewhere does not invalidate it.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a batch. Returns how many lanes the caller must start, because they have died.
    pub(super) fn push(&self, batch: CommitBatch, answer: Answer) -> Result<usize, DbError> {
        let action = batch.action;
        let open = self.open_actions.open(action);
        let runtime = Handle::try_current().ok();
        let has_runtime = runtime.is_some();
        let (bytes, since) = (batch.size(), Instant::now());
        let queued = QueuedBatch { batch, since, bytes, answer, open, runtime };
        let mut state = self.state();
        if state.closed {
            return Err(closed());
        }
        if state.queued.len() >= self.limit {
            return Err(overloaded(self.limit));
        }
        let queued_bytes = state.queued.bytes();
        if !state.queued.is_empty() && bytes > self.limit_bytes.saturating_sub(queued_bytes) {
            return Err(too_many_bytes(queued_bytes, bytes, self.limit_bytes));
        }
        if state.queued.contains(action) {
            return Err(queued_twice(action));
        }
        state.queued.insert(queued);
        state.waiting.push_back(action);
        let missing = if has_runtime { state.tasks.claim_missing_lanes() } else { 0 };
        drop(state);
        // A lane that fell asleep lately has a warm connection.
        self.wake.notify_last();
        Ok(missing)
    }

    /// Takes the number of lanes from `limit`: another lane may have changed it since the caller did.
    /// Those beyond it leave when they look at the queue next.
    pub(super) fn want_lanes(&self, limit: &LaneLimit) {
        let mut state = self.state();
        state.tasks.want(limit.lanes());
        let too_many = state.tasks.too_many_lanes();
        drop(state);
        if too_many {
            self.wake.notify_waiters();
        }
    }

    /// Takes all waiting batches up to the limits. `None` if the lane has to leave: the queue is closed
    /// and empty, or there are too many lanes. It counts as [`Leaving`](super::tasks::TaskKind) then.
    pub(super) async fn next(&self, max_batches: usize, max_rows: usize) -> Option<TakenBatches> {
        loop {
            // Register before checking, so that a notification in between is not missed.
            let woken = self.wake.notified();
            let next = self.take(max_batches, max_rows);
            if next.more_waiting {
                self.wake.notify_one();
            }
            if !next.taken.batches.is_empty() {
                return Some(next.taken);
            }
            if next.leaves {
                self.wake.notify_one(); // so that another lane looks, and leaves if it has to
                return None;
            }
            woken.await;
        }
    }

    fn take(&self, max_batches: usize, max_rows: usize) -> Next {
        let mut state = self.state();
        // What a dead lane has left may be what the other lanes wait for.
        if let Some(taken) = state.abandoned.pop() {
            return Next { taken, more_waiting: true, leaves: false };
        }
        let mut taken = TakenBatches::default();
        if state.tasks.too_many_lanes() {
            state.tasks.lane_leaves();
            return Next { taken, more_waiting: false, leaves: true };
        }
        let (mut rows, mut bytes) = (0, 0);
        while taken.batches.len() < max_batches && rows < max_rows && bytes < MAX_BYTES {
            let Some(action) = state.waiting.pop_front() else { break };
            let Some(queued) = state.queued.get(action) else { continue };
            // A row that a batch in flight expects to be unchanged may be changed: this batch
            // comes after that one, in its statement or by the locks of the database.
            let mut guarded = queued.batch.guarded().map(|(table, row)| (table, row.id));
            if let Some(row) = guarded.find(|row| state.in_flight.contains_key(row)) {
                drop(guarded);
                state.park(&row, action);
                continue;
            }
            drop(guarded);
            let in_turn = !queued.batch.turns.is_empty();
            if in_turn && !taken.batches.is_empty() {
                state.waiting.push_front(action);
                break;
            }
            let Some(queued) = state.queued.remove(action) else { continue };
            for change in queued.batch.guarded_changes() {
                state.in_flight.insert(row_key(change), Vec::new());
            }
            rows += queued.batch.rows();
            bytes += queued.bytes;
            taken.batches.push(queued);
            if in_turn {
                break; // it is not committed together with others
            }
        }
        let more_waiting = !state.waiting.is_empty();
        let finished = state.closed && state.in_flight.is_empty() && !more_waiting;
        let leaves = finished && taken.batches.is_empty();
        if leaves {
            state.tasks.lane_leaves();
        }
        Next { taken, more_waiting, leaves }
    }

    /// Releases the rows of an answered batch, and requeues or rejects the batches parked behind
    /// them.
    pub(super) fn release(&self, batch: &CommitBatch, committed: bool) {
        let mut stale = Vec::new();
        let mut state = self.state();
        for change in batch.guarded_changes() {
            for action in state.in_flight.remove(&row_key(change)).unwrap_or_default() {
                let Some(queued) = state.queued.get(action) else { continue };
                let is_stale = |row: &RowRef| Some(row.expected_version) != change.next_version();
                let mut same_row = queued.batch.guarded().filter_map(|(table, parked)| {
                    ((table, parked.id) == row_key(change)).then_some(parked)
                });
                let stale_row = same_row.find(is_stale);
                drop(same_row);
                match stale_row {
                    Some(row) if committed => {
                        stale.extend(state.queued.remove(action).map(|queued| (queued, row)));
                    }
                    _ => state.waiting.push_back(action),
                }
            }
        }
        // Another lane is woken only for work. The lane that answers looks at the queue next.
        let wake = !state.waiting.is_empty() || state.closed;
        drop(state);
        if wake {
            self.wake.notify_one();
        }
        for (queued, row) in stale {
            let QueuedBatch { answer, open, .. } = queued;
            drop(open); // the action is settled before its caller receives the outcome
            let _ = answer.send(Err(CommitError::Stale(vec![row])));
        }
    }

    /// Removes an action's batch; `false` if there is none, or a lane has taken it.
    pub(super) fn withdraw(&self, action: ActionId) -> bool {
        let mut state = self.state();
        let withdrawn = state.queued.remove(action);
        state.forget_withdrawn();
        drop(state);
        withdrawn.is_some()
    }

    /// Waits until the queue is closed.
    pub(super) async fn closed(&self) {
        loop {
            // Register before checking, so that a notification in between is not missed.
            let closing = self.closing.notified();
            if self.state().closed {
                return;
            }
            closing.await;
        }
    }

    pub(super) fn close(&self) {
        self.state().closed = true;
        self.closing.notify_waiters();
        self.wake.notify_waiters();
        self.wake.notify_one();
    }

    /// Whether no task runs, and nothing is left to do.
    pub(super) fn is_done(&self) -> bool {
        let state = self.state();
        state.tasks.none_runs() && !state.has_work()
    }

    /// Wakes a lane.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }
}

/// What a lane does next.
struct Next {
    taken: TakenBatches,
    more_waiting: bool,
    leaves: bool,
}

fn closed() -> DbError {
    DbError::new(DbErrorKind::Unavailable, "the databases were closed; nothing was sent")
}

fn overloaded(limit: usize) -> DbError {
    let why = format!(
        "{limit} commits wait for a lane already, and no more may wait; nothing was sent. \
         Call again later, send less at a time, or raise lanes or queue-limit"
    );
    DbError::new(DbErrorKind::Overloaded, why)
}

fn too_many_bytes(queued: usize, bytes: usize, limit: usize) -> DbError {
    let why = format!(
        "commits of {queued} bytes wait for a lane already, and with the {bytes} bytes of this one \
         they exceed {limit} bytes; nothing was sent. \
         Call again later, write less at once, or raise lanes or max-commit-bytes"
    );
    DbError::new(DbErrorKind::Overloaded, why)
}

fn queued_twice(action: ActionId) -> DbError {
    let why = format!(
        "a commit of action {action} is waiting already; nothing was sent. \
         An id given by with_action_id must never be used again"
    );
    DbError::new(DbErrorKind::Other, why)
}
