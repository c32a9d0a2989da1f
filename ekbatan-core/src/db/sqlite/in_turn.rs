//! Commits the turns of a group one after another, several by one call.
//!
//! A call that fails does not tell which of its turns failed. So after a failure the turns are
//! written once more, each by a call of its own.

use sqlx::sqlite::SqliteArguments;

use super::commit::{chain_length, chain_tables};
use super::connection::SqliteConnection;
use crate::db::{CommitBatch, CommitError, DbError, DbErrorKind};

/// How many turns one call writes.
#[derive(Clone, Copy, PartialEq)]
enum PerCall {
    Many,
    One,
}

impl SqliteConnection {
    /// Commits a batch by its turns. Unless it answers `Ok(Ok(()))`, nothing is written.
    pub(super) async fn commit_in_turn(
        &mut self,
        batch: &CommitBatch,
    ) -> Result<Result<(), CommitError>, DbError> {
        let writing = self.writer_lock.acquire().await?;
        let mut answer = Ok(());
        for per_call in [PerCall::Many, PerCall::One] {
            answer = match self.write_in_turn(batch, per_call).await {
                Ok(()) => break,
                Err(error) => Err(error),
            };
            // Fails after errors that already ended the transaction.
            let _ = self.run("ROLLBACK", SqliteArguments::default()).await;
            if matches!(answer, Err(CommitError::FenceLost(_) | CommitError::Stale(_))) {
                break;
            }
        }
        drop(writing);
        match answer {
            Err(CommitError::Refused(error)) if error.is_connection_lost() => Err(error),
            answer => Ok(answer),
        }
    }

    async fn write_in_turn(
        &mut self,
        batch: &CommitBatch,
        per_call: PerCall,
    ) -> Result<(), CommitError> {
        let refused = CommitError::Refused;
        self.run("BEGIN IMMEDIATE", SqliteArguments::default()).await.map_err(refused)?;
        for fence in &batch.fences {
            if !self.fence_holds(fence).await.map_err(refused)? {
                return Err(CommitError::FenceLost(fence.key.clone()));
            }
        }
        self.write_batch(&batch.expected_alone()).await.map_err(refused)??;
        let mut first = 0;
        while first < batch.turns.len() {
            let rest = &batch.turns[first..];
            let tables = chain_tables(&rest[0]);
            let alike = rest.iter().take_while(|turn| chain_tables(turn) == tables).count();
            let count = match (per_call, &tables) {
                (PerCall::Many, Some(_)) => chain_length(alike),
                _ => 1,
            };
            let turns: Vec<&CommitBatch> = rest[..count].iter().collect();
            let written = match &turns[..] {
                [turn] => self.write_batch(turn).await.map(|answer| vec![answer]),
                turns => self.write_chains(turns, false).await,
            };
            let answers = written.map_err(|error| refused(of_turn(error, first, turns[0])))?;
            if let Some(stale) = answers.iter().position(Result::is_err) {
                return Err(refused(DbError::stale_turn(first + stale)));
            }
            first += count;
        }
        self.write_batch(&batch.records_alone()).await.map_err(refused)??;
        self.run("COMMIT", SqliteArguments::default()).await.map_err(refused)
    }
}

/// The error of a call that wrote one turn.
fn of_turn(error: DbError, turn: usize, batch: &CommitBatch) -> DbError {
    // By itself, a batch of several rows may write a child before its parent.
    if error.kind() == DbErrorKind::ForeignKeyViolation && batch.changes.len() > 1 {
        return DbError::stale_turn(turn);
    }
    error.at_turn(turn)
}
