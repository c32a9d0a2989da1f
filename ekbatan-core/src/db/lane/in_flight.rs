//! The batches that a lane has taken, until each is answered.

use std::sync::Arc;

use super::batches::{QueuedBatch, SentSession, TakenBatches};
use super::queue::CommitQueue;
use super::sent_at::SentAt;
use crate::db::{CommitError, Committed, DbError};

/// The outcome of a batch; `None` as long as there is none.
pub(super) type Outcome = Option<Result<(), CommitError>>;

/// The batches that a lane has taken. If it is dropped with the lane, the next lane finds out
/// which of them committed.
pub(super) struct InFlight {
    queue: Arc<CommitQueue>,
    taken: TakenBatches,
}

impl InFlight {
    pub(super) fn new(queue: Arc<CommitQueue>, taken: TakenBatches) -> Self {
        Self { queue, taken }
    }

    pub(super) fn batches(&self) -> &[QueuedBatch] {
        &self.taken.batches
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken.batches.is_empty()
    }

    /// The session over which the batches were sent; `None` if nothing was sent.
    pub(super) fn sent_over(&self) -> Option<SentSession> {
        self.taken.sent_over.clone()
    }

    /// To be called before anything is sent.
    pub(super) fn send_over(&mut self, session: Option<&str>) {
        let identity = session.map(Arc::from);
        self.taken.sent_over = Some(SentSession { identity, sent: SentAt::now() });
    }

    /// The session has ended, and what stays in flight did not commit.
    pub(super) fn settled(&mut self) {
        self.taken.sent_over = None;
    }

    pub(super) fn count_loss(&mut self) {
        self.taken.losses += 1;
    }

    pub(super) fn losses(&self) -> u32 {
        self.taken.losses
    }

    /// Takes several batches apart, each to be sent by itself. Nothing must be on its way. A single
    /// batch stays.
    pub(super) fn take_apart(&mut self) -> Vec<InFlight> {
        if self.taken.batches.len() < 2 {
            return Vec::new();
        }
        let losses = self.taken.losses;
        let alone = |queued| {
            let taken = TakenBatches { batches: vec![queued], sent_over: None, losses };
            InFlight::new(self.queue.clone(), taken)
        };
        std::mem::take(&mut self.taken.batches).into_iter().map(alone).collect()
    }

    /// Answers every batch for which `answer` returns an outcome; the others stay, in order.
    pub(super) fn answer_each(
        &mut self,
        mut answer: impl FnMut(&QueuedBatch) -> Option<Result<Committed, CommitError>>,
    ) {
        for queued in std::mem::take(&mut self.taken.batches) {
            match answer(&queued) {
                Some(answer) => self.finish(queued, answer),
                None => self.taken.batches.push(queued),
            }
        }
    }

    /// Rejects every batch: nothing of it was written.
    pub(super) fn refuse_all(&mut self, cause: &DbError) {
        for queued in std::mem::take(&mut self.taken.batches) {
            let error = cause.copy().and("; nothing was written");
            self.finish(queued, Err(CommitError::Refused(error)));
        }
    }

    fn finish(&self, queued: QueuedBatch, outcome: Result<Committed, CommitError>) {
        self.queue.release(&queued.batch, outcome.is_ok());
        let QueuedBatch { answer, open, .. } = queued;
        drop(open); // the action is settled before its caller receives the outcome
        let _ = answer.send(outcome);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.is_empty() {
            return;
        }
        let mut taken = std::mem::take(&mut self.taken);
        taken.losses += 1;
        self.queue.state().abandoned.push(taken);
        self.queue.wake();
    }
}
