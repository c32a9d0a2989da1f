//! The count of the tasks that work for one database.

use tokio::runtime;

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskKind {
    /// Takes batches from the queue.
    Lane,
    /// Commits what would delay others; see [`apart`](super::apart).
    Side,
}

/// The tasks that run, and the runtimes that have ended under one.
#[derive(Default)]
pub(super) struct LaneTasks {
    /// How many lanes there should be.
    wanted: usize,
    lanes: usize,
    side_tasks: usize,
    ended_runtimes: Vec<runtime::Id>,
}

impl LaneTasks {
    pub(super) fn new(wanted: usize) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// How many lanes are to be started; they count as running from here on.
    pub(super) fn claim_missing_lanes(&mut self) -> usize {
        let missing = self.wanted - self.lanes;
        self.lanes = self.wanted;
        missing
    }

    pub(super) fn count_side_task(&mut self) {
        self.side_tasks += 1;
    }

    pub(super) fn ended(&mut self, kind: TaskKind) {
        match kind {
            TaskKind::Lane => self.lanes -= 1,
            TaskKind::Side => self.side_tasks -= 1,
        }
    }

    pub(super) fn none_runs(&self) -> bool {
        self.lanes == 0 && self.side_tasks == 0
    }

    pub(super) fn runtime_ended(&mut self, runtime: runtime::Id) {
        self.ended_runtimes.push(runtime);
    }

    pub(super) fn has_ended(&self, runtime: runtime::Id) -> bool {
        self.ended_runtimes.contains(&runtime)
    }
}
