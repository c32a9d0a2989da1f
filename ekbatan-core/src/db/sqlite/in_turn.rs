//! Commits the turns of a group one after another.

use super::session::StatementRunner;
use crate::db::{CommitBatch, CommitError, DbError, DbErrorKind};

impl StatementRunner<'_> {
    /// Commits a batch by its turns. Unless it answers `Ok(Ok(()))`, nothing is written. An error names
    /// the turn that failed, if that is known.
    pub(super) async fn commit_in_turn(
        &mut self,
        batch: &CommitBatch,
    ) -> Result<Result<(), CommitError>, DbError> {
        let answer = self.write_in_turn(batch).await;
        if answer.is_err() {
            self.roll_back().await;
        }
        match answer {
            Err(CommitError::Refused(error)) => Err(error),
            answer => Ok(answer),
        }
    }

    async fn write_in_turn(&mut self, batch: &CommitBatch) -> Result<(), CommitError> {
        let refused = CommitError::Refused;
        self.run("BEGIN IMMEDIATE", Vec::new()).await.map_err(refused)?;
        for fence in &batch.fences {
            if !self.fence_holds(fence).await.map_err(refused)? {
                return Err(CommitError::FenceLost(fence.key.clone()));
            }
        }
        self.write_batch(&batch.expected_alone()).await.map_err(refused)??;
        for (number, turn) in batch.turns.iter().enumerate() {
            let answer = self.write_batch(turn).await;
            if answer.map_err(|error| refused(of_turn(error, number, turn)))?.is_err() {
                return Err(refused(DbError::stale_turn(number)));
            }
        }
        self.write_batch(&batch.records_alone()).await.map_err(refused)??;
        self.run("COMMIT", Vec::new()).await.map(drop).map_err(refused)
    }
}

/// The error of a statement of one turn.
fn of_turn(error: DbError, turn: usize, batch: &CommitBatch) -> DbError {
    // By itself, a batch of several rows may write a child before its parent.
    if error.kind() == DbErrorKind::ForeignKeyViolation && batch.changes.len() > 1 {
        return DbError::stale_turn(turn);
    }
    error.at_turn(turn)
}
