//! Marks events as handled whose handlers executed no action: their deliveries are deleted.
//!
//! Marks share commits. Two are committed at once, and those that come meanwhile together. Invariant: each is
//! answered by what became of its own delivery.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ekbatan_core::__private::deliveries::Delivery;
use ekbatan_core::db::{DbError, DbErrorKind};
use ekbatan_core::domain::Stored;
use ekbatan_core::repository::Repository;
use futures_util::future::join_all;
use tokio::sync::oneshot;

use crate::error::EventsError;

/// How many commits are under way at a time.
const COMMITS: usize = 2;

/// How many deliveries a commit deletes.
const MOST: usize = 256;

/// Whether the delivery was as it was claimed. If not, it is another node's.
type Marked = Result<bool, EventsError>;

/// The marks of a node on one shard.
pub(crate) struct Marks {
    deliveries: Repository<Delivery>,
    queue: Mutex<MarkQueue>,
}

#[derive(Default)]
struct MarkQueue {
    waiting: Vec<WaitingMark>,
    /// How many tasks commit.
    tasks: usize,
}

struct WaitingMark {
    delivery: Stored<Delivery>,
    answer: oneshot::Sender<Marked>,
}

impl Marks {
    pub(crate) fn new(deliveries: Repository<Delivery>) -> Arc<Self> {
        Arc::new(Self { deliveries, queue: Mutex::default() })
    }

    /// Deletes a claimed delivery. `false` if it is another node's.
    pub(crate) async fn mark(self: &Arc<Self>, delivery: Stored<Delivery>) -> Marked {
        let (answer, answered) = oneshot::channel();
        if self.add(WaitingMark { delivery, answer }) {
            // A task of its own: a run may be cancelled while others wait for the same commit.
            tokio::spawn(MarkTask { marks: self.clone(), has_ended: false }.run());
        }
        answered.await.unwrap_or_else(|_| {
            let why = "the task that marked the event was stopped";
            Err(DbError::new(DbErrorKind::Unavailable, why).into())
        })
    }

    /// Whether it needs a further task.
    fn add(&self, mark: WaitingMark) -> bool {
        let mut queue = self.lock();
        queue.waiting.push(mark);
        let needs_task = queue.tasks < COMMITS;
        queue.tasks += usize::from(needs_task);
        needs_task
    }

    async fn commit(&self, marks: Vec<WaitingMark>) {
        if marks.len() > 1 {
            let deliveries = marks.iter().map(|mark| mark.delivery.clone());
            if self.deliveries.erase_all(deliveries).await.is_ok() {
                return marks.into_iter().for_each(|mark| mark.answer(Ok(true)));
            }
            // One may be another node's, and none may fail for it: each is tried by itself.
        }
        join_all(marks.into_iter().map(|mark| self.commit_one(mark))).await;
    }

    async fn commit_one(&self, mark: WaitingMark) {
        let marked = match self.deliveries.erase(&mark.delivery).await.map_err(EventsError::from) {
            Ok(()) => Ok(true),
            Err(error) if error.is_stale() => Ok(false),
            Err(error) => Err(error),
        };
        mark.answer(marked);
    }

    /// No panic can leave the queue inconsistent.
    fn lock(&self) -> MutexGuard<'_, MarkQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingMark {
    /// The run may have been cancelled.
    fn answer(self, marked: Marked) {
        let _ = self.answer.send(marked);
    }
}

/// A task that commits until nothing waits.
struct MarkTask {
    marks: Arc<Marks>,
    has_ended: bool,
}

impl MarkTask {
    async fn run(mut self) {
        while let Some(marks) = self.take() {
            self.marks.commit(marks).await;
        }
    }

    /// The marks that wait; `None` ends the task.
    fn take(&mut self) -> Option<Vec<WaitingMark>> {
        let mut queue = self.marks.lock();
        let most = queue.waiting.len().min(MOST);
        if most == 0 {
            queue.tasks -= 1;
            self.has_ended = true;
            return None;
        }
        Some(queue.waiting.drain(..most).collect())
    }
}

impl Drop for MarkTask {
    /// After a panic, or at the end of the runtime, the waiting marks fail unless another task commits them.
    fn drop(&mut self) {
        if !self.has_ended {
            let mut queue = self.marks.lock();
            queue.tasks -= 1;
            if queue.tasks == 0 {
                queue.waiting.clear();
            }
        }
    }
}
