//! What waits for a lane, and what is on its way.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use crate::db::{ActionId, CommitBatch, CommitError, Committed, DbError, RowChange};
use crate::domain::TableKey;

type Answer = oneshot::Sender<Result<Committed, CommitError>>;

/// A row that an update is about to change.
type RowKey = (TableKey, Uuid);

fn key(change: &RowChange) -> RowKey {
    (change.table.table.key(), change.id)
}

/// A batch and whom to tell.
pub(super) struct Job {
    pub(super) batch: CommitBatch,
    pub(super) since: Instant,
    answer: Answer,
    open: OpenAction,
}

/// Marks an action as being worked for, until it is dropped.
pub(crate) struct OpenAction {
    queue: Arc<Actions>,
    action: ActionId,
}

impl Drop for OpenAction {
    fn drop(&mut self) {
        let mut open = lock(&self.queue.open);
        if let Some(count) = open.get_mut(&self.action) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.action);
            }
        }
        drop(open);
        self.queue.settled.notify_waiters();
    }
}

#[derive(Default)]
struct Actions {
    /// Actions that somebody works for, and how many do.
    open: Mutex<HashMap<ActionId, usize>>,
    settled: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// Rows that a lane is updating, and the batches that wait to hear how that ends.
    in_flight: HashMap<RowKey, Vec<Job>>,
    closed: bool,
}

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Notify,
    closing: Notify,
    actions: Arc<Actions>,
}

/// What is guarded stays consistent between statements, so that a panic elsewhere while the
/// lock was held spoils nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// Marks an action as being worked for.
    pub(super) fn open(&self, action: ActionId) -> OpenAction {
        *lock(&self.actions.open).entry(action).or_default() += 1;
        OpenAction { queue: self.actions.clone(), action }
    }

    /// Whether somebody works for the action.
    pub(super) fn is_open(&self, action: ActionId) -> bool {
        lock(&self.actions.open).contains_key(&action)
    }

    /// Lines a batch up; `false` when the lanes are closed.
    pub(super) fn push(&self, batch: CommitBatch, answer: Answer) -> bool {
        let open = self.open(batch.action);
        let job = Job { batch, since: Instant::now(), answer, open };
        let mut state = lock(&self.state);
        if state.closed {
            return false;
        }
        state.waiting.push_back(job);
        drop(state);
        // The lane that slept last is the one whose session is warm.
        self.wake.notify_last();
        true
    }

    /// All that waits, up to the bounds; nothing once the queue is closed and empty.
    pub(super) async fn next(queue: &Arc<Queue>, batches: usize, rows: usize) -> Option<Flight> {
        loop {
            let woken = queue.wake.notified();
            let (jobs, more, closed) = queue.take(batches, rows);
            if more {
                queue.wake.notify_one();
            }
            if !jobs.is_empty() {
                return Some(Flight { queue: queue.clone(), jobs });
            }
            if closed {
                queue.wake.notify_one(); // the next lane ends, too
                return None;
            }
            woken.await;
        }
    }

    fn take(&self, batches: usize, rows: usize) -> (Vec<Job>, bool, bool) {
        let mut abandoned = Vec::new(); // dropped when the lock is free again
        let mut jobs: Vec<Job> = Vec::new();
        let mut taken_rows = 0;
        let mut state = lock(&self.state);
        while jobs.len() < batches && taken_rows < rows {
            let Some(job) = state.waiting.pop_front() else { break };
            if job.answer.is_closed() {
                abandoned.push(job); // nobody waits for it and nothing of it was sent
                continue;
            }
            let before = job.batch.updates().map(key).find(|key| state.in_flight.contains_key(key));
            if let Some(parked) = before.and_then(|key| state.in_flight.get_mut(&key)) {
                parked.push(job);
                continue;
            }
            for change in job.batch.updates() {
                state.in_flight.insert(key(change), Vec::new());
            }
            taken_rows += job.batch.rows();
            jobs.push(job);
        }
        let answer = (!state.waiting.is_empty(), state.closed && state.in_flight.is_empty());
        drop(state);
        drop(abandoned);
        (jobs, answer.0, answer.1)
    }

    /// Lets go of the rows of a batch that is answered, and decides about those that waited.
    fn release(&self, batch: &CommitBatch, committed: bool) {
        let mut stale = Vec::new();
        let mut state = lock(&self.state);
        for change in batch.updates() {
            for job in state.in_flight.remove(&key(change)).unwrap_or_default() {
                let same_row = job.batch.updates().find(|parked| key(parked) == key(change));
                let still_valid =
                    |parked: &RowChange| parked.expected_version() == change.next_version();
                match same_row {
                    Some(parked) if committed && !still_valid(parked) => {
                        let row = parked.row_ref();
                        stale.push((job, row));
                    }
                    _ => state.waiting.push_back(job),
                }
            }
        }
        // An idle lane is woken for work only: the one that answers looks by itself.
        let more = !state.waiting.is_empty() || state.closed;
        drop(state);
        if more {
            self.wake.notify_one();
        }
        for (job, row) in stale {
            let _ = job.answer.send(Err(CommitError::Stale(vec![row])));
        }
    }

    /// Takes an action's batch out of the queue, if no lane has taken it.
    pub(super) fn withdraw(&self, action: ActionId) -> bool {
        let mut state = lock(&self.state);
        let State { waiting, in_flight, .. } = &mut *state;
        let mut withdrawn = None;
        if let Some(at) = waiting.iter().position(|job| job.batch.action == action) {
            withdrawn = waiting.remove(at);
        }
        for parked in in_flight.values_mut() {
            if let Some(at) = parked.iter().position(|job| job.batch.action == action) {
                withdrawn = Some(parked.remove(at));
            }
        }
        drop(state);
        withdrawn.is_some()
    }

    pub(super) async fn settled(&self, action: ActionId) {
        loop {
            // Created before looking, it hears every end that comes after the look.
            let settled = self.actions.settled.notified();
            if !lock(&self.actions.open).contains_key(&action) {
                return;
            }
            settled.await;
        }
    }

    /// Waits until the lanes are to end.
    pub(super) async fn closed(&self) {
        loop {
            let closing = self.closing.notified();
            if lock(&self.state).closed {
                return;
            }
            closing.await;
        }
    }

    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.closing.notify_waiters();
        self.wake.notify_waiters();
        self.wake.notify_one();
    }
}

/// The batches that a lane has taken. Dropping it, even by a panic, lets their rows go.
pub(super) struct Flight {
    queue: Arc<Queue>,
    jobs: Vec<Job>,
}

impl Flight {
    pub(super) fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Answers every job for which there is an answer; the others stay, in their order.
    pub(super) fn answer_each(
        &mut self,
        mut answer: impl FnMut(&Job) -> Option<Result<Committed, CommitError>>,
    ) {
        for job in std::mem::take(&mut self.jobs) {
            match answer(&job) {
                Some(answer) => self.finish(job, answer),
                None => self.jobs.push(job),
            }
        }
    }

    /// Answers every job that nothing of it was written.
    pub(super) fn refuse_all(&mut self, cause: &DbError) {
        for job in std::mem::take(&mut self.jobs) {
            let error = DbError::new(cause.kind(), format!("{cause}; nothing was written"));
            self.finish(job, Err(CommitError::Refused(error)));
        }
    }

    fn finish(&self, job: Job, answer: Result<Committed, CommitError>) {
        self.queue.release(&job.batch, answer.is_ok());
        let Job { answer: caller, open, .. } = job;
        drop(open); // settled before the caller hears of it
        let _ = caller.send(answer);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        for job in std::mem::take(&mut self.jobs) {
            self.queue.release(&job.batch, false);
        }
    }
}
