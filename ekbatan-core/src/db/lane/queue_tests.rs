//! How many bytes may wait in the queue, whatever way they leave it, and which lanes look at it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::FutureExt;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::limit::LaneLimit;
use super::queue::CommitQueue;
use crate::db::fixtures::{WALLETS, change, table};
use crate::db::{ActionId, ChangeKind, CommitBatch, DbErrorKind, RowChange, TableInfo};
use crate::domain::Value;

const LIMIT_BYTES: usize = 10_000;
const LANES: usize = 2;

struct Queue {
    queue: Arc<CommitQueue>,
    wallets: Arc<TableInfo>,
}

impl Queue {
    fn new() -> Self {
        let wallets = table(&WALLETS, |_| "text");
        let lanes = LaneLimit::new(Some(LANES), None);
        Self { queue: Arc::new(CommitQueue::new(100, LIMIT_BYTES, &lanes)), wallets }
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

    fn want_lanes(&self, lanes: usize) {
        self.queue.want_lanes(&LaneLimit::new(Some(lanes), None));
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
    assert!(refused.contains("raise lanes or max-commit-bytes"), "{refused}");
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
    let taken = queue.queue.next(64, 2_000).await.unwrap();
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

/// Notes whether the action is open when its caller is woken.
struct Caller {
    queue: Arc<CommitQueue>,
    action: ActionId,
    was_open: AtomicBool,
}

impl Wake for Caller {
    fn wake(self: Arc<Self>) {
        let is_open = self.queue.open_actions().is_open(self.action);
        self.was_open.store(is_open, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_stale_action_is_settled_before_its_caller_hears_of_it() {
    let queue = Queue::new();
    let update = || queue.batch(ChangeKind::Update, 1, 10);
    queue.push(update()).unwrap();
    let taken = queue.queue.next(64, 2_000).await.unwrap();
    let (stale, (answer, mut answered)) = (update(), oneshot::channel());
    let (queue, action) = (queue.queue.clone(), stale.action);
    queue.push(stale, answer).unwrap();
    assert!(queue.next(64, 2_000).now_or_never().is_none(), "it waits for the first");
    let caller = Caller { queue: queue.clone(), action, was_open: AtomicBool::new(true) };
    let caller = Arc::new(caller);
    let waker = Waker::from(caller.clone());
    assert!(answered.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
    queue.release(&taken.batches[0].batch, true);
    assert!(answered.now_or_never().unwrap().unwrap().is_err());
    assert!(!caller.was_open.load(Ordering::SeqCst));
}

#[tokio::test]
async fn of_too_many_lanes_those_leave_that_look_first() {
    let queue = Queue::new();
    let missing = |queue: &Queue| queue.queue.state().tasks.claim_missing_lanes();
    assert_eq!(missing(&queue), LANES);
    queue.want_lanes(LANES + 2);
    assert_eq!(missing(&queue), 2);
    let mut asleep: Vec<_> =
        (0..LANES + 2).map(|_| Box::pin(queue.queue.next(64, 2_000))).collect();
    assert!(asleep.iter_mut().all(|lane| lane.as_mut().now_or_never().is_none()), "nothing to do");

    queue.want_lanes(LANES);
    let left: Vec<_> =
        asleep.into_iter().map(|lane| lane.now_or_never().map(|taken| taken.is_none())).collect();
    assert_eq!(left, [Some(true), Some(true), None, None]);
    assert_eq!(missing(&queue), 0);
    queue.push_new(1).unwrap();
    assert!(queue.queue.next(64, 2_000).now_or_never().flatten().is_some(), "a lane takes it");
}

#[tokio::test]
async fn a_lane_that_leaves_wakes_another_one_for_what_it_was_woken_for() {
    let queue = Queue::new();
    queue.want_lanes(1);
    queue.queue.state().tasks.claim_missing_lanes();
    let mut stays = Box::pin(queue.queue.next(64, 2_000));
    assert!(stays.as_mut().now_or_never().is_none());
    queue.want_lanes(2);
    queue.queue.state().tasks.claim_missing_lanes();
    let mut leaves = Box::pin(queue.queue.next(64, 2_000));
    assert!(leaves.as_mut().now_or_never().is_none());

    queue.push_new(1).unwrap(); // wakes the one that fell asleep last
    queue.queue.state().tasks.want(1);
    assert!(leaves.now_or_never().unwrap().is_none());
    assert!(stays.now_or_never().flatten().is_some(), "no lane takes what waits");
}
