//! Commits the turns of a group one after another, by one packet of statements if they fit.
//!
//! A variable of the session names the turn whose statements run, so that after a failure it is
//! known which turn failed.

use super::commit::{fences, is_guard};
use super::connection::MySqlConnection;
use super::fence::guard_fence;
use super::locks::lock_first;
use super::packets::PacketPlan;
use super::statement::literal;
use crate::db::{CommitBatch, CommitError, DbError, DbErrorKind, ExpectedRow, RowChange, Syntax};

/// The values of the variable while no turn is written, and while the fences and the expected rows
/// are checked.
const NO_TURN: i64 = -1;
const FENCES: i64 = -2;
const EXPECTED: i64 = -3;

fn name_turn(turn: i64) -> String {
    format!("SET @ekbatan_turn = {turn}")
}

impl MySqlConnection {
    /// Commits a batch by its turns. Unless it answers `Ok(Ok(()))`, nothing is written. An error names
    /// the turn that failed, if that is known.
    pub(super) async fn commit_in_turn(
        &mut self,
        batch: &CommitBatch,
    ) -> Result<Result<(), CommitError>, DbError> {
        let plan = self.plan_turns(batch)?;
        let error = match self.send_all(plan).await {
            Ok(()) => return Ok(Ok(())),
            Err(error) if error.is_connection_lost() => return Err(error),
            Err(error) => error,
        };
        let turn = self.numbers("ROLLBACK; SELECT @ekbatan_turn").await.map_err(|error| {
            let why = format!("the rollback failed: {error}");
            DbError::new(DbErrorKind::Unavailable, why).with_source(error)
        })?;
        let turn = turn.first().copied().unwrap_or(NO_TURN);
        if turn == FENCES
            && is_guard(&error)
            && let Some(fence) = fences(&[batch]).first()
        {
            return Ok(Err(CommitError::FenceLost(fence.key.clone())));
        }
        if turn == EXPECTED && is_guard(&error) {
            let expected = batch.expected.iter().map(ExpectedRow::row_ref).collect();
            return Ok(Err(CommitError::Stale(expected)));
        }
        Err(match usize::try_from(turn) {
            Ok(turn) if is_guard(&error) => DbError::stale_turn(turn),
            Ok(turn) => error.at_turn(turn),
            Err(_) => error,
        })
    }

    fn plan_turns(&self, batch: &CommitBatch) -> Result<PacketPlan, DbError> {
        let mut plan = PacketPlan::new(self.packets);
        plan.push(name_turn(FENCES))?;
        for fence in fences(&[batch]) {
            plan.push(guard_fence(&self.syntax, fence))?;
        }
        plan.push(name_turn(NO_TURN))?;
        let locks = lock_first(&self.syntax, &[batch])?;
        if locks.is_empty() {
            self.plan_locks(batch, &mut plan)?;
        }
        locks.into_iter().try_for_each(|lock| plan.push(lock))?;
        plan.push(name_turn(EXPECTED))?;
        self.plan_expected(&[batch], &mut plan)?;
        for (n, turn) in batch.turns.iter().enumerate() {
            plan.push(name_turn(n as i64))?;
            self.plan_writes(&[turn], &mut plan).map_err(|error| error.at_turn(n))?;
        }
        plan.push(name_turn(NO_TURN))?;
        self.plan_writes(&[&batch.records_alone()], &mut plan)?;
        plan.push("COMMIT")?;
        Ok(plan)
    }

    /// Locks the rows that the turns update or delete, in the order in which every commit locks them.
    fn plan_locks(&self, batch: &CommitBatch, plan: &mut PacketPlan) -> Result<(), DbError> {
        let changes: Vec<&RowChange> = batch.guarded_changes().collect();
        if changes.len() < 2 {
            return Ok(());
        }
        for rows in changes.chunk_by(|a, b| a.table.table.key() == b.table.table.key()) {
            let table = &rows[0].table;
            let id = self.syntax.quote(&table.columns[0].name);
            let ids = rows.iter().map(|row| literal(row, 0)).collect::<Result<Vec<_>, _>>()?;
            plan.push(format!(
                "SELECT 1 FROM {} WHERE {id} IN ({}) ORDER BY {id} FOR UPDATE",
                self.syntax.table(table.table),
                ids.join(", ")
            ))?;
        }
        Ok(())
    }
}
