//! The tasks of a node that handle events or run jobs.
//!
//! A task that blocks its thread cannot be cancelled. The end of a node does not wait for it.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use uuid::Uuid;

/// How long the end of a node waits for tasks that it has cancelled.
const LONGEST_CANCEL: Duration = Duration::from_secs(5);

/// The tasks of a node, and what each of them works on. If it is dropped, the tasks are cancelled.
pub struct RunTasks<T> {
    tasks: JoinSet<T>,
    /// The deliveries or the run of each task.
    ids: HashMap<Id, Vec<Uuid>>,
}

impl<T> Default for RunTasks<T> {
    fn default() -> Self {
        Self { tasks: JoinSet::new(), ids: HashMap::new() }
    }
}

impl<T: Send + 'static> RunTasks<T> {
    /// Starts a task that works on these deliveries, or on this run.
    pub fn spawn(&mut self, ids: Vec<Uuid>, task: impl Future<Output = T> + Send + 'static) {
        let task = self.tasks.spawn(task);
        self.ids.insert(task.id(), ids);
    }

    /// Whether all tasks have ended and were taken note of.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// What the next task returns, or why it did not end; `None` if there is none.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        let ended = self.tasks.join_next_with_id().await?;
        Some(self.forget(ended))
    }

    /// The same, if a task has ended by now.
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        let ended = self.tasks.try_join_next_with_id()?;
        Some(self.forget(ended))
    }

    fn forget(&mut self, ended: Result<(Id, T), JoinError>) -> Result<T, JoinError> {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        self.ids.remove(&id);
        ended.map(|(_, returned)| returned)
    }

    /// Cancels all tasks. Returns what those have returned that had ended before, and what those work on that go
    /// on: each blocks its thread.
    pub async fn cancel(&mut self) -> (Vec<T>, HashSet<Uuid>) {
        self.tasks.abort_all();
        let (mut returned, until) = (Vec::new(), Instant::now() + LONGEST_CANCEL);
        while let Ok(Some(ended)) = tokio::time::timeout_at(until, self.join_next()).await {
            returned.extend(ended.ok());
        }
        (returned, self.ids.values().flatten().copied().collect())
    }
}

impl<T> std::fmt::Debug for RunTasks<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunTasks").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}
