//! How many bytes may wait in the queue, whatever way they leave it, and how many lanes take what waits.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::in_flight::InFlight;
use super::limit::LaneLimit;
use super::queue::CommitQueue;
use crate::db::fixtures::{WALLETS, change, table};
use crate::db::{ActionId, ChangeKind, CommitBatch, DbErrorKind, RowChange, TableInfo};
use crate::domain::Value;

const LIMIT_BYTES: usize = 10_000;

struct Queue {
    queue: Arc<CommitQueue>,
    wallets: Arc<TableInfo>,
}

impl Queue {
    fn new() -> Self {
        Self::of(LaneLimit::new(Some(2), None))
    }

    fn of(lanes: LaneLimit) -> Self {
        let wallets = table(&WALLETS, |_| "text");
        Self { queue: Arc::new(CommitQueue::new(100, LIMIT_BYTES, lanes)), wallets }
    }

    /// A batch of a new row, or of the update of a row, with a long text.
    fn batch(&self, kind: ChangeKind, row: u128, bytes: usize) -> CommitBatch {
        let values =
            [Value::Null, Value::Text("x".repeat(bytes)), Value::Int(1), Value::Null, Value::Null];
        let (id, values) = (Uuid::from_u128(row), values.to_vec().into());
        let change = RowChange { id, values, ..change(&self.wallets, kind) };
        CommitBatch {
            action: ActionId(Uuid::now_v7()),
            changes: vec![change],
            expected: Vec::new(),
            records: Vec::new(),
            fences: Vec::new(),
            traceable: true,
            turns: Vec::new(),
        }
    }

    fn push(&self, batch: CommitBatch) -> Result<ActionId, String> {
        let action = batch.action;
        match self.queue.push(batch, oneshot::channel().0) {
            Ok(_) => Ok(action),
            Err(error) => {
                assert_eq!(error.kind(), DbErrorKind::Overloaded, "{error}");
                Err(error.to_string())
            }
        }
    }

    fn push_new(&self, bytes: usize) -> Result<ActionId, String> {
        self.push(self.batch(ChangeKind::Insert, 1, bytes))
    }
}

#[test]
fn more_bytes_than_may_wait_are_refused_until_some_leave() {
    let queue = Queue::new();
    let first = queue.push_new(6_000).unwrap();
    let refused = queue.push_new(6_000).unwrap_err();
    assert!(refused.contains("exceed 10000 bytes"), "{refused}");
    assert!(refused.contains("raise lanes or max_commit_bytes"), "{refused}");
    let small = queue.push_new(1_000).unwrap();
    assert!(queue.queue.withdraw(first));
    assert!(queue.queue.withdraw(small));
    queue.push_new(6_000).unwrap();
}

#[test]
fn an_empty_queue_takes_a_batch_of_any_size() {
    let queue = Queue::new();
    let large = queue.push_new(2 * LIMIT_BYTES).unwrap();
    queue.push_new(1).unwrap_err();
    assert!(queue.queue.withdraw(large));
    queue.push_new(1).unwrap();
}

#[tokio::test]
async fn what_a_lane_takes_and_what_is_stale_makes_room() {
    let queue = Queue::new();
    let update = |bytes| queue.batch(ChangeKind::Update, 1, bytes);
    queue.push(update(6_000)).unwrap();
    let (taken, _committing) = queue.queue.next(64, 2_000).await.unwrap();
    queue.push(update(6_000)).unwrap();
    queue.push_new(6_000).unwrap_err();
    // The second one waits for the first, whose commit makes it stale.
    queue.push_new(1).unwrap();
    queue.queue.next(64, 2_000).await.unwrap();
    for first in taken.batches {
        queue.queue.release(&first.batch, true);
    }
    queue.push_new(6_000).unwrap();
}

#[tokio::test]
async fn a_lane_takes_nothing_while_as_many_commit_as_may() {
    let queue = Queue::of(LaneLimit::new(None, None));
    let next = || queue.queue.next(1, 2_000);
    for _ in 0..4 {
        queue.push_new(1).unwrap();
    }
    let near = [next().await.unwrap(), next().await.unwrap()];
    assert!(next().now_or_never().is_none(), "a third lane commits, and the server is near");
    queue.queue.lanes.set_by(Duration::from_secs(1));
    let far = next().now_or_never();
    assert!(far.is_some(), "a third lane waits, and the server is far");
    queue.queue.lanes.set_by(Duration::ZERO);
    assert!(next().now_or_never().is_none(), "a fourth lane commits, and the server is near again");
    drop((near, far));
    assert!(next().now_or_never().is_some(), "no lane takes what waits");
}

#[tokio::test]
async fn what_a_dead_lane_has_left_waits_for_no_other_lane() {
    let queue = Queue::of(LaneLimit::new(Some(1), None));
    let action = queue.push_new(1).unwrap();
    let (taken, _committing) = queue.queue.next(64, 2_000).await.unwrap();
    drop(InFlight::new(queue.queue.clone(), taken));
    let (taken, _) = queue.queue.next(64, 2_000).now_or_never().flatten().unwrap();
    assert_eq!((taken.batches[0].batch.action, taken.losses), (action, 1));
}
