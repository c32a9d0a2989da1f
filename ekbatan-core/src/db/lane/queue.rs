//! The batches that wait for a lane, and those that a lane has taken.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use super::open_actions::{OpenAction, OpenActions};
use crate::db::{ActionId, CommitBatch, CommitError, Committed, DbError, RowChange, RowRef};
use crate::domain::TableKey;

/// How many bytes the batches of one statement have; further batches wait for the next one. A
/// single batch may have more.
const MAX_BYTES: usize = 4 * 1024 * 1024;

type Answer = oneshot::Sender<Result<Committed, CommitError>>;

/// Identifies a row that an update changes.
type RowKey = (TableKey, Uuid);

fn row_key(change: &RowChange) -> RowKey {
    (change.table.table.key(), change.id)
}

/// A batch and the channel to its caller.
pub(super) struct QueuedBatch {
    pub(super) batch: CommitBatch,
    pub(super) since: Instant,
    bytes: usize,
    answer: Answer,
    open: OpenAction,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<QueuedBatch>,
    /// Rows that a batch in flight updates, each with the batches that update it or expect it to
    /// be unchanged, and are parked behind it.
    in_flight: HashMap<RowKey, Vec<QueuedBatch>>,
    closed: bool,
}

#[derive(Default)]
pub(super) struct CommitQueue {
    state: Mutex<State>,
    wake: Notify,
    closing: Notify,
    open_actions: Arc<OpenActions>,
}

impl CommitQueue {
    pub(super) fn open_actions(&self) -> &Arc<OpenActions> {
        &self.open_actions
    }

    /// The state is consistent between statements, so a panic elsewhere does not invalidate it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a batch; `false` if the lanes are closed.
    pub(super) fn push(&self, batch: CommitBatch, answer: Answer) -> bool {
        let open = self.open_actions.open(batch.action);
        let queued =
            QueuedBatch { bytes: batch.size(), batch, since: Instant::now(), answer, open };
        let mut state = self.state();
        if state.closed {
            return false;
        }
        state.waiting.push_back(queued);
        drop(state);
        // The lane that fell asleep last has the warmest connection.
        self.wake.notify_last();
        true
    }

    /// Takes all waiting batches up to the limits; `None` once the queue is closed and empty.
    pub(super) async fn next(
        queue: &Arc<CommitQueue>,
        max_batches: usize,
        max_rows: usize,
    ) -> Option<InFlight> {
        loop {
            // Register before checking, so that a notification in between is not missed.
            let woken = queue.wake.notified();
            let taken = queue.take(max_batches, max_rows);
            if taken.more_waiting {
                queue.wake.notify_one();
            }
            if !taken.batches.is_empty() {
                return Some(InFlight { queue: queue.clone(), batches: taken.batches });
            }
            if taken.finished {
                queue.wake.notify_one(); // so that the next lane ends, too
                return None;
            }
            woken.await;
        }
    }

    fn take(&self, max_batches: usize, max_rows: usize) -> Taken {
        let mut abandoned = Vec::new(); // dropped after the lock is released
        let mut batches: Vec<QueuedBatch> = Vec::new();
        let (mut rows, mut bytes) = (0, 0);
        let mut state = self.state();
        while batches.len() < max_batches && rows < max_rows && bytes < MAX_BYTES {
            let Some(next) = state.waiting.pop_front() else { break };
            if next.answer.is_closed() {
                abandoned.push(next); // its caller is gone and nothing of it was sent
                continue;
            }
            // A row that a batch in flight expects to be unchanged may be updated: this batch
            // comes after that one, in its statement or by the locks of the database.
            let mut guarded = next.batch.guarded().map(|(table, row)| (table, row.id));
            let blocking = guarded.find(|key| state.in_flight.contains_key(key));
            drop(guarded);
            if let Some(parked) = blocking.and_then(|key| state.in_flight.get_mut(&key)) {
                parked.push(next);
                continue;
            }
            for change in next.batch.updates() {
                state.in_flight.insert(row_key(change), Vec::new());
            }
            rows += next.batch.rows();
            bytes += next.bytes;
            batches.push(next);
        }
        let more_waiting = !state.waiting.is_empty();
        let finished = state.closed && state.in_flight.is_empty();
        drop(state);
        drop(abandoned);
        Taken { batches, more_waiting, finished }
    }

    /// Releases the rows of an answered batch, and requeues or rejects the batches parked behind
    /// them.
    fn release(&self, batch: &CommitBatch, committed: bool) {
        let mut stale = Vec::new();
        let mut state = self.state();
        for change in batch.updates() {
            for queued in state.in_flight.remove(&row_key(change)).unwrap_or_default() {
                let is_stale = |row: &RowRef| row.expected_version != change.next_version();
                let mut same_row = queued.batch.guarded().filter_map(|(table, parked)| {
                    ((table, parked.id) == row_key(change)).then_some(parked)
                });
                let stale_row = same_row.find(is_stale);
                drop(same_row);
                match stale_row {
                    Some(row) if committed => stale.push((queued, row)),
                    _ => state.waiting.push_back(queued),
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
            let _ = queued.answer.send(Err(CommitError::Stale(vec![row])));
        }
    }

    /// Removes an action's batch; `false` if there is none, or a lane has taken it.
    pub(super) fn withdraw(&self, action: ActionId) -> bool {
        let mut state = self.state();
        let State { waiting, in_flight, .. } = &mut *state;
        let mut withdrawn = None;
        if let Some(at) = waiting.iter().position(|queued| queued.batch.action == action) {
            withdrawn = waiting.remove(at);
        }
        for parked in in_flight.values_mut() {
            if let Some(at) = parked.iter().position(|queued| queued.batch.action == action) {
                withdrawn = Some(parked.remove(at));
            }
        }
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
}

struct Taken {
    batches: Vec<QueuedBatch>,
    more_waiting: bool,
    /// The queue is closed and nothing is in flight.
    finished: bool,
}

/// The batches that a lane has taken. Dropping it, also by a panic, releases their rows.
pub(super) struct InFlight {
    queue: Arc<CommitQueue>,
    batches: Vec<QueuedBatch>,
}

impl InFlight {
    pub(super) fn batches(&self) -> &[QueuedBatch] {
        &self.batches
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Answers every batch for which `answer` returns an outcome; the others stay, in order.
    pub(super) fn answer_each(
        &mut self,
        mut answer: impl FnMut(&QueuedBatch) -> Option<Result<Committed, CommitError>>,
    ) {
        for queued in std::mem::take(&mut self.batches) {
            match answer(&queued) {
                Some(answer) => self.finish(queued, answer),
                None => self.batches.push(queued),
            }
        }
    }

    /// Rejects every batch: nothing of it was written.
    pub(super) fn refuse_all(&mut self, cause: &DbError) {
        for queued in std::mem::take(&mut self.batches) {
            let error = DbError::new(cause.kind(), format!("{cause}; nothing was written"));
            self.finish(queued, Err(CommitError::Refused(error)));
        }
    }

    fn finish(&self, queued: QueuedBatch, outcome: Result<Committed, CommitError>) {
        self.queue.release(&queued.batch, outcome.is_ok());
        let QueuedBatch { answer, open, .. } = queued;
        drop(open); // the action is settled before its caller receives the outcome
        let _ = answer.send(outcome);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        for queued in std::mem::take(&mut self.batches) {
            self.queue.release(&queued.batch, false);
        }
    }
}
