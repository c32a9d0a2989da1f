//! How lanes start and end.
//!
//! A lane is a task of some runtime. It dies if that runtime ends before the databases are
//! closed, or if it panics. What it had taken is abandoned, and a new lane settles it first.
//!
//! Invariant: while a caller waits in a runtime that lives, lanes run. When a
//! lane dies, its successor starts in the runtime of a waiting caller. If no caller waits, the
//! next one starts it.

use std::sync::Arc;

use tokio::runtime::{self, Handle};

use super::in_flight::InFlight;
use super::queue::State;
use super::tasks::TaskKind;
use super::worker::{Lane, MAX_ROWS};

/// Exists as long as a task. Must be dropped after everything else that the task has.
pub(super) struct TaskGuard {
    lane: Arc<Lane>,
    kind: TaskKind,
    runtime: runtime::Id,
    /// Whether the task has run. One that has not cannot have panicked.
    began: bool,
    finished: bool,
}

impl TaskGuard {
    /// The task must have been counted.
    fn new(lane: Arc<Lane>, kind: TaskKind, runtime: &Handle) -> Self {
        Self { lane, kind, runtime: runtime.id(), began: false, finished: false }
    }

    /// The task runs.
    pub(super) fn begin(&mut self) {
        self.began = true;
    }

    /// The lane counts as leaving: the queue said so.
    fn leave(&mut self) {
        self.kind = TaskKind::Leaving;
    }

    /// The task ends because its work is done.
    pub(super) fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        let mut state = self.lane.queue.state();
        state.tasks.ended(self.kind);
        let died = !self.finished;
        let panicked = self.began && std::thread::panicking();
        if died && !panicked {
            state.tasks.runtime_ended(self.runtime);
        }
        let next_runtime = if died { runtime_of_a_caller(&state) } else { None };
        drop(state);
        self.lane.queue.lane_ended.notify_waiters();
        if let Some(runtime) = next_runtime {
            tracing::warn!("a lane died: it panicked, or its runtime ended; it is restarted");
            Lane::start_missing(&self.lane, &runtime);
        }
    }
}

/// A runtime that has not ended, as far as is known, and in which a caller waits.
fn runtime_of_a_caller(state: &State) -> Option<Handle> {
    let mut runtimes = state.unanswered().filter_map(|queued| queued.runtime.as_ref());
    runtimes.find(|runtime| !state.tasks.has_ended(runtime.id())).cloned()
}

impl Lane {
    /// Starts the lanes that do not run. Those of a closed queue are needed only for what is
    /// left to do.
    pub(super) fn start_missing(lane: &Arc<Self>, runtime: &Handle) {
        let missing = {
            let mut state = lane.queue.state();
            if state.closed && !state.has_work() { 0 } else { state.tasks.claim_missing_lanes() }
        };
        Self::start(lane, missing, runtime);
    }

    /// Starts lanes that were claimed. If the runtime has ended, it drops them at once.
    pub(super) fn start(lane: &Arc<Self>, count: usize, runtime: &Handle) {
        for _ in 0..count {
            let guard = TaskGuard::new(lane.clone(), TaskKind::Lane, runtime);
            drop(runtime.spawn(lane.clone().run(guard)));
        }
        Self::take_over_unsettled(lane, runtime);
    }

    /// Commits what is queued, until the queue is closed or there are too many lanes.
    async fn run(self: Arc<Self>, mut guard: TaskGuard) {
        guard.begin();
        let mut connection = None;
        while let Some(taken) = self.queue.next(self.fold_limit, MAX_ROWS).await {
            let in_flight = InFlight::new(self.queue.clone(), taken);
            connection = Self::commit(&self, TaskKind::Lane, connection, in_flight).await;
        }
        guard.leave();
        if let Some(connection) = connection {
            let _ = tokio::time::timeout(self.connection_timeout, connection.close()).await;
        }
        guard.finish();
    }

    /// Counts a task that commits what would delay others; see [`apart`](super::apart).
    pub(super) fn count_side_task(lane: &Arc<Self>, runtime: &Handle) -> TaskGuard {
        lane.queue.state().tasks.count_side_task();
        TaskGuard::new(lane.clone(), TaskKind::Side, runtime)
    }
}
