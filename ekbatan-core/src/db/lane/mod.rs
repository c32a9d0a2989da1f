//! Lanes: tasks that each own one connection and commit batches from a shared queue.
//!
//! Invariants:
//! - Once a lane has taken a batch, only the lane can end it. A dropped caller leaves neither
//!   half a commit nor a connection in an unknown state.
//! - A lane commits all waiting batches together (it folds them), and never waits for more.
//! - A batch that updates a row which a batch in flight updates, or expects it to be unchanged, is
//!   parked until that batch is answered. If the commit moved the row past the version that the
//!   parked batch expects, the parked batch is stale and is never sent.

mod open_actions;
mod queue;
mod settle;
mod worker;

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) use self::open_actions::OpenAction;
use self::queue::CommitQueue;
use self::worker::Lane;
use super::driver::Driver;
use super::{ActionId, CommitBatch, CommitError, Committed, DbError, DbErrorKind};
use crate::config::DataSourceConfig;

/// The lanes of one database.
pub(crate) struct Lanes {
    queue: Arc<CommitQueue>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Lanes {
    pub(crate) fn start(driver: Arc<dyn Driver>, config: &DataSourceConfig) -> Self {
        let queue = Arc::new(CommitQueue::default());
        let count =
            driver.capabilities().max_lanes.map_or(config.lanes, |most| config.lanes.min(most));
        let tasks = (0..count)
            .map(|_| {
                let lane = Lane {
                    driver: driver.clone(),
                    queue: queue.clone(),
                    fold_limit: config.fold_limit,
                    lock_timeout: config.connection_timeout,
                    commit_timeout: config.commit_timeout,
                    settle_timeout: config.settle_timeout,
                };
                tokio::spawn(lane.run())
            })
            .collect();
        Self { queue, tasks: Mutex::new(tasks) }
    }

    /// Queues a batch and waits for its outcome.
    pub(crate) async fn submit(&self, batch: CommitBatch) -> Result<Committed, CommitError> {
        let action = batch.action;
        let (answer, answered) = oneshot::channel();
        if !self.queue.push(batch, answer) {
            return Err(CommitError::Refused(closed()));
        }
        answered.await.unwrap_or_else(|_| {
            Err(CommitError::Unknown(action, "the task that committed it was stopped".to_owned()))
        })
    }

    /// Marks an action as unfinished, so that a caller that asks for its outcome waits.
    pub(crate) fn open_action(&self, action: ActionId) -> OpenAction {
        self.queue.open_actions().open(action)
    }

    pub(crate) fn is_open(&self, action: ActionId) -> bool {
        self.queue.open_actions().is_open(action)
    }

    /// Removes an action's batch from the queue; `false` if there is none, or a lane has taken it.
    pub(crate) fn withdraw(&self, action: ActionId) -> bool {
        self.queue.withdraw(action)
    }

    /// Waits until nothing in this process works on the action.
    pub(crate) async fn settled(&self, action: ActionId) {
        self.queue.open_actions().settled(action).await;
    }

    /// Commits what is queued, then stops the lanes.
    pub(crate) async fn close(&self) {
        self.queue.close();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            let _ = task.await;
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.queue.close();
    }
}

fn closed() -> DbError {
    DbError::new(DbErrorKind::Unavailable, "the databases were closed; nothing was sent")
}
