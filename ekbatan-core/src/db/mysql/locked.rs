//! Which rows other transactions keep locked.

use std::collections::HashSet;

use uuid::Uuid;

use super::connection::MySqlConnection;
use super::packets::PacketPlan;
use super::statement::free_row;
use crate::db::{CommitBatch, DbError, DbErrorKind, RowChange};
use crate::domain::TableKey;

impl MySqlConnection {
    /// Which of the batches change a row that another transaction keeps locked, perhaps with its whole
    /// table. A row that does not exist counts as locked, because nothing tells the two apart.
    pub(super) async fn find_locked(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<bool>, DbError> {
        let mut rows: Vec<&RowChange> =
            batches.iter().flat_map(|batch| batch.guarded_changes()).collect();
        rows.sort_by_key(|row| row.table.table.key());
        let mut free = HashSet::new();
        for rows in rows.chunk_by(|a, b| a.table.table.key() == b.table.table.key()) {
            match self.find_free(rows).await {
                Ok(found) => free.extend(found.into_iter().map(row_key)),
                // A table that is locked as a whole is waited for.
                Err(error) if ends_wait(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let is_locked =
            |batch: &&CommitBatch| batch.guarded_changes().any(|row| !free.contains(&row_key(row)));
        Ok(batches.iter().map(is_locked).collect())
    }

    /// Those rows of one table that a commit could lock now.
    async fn find_free<'r>(
        &mut self,
        rows: &[&'r RowChange],
    ) -> Result<Vec<&'r RowChange>, DbError> {
        let mut plan = PacketPlan::new(self.packets);
        for (n, row) in rows.iter().enumerate() {
            plan.push(free_row(&self.syntax, row, n)?)?;
        }
        plan.push("ROLLBACK")?;
        let row_of = |n: i64| usize::try_from(n).ok().and_then(|n| rows.get(n)).copied();
        let mut free = Vec::new();
        for packet in plan.packets() {
            match self.numbers(&packet).await {
                Ok(numbers) => free.extend(numbers.into_iter().filter_map(row_of)),
                // Otherwise the rows that were found free would stay locked.
                Err(error) => return Err(self.after_rollback(error).await),
            }
        }
        Ok(free)
    }
}

fn row_key(row: &RowChange) -> (TableKey, Uuid) {
    (row.table.table.key(), row.id)
}

fn ends_wait(error: &DbError) -> bool {
    matches!(error.kind(), DbErrorKind::LockTimeout | DbErrorKind::StatementTimeout)
}
