//! Which rows other transactions keep locked.

use std::collections::HashSet;

use super::connection::MySqlConnection;
use super::packets::PacketPlan;
use super::statement::free_row;
use crate::db::{CommitBatch, DbError};

impl MySqlConnection {
    /// Which of the batches change a row that another transaction keeps locked. A row that does
    /// not exist counts as locked, because nothing tells the two apart.
    pub(super) async fn find_locked(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<bool>, DbError> {
        let mut plan = PacketPlan::new(self.packets);
        let changes = batches.iter().flat_map(|batch| batch.guarded_changes());
        for (n, row) in changes.enumerate() {
            plan.push(free_row(&self.syntax, row, n)?)?;
        }
        plan.push("ROLLBACK")?;
        let mut free = HashSet::new();
        for packet in plan.packets() {
            free.extend(self.numbers(&packet).await?);
        }
        let mut n = 0;
        let mut is_free = || {
            n += 1;
            free.contains(&(n - 1))
        };
        // Every row is asked for, so that the numbers stay in step.
        let is_locked =
            |batch: &&CommitBatch| batch.guarded_changes().filter(|_| !is_free()).count() > 0;
        Ok(batches.iter().map(is_locked).collect())
    }
}
