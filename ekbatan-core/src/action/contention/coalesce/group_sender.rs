//! Sends the batch of a group to the database.
//!
//! Turns that may be merged are sent merged first. If the database refuses that, or if a rule
//! would notice the merging, they are sent to be written one after another. When one of them
//! fails, those before it are sent once more without it.

use std::sync::Arc;

use tracing::Span;

use super::group_batch::{GroupBatch, Writing};
use crate::db::{CommitError, Committed, Database, DbError, DbErrorKind};
use crate::shard::Fencing;

pub(super) struct GroupSender<'g> {
    pub(super) database: &'g Arc<Database>,
    pub(super) batch: &'g GroupBatch,
    pub(super) fencing: &'g Option<Arc<Fencing>>,
}

/// A turn that the database did not accept.
pub(super) struct FailedTurn {
    pub(super) turn: usize,
    pub(super) error: DbError,
}

/// What became of a group.
pub(super) struct Sent {
    /// The commit of the turns before the one that failed, or of all; `None` if there were none.
    pub(super) result: Result<Option<Committed>, CommitError>,
    /// The first turn that is not part of the commit.
    pub(super) failed: Option<FailedTurn>,
}

impl GroupSender<'_> {
    pub(super) async fn send(&self) -> Sent {
        let mut turns = self.batch.turns();
        let mut failed = None;
        while turns > 0 {
            match self.send_first(turns).await {
                Err(CommitError::Refused(error)) if !is_shared(error.kind()) => {
                    match error.turn().filter(|turn| *turn < turns) {
                        Some(turn) => {
                            failed = Some(FailedTurn { turn, error });
                            turns = turn;
                        }
                        None => return Sent { result: Err(CommitError::Refused(error)), failed },
                    }
                }
                result => return Sent { result: result.map(Some), failed },
            }
        }
        Sent { result: Ok(None), failed }
    }

    async fn send_first(&self, turns: usize) -> Result<Committed, CommitError> {
        let writing = self.batch.writing(turns);
        match self.commit(turns, writing).await {
            Err(CommitError::Refused(error)) if turns == 1 => {
                Err(CommitError::Refused(error.at_turn(0)))
            }
            // Not all turns are to blame. Writing them one after another shows which one is.
            Err(CommitError::Refused(error))
                if writing == Writing::Merged && !is_shared(error.kind()) =>
            {
                self.commit(turns, Writing::InTurn).await
            }
            result => result,
        }
    }

    async fn commit(&self, turns: usize, writing: Writing) -> Result<Committed, CommitError> {
        if let Some(key) = self.fencing.as_ref().and_then(|fencing| fencing.over()) {
            return Err(CommitError::FenceLost(key.to_owned()));
        }
        let batch = self.batch.commit(turns, writing, self.fencing.as_deref());
        let rows = match writing {
            Writing::Merged => batch.changes.len(),
            Writing::InTurn => batch.turns.iter().map(|turn| turn.changes.len()).sum(),
        };
        Span::current().record("ekbatan.batch.size", rows);
        self.database.commit(batch).await
    }
}

/// Whether every member alone would fail for the same reason.
pub(super) fn is_shared(kind: DbErrorKind) -> bool {
    matches!(
        kind,
        DbErrorKind::Unavailable
            | DbErrorKind::PoolTimeout
            | DbErrorKind::LockTimeout
            | DbErrorKind::Overloaded
    )
}
