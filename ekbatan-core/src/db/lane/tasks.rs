//! The count of the tasks that work for one database.

use tokio::runtime;

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskKind {
    /// Takes batches from the queue.
    Lane,
    /// Has been a lane, and closes its connection.
    Leaving,
    /// Commits what would delay others; see [`apart`](super::apart).
    Side,
}

/// The tasks that run, and the runtimes that have ended under one.
#[derive(Default)]
pub(super) struct LaneTasks {
    /// How many lanes there should be.
    wanted: usize,
    lanes: usize,
    leaving: usize,
    side_tasks: usize,
    ended_runtimes: Vec<runtime::Id>,
}

impl LaneTasks {
    pub(super) fn new(wanted: usize) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// How many lanes are to be started; they count as running from here on.
    pub(super) fn claim_missing_lanes(&mut self) -> usize {
        let missing = self.wanted.saturating_sub(self.lanes);
        self.lanes += missing;
        missing
    }

    /// Sets how many lanes there should be.
    pub(super) fn want(&mut self, wanted: usize) {
        self.wanted = wanted;
    }

    pub(super) fn too_many_lanes(&self) -> bool {
        self.lanes > self.wanted
    }

    pub(super) fn lane_leaves(&mut self) {
        self.lanes -= 1;
        self.leaving += 1;
    }

    pub(super) fn count_side_task(&mut self) {
        self.side_tasks += 1;
    }

    pub(super) fn ended(&mut self, kind: TaskKind) {
        match kind {
            TaskKind::Lane => self.lanes -= 1,
            TaskKind::Leaving => self.leaving -= 1,
            TaskKind::Side => self.side_tasks -= 1,
        }
    }

    pub(super) fn none_runs(&self) -> bool {
        self.lanes + self.leaving + self.side_tasks == 0
    }

    pub(super) fn runtime_ended(&mut self, runtime: runtime::Id) {
        self.ended_runtimes.push(runtime);
    }

    pub(super) fn has_ended(&self, runtime: runtime::Id) -> bool {
        self.ended_runtimes.contains(&runtime)
    }
}
