//! A batch on its way: in the queue, taken by a lane, or left behind by one.

use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::open_actions::OpenAction;
use super::sent_at::SentAt;
use crate::db::{ActionId, CommitBatch, CommitError, Committed};

pub(super) type Answer = oneshot::Sender<Result<Committed, CommitError>>;

/// A batch and the channel to its caller.
pub(super) struct QueuedBatch {
    pub(super) batch: CommitBatch,
    pub(super) since: Instant,
    pub(super) bytes: usize,
    pub(super) answer: Answer,
    pub(super) open: OpenAction,
    /// The runtime in which the caller waits. Lanes restart there if their own has ended.
    pub(super) runtime: Option<Handle>,
}

/// Batches that belong to a lane.
#[derive(Default)]
pub(super) struct TakenBatches {
    pub(super) batches: Vec<QueuedBatch>,
    /// The session over which they were sent; `None` if nothing was sent.
    pub(super) sent_over: Option<SentSession>,
    /// How often their connection was lost, or their lane died, since they were taken.
    pub(super) losses: u32,
}

/// A session over which batches were sent.
#[derive(Debug, Clone)]
pub(super) struct SentSession {
    /// The identity by which the server finds it, if it has one.
    pub(super) identity: Option<Arc<str>>,
    pub(super) sent: SentAt,
}

/// Actions whose callers got "unknown" and whose commit has not been looked up yet.
pub(super) struct UnsettledActions {
    /// The session over which they were sent.
    pub(super) session: SentSession,
    pub(super) actions: Vec<ActionId>,
    #[expect(dead_code, reason = "while they exist, the actions are open")]
    pub(super) open: Vec<OpenAction>,
}
