//! Writes to several tables by one commit, outside of actions.
//!
//! Invariant: all rows travel in one round trip. A process that stands still in the middle of a
//! transaction keeps its rows locked; here there is no such moment.

use std::sync::Arc;

use super::{Repository, WriteError};
use crate::db::{
    CommitBatch, Database, RowChange, Staged, performed_action, resolve, stage_changed, stage_new,
};
use crate::domain::{Changed, Entity, New, Stored};

/// Rows of one shard that are written together or not at all.
#[doc(hidden)]
#[derive(Default)]
pub struct JointWrite {
    database: Option<Arc<Database>>,
    changes: Vec<RowChange>,
}

impl<T: Entity> Repository<T> {
    /// Adds a row with a joint write.
    #[doc(hidden)]
    pub async fn add_jointly(&self, write: &mut JointWrite, new: New<T>) -> Result<(), WriteError> {
        let (staged, _, _) = stage_new(new, self.clock.now())?;
        self.join(write, staged).await
    }

    /// Updates a row with a joint write. The commit fails if its version is not the one that was read.
    #[doc(hidden)]
    pub async fn update_jointly(
        &self,
        write: &mut JointWrite,
        changed: Changed<T>,
    ) -> Result<Stored<T>, WriteError> {
        let (staged, stored, _) = stage_changed(changed, self.clock.now())?;
        self.join(write, staged).await?;
        Ok(stored)
    }

    async fn join(&self, write: &mut JointWrite, row: Staged) -> Result<(), WriteError> {
        if let Some(within) = performed_action() {
            return Err(WriteError::InsidePerform { model: T::TABLE.model, within });
        }
        let database = self.shards.of_row(row.table, row.carries_shard, row.id, &row.values)?;
        let first = write.database.get_or_insert_with(|| database.clone());
        if first.shard != database.shard {
            return Err(WriteError::CrossShard { first: first.shard, second: database.shard });
        }
        let info = database.table(T::TABLE).await?;
        write.changes.push(resolve(row, info)?);
        Ok(())
    }
}

impl JointWrite {
    /// Writes all rows.
    pub async fn commit(self) -> Result<(), WriteError> {
        let Some(database) = self.database else { return Ok(()) };
        database.commit(CommitBatch::of_rows(self.changes, Vec::new())).await?;
        Ok(())
    }
}

impl std::fmt::Debug for JointWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JointWrite").field("changes", &self.changes.len()).finish_non_exhaustive()
    }
}
