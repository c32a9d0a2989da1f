//! Lanes: tasks that each own one connection and commit batches from a shared queue.
//!
//! Invariants:
//! - Once a lane has taken a batch, only lanes can end it. A dropped caller leaves neither half
//!   a commit nor a connection in an unknown state.
//! - A batch that no lane has taken leaves the queue with its caller, and nothing of it is sent.
//! - A lane commits all waiting batches together (it folds them), and never waits for more.
//! - A batch that changes a row which a batch in flight updates or deletes, or expects it to be
//!   unchanged, is parked until that batch is answered. If the commit moved the row past the version
//!   that the parked batch expects, or deleted it, the parked batch is stale and is never sent.
//! - A lane that dies is replaced, and its successor settles what it had taken.

mod apart;
mod batches;
mod in_flight;
mod lifecycle;
mod limit;
mod open_actions;
mod queue;
#[cfg(test)]
mod queue_tests;
mod queued_batches;
mod sent_at;
mod settle;
mod tasks;
#[cfg(all(test, feature = "sqlite"))]
mod tests;
mod unsettled;
mod worker;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use self::limit::LaneLimit;
pub(crate) use self::open_actions::OpenAction;
use self::queue::CommitQueue;
use self::worker::Lane;
use super::driver::Driver;
use super::{ActionId, CommitBatch, CommitError, Committed};
use crate::config::DataSourceConfig;

/// How many commits of the greatest size may wait for a lane.
const GREATEST_COMMITS: usize = 4;

/// How many bytes may wait for a lane in any case: many small commits are no reason to refuse more.
const LEAST_QUEUE_BYTES: usize = 256 << 20;

/// How many bytes the commits have that may wait for a lane.
fn queue_bytes(config: &DataSourceConfig) -> usize {
    config.max_commit_bytes.saturating_mul(GREATEST_COMMITS).max(LEAST_QUEUE_BYTES)
}

/// The lanes of one database.
pub(crate) struct Lanes(Arc<Lane>);

impl Lanes {
    /// Starts the lanes in the runtime of the caller.
    pub(crate) fn start(driver: Arc<dyn Driver>, config: &DataSourceConfig) -> Self {
        let limit = LaneLimit::new(config.lanes, driver.capabilities().max_lanes);
        let (limit_bytes, lanes) = (queue_bytes(config), limit.lanes());
        let lane = Arc::new(Lane {
            driver,
            queue: Arc::new(CommitQueue::new(config.queue_limit, limit_bytes, &limit)),
            limit,
            fold_limit: config.fold_limit,
            connection_timeout: config.connection_timeout,
            // Otherwise the answer that a row is locked would come when the lane has given up.
            lock_timeout: config.connection_timeout.min(config.commit_timeout / 2),
            commit_timeout: config.commit_timeout,
            settle_timeout: config.settle_timeout,
            side_tasks: Semaphore::new(lanes),
            most_lanes: AtomicUsize::new(lanes),
        });
        Lane::start_missing(&lane, &Handle::current());
        Self(lane)
    }

    /// Queues a batch and waits for its outcome. If the future is dropped before a lane takes
    /// the batch, nothing of it is sent.
    pub(crate) async fn submit(&self, batch: CommitBatch) -> Result<Committed, CommitError> {
        let action = batch.action;
        let (answer, answered) = oneshot::channel();
        let missing = self.0.queue.push(batch, answer).map_err(CommitError::Refused)?;
        if missing > 0 {
            Lane::start(&self.0, missing, &Handle::current());
        }
        let mut waiting = Waiting { queue: &self.0.queue, action: Some(action) };
        let outcome = answered.await;
        waiting.action = None;
        outcome.unwrap_or_else(|_| {
            Err(CommitError::Unknown(action, "the task that committed it was stopped".to_owned()))
        })
    }

    /// Marks an action as unfinished, so that a caller that asks for its outcome waits.
    pub(crate) fn open_action(&self, action: ActionId) -> OpenAction {
        self.0.queue.open_actions().open(action)
    }

    /// Whether something in this process still works on the action. Lanes that died may have left it to
    /// their successors, which are started then.
    pub(crate) fn is_open(&self, action: ActionId) -> bool {
        let is_open = self.0.queue.open_actions().is_open(action);
        if is_open {
            Lane::start_missing(&self.0, &Handle::current());
        }
        is_open
    }

    /// Removes an action's batch from the queue; `false` if there is none, or a lane has taken it.
    pub(crate) fn withdraw(&self, action: ActionId) -> bool {
        self.0.queue.withdraw(action)
    }

    /// Waits until nothing in this process works on the action.
    pub(crate) async fn settled(&self, action: ActionId) {
        while self.0.queue.open_actions().is_open(action) {
            // Register before checking, so that an end in between is not missed.
            let ended = self.0.queue.lane_ended.notified();
            // Lanes that died may have left the action to their successors.
            Lane::start_missing(&self.0, &Handle::current());
            tokio::select! {
                () = self.0.queue.open_actions().settled(action) => return,
                () = ended => {}
            }
        }
    }

    /// Commits what is queued, then stops the lanes.
    pub(crate) async fn close(&self) {
        self.0.queue.close();
        loop {
            // Register before checking, so that an end in between is not missed.
            let ended = self.0.queue.lane_ended.notified();
            Lane::start_missing(&self.0, &Handle::current());
            if self.0.queue.is_done() {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.0.queue.close();
    }
}

/// A caller that waits for its batch. Dropping it withdraws the batch if no lane has taken it.
struct Waiting<'a> {
    queue: &'a CommitQueue,
    action: Option<ActionId>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(action) = self.action {
            self.queue.withdraw(action);
        }
    }
}
