//! Writes outside of actions, for imports, fixtures and scripts.
//!
//! Invariants: each call writes all of its rows or none, alone and in a transaction; nothing is
//! written to the outbox, so rows with events are rejected; nothing is written inside `perform`.

use std::collections::HashSet;
use std::sync::Arc;

use tracing::Instrument;
use uuid::Uuid;

use super::{Repository, WriteError};
use crate::db::{
    CommitBatch, Database, StageError, Staged, TableError, TableInfo, outside_transaction,
    performed_action, resolve, stage_changed, stage_deleted, stage_expected, stage_new,
};
use crate::domain::{Addable, Changed, Deletable, Entity, EntityId, New, Stored, Table, Updatable};

impl<T: Entity> Repository<T> {
    /// Returns a repository whose writes commit only if this row, of any table on the same shard, is
    /// still as it was read. Otherwise they fail as stale.
    #[doc(hidden)]
    pub fn expecting<U: Entity>(mut self, read: &Stored<U>) -> Result<Self, WriteError> {
        self.expected.push(stage_expected(read)?);
        Ok(self)
    }

    /// Adds a row.
    pub async fn add(&self, new: impl Addable<T>) -> Result<Stored<T>, WriteError> {
        let mut added = self.add_all([new.into_new()]).await?;
        Ok(added.remove(0))
    }

    /// Adds all rows or none. Returns them in order.
    pub async fn add_all(
        &self,
        new: impl IntoIterator<Item = New<T>>,
    ) -> Result<Vec<Stored<T>>, WriteError> {
        let now = self.clock.now();
        let staged = new.into_iter().map(|new| {
            no_events::<T>(new.value.id().uuid(), new.events.len())?;
            Ok(stage_new(new, now).map(|(staged, stored, _)| (staged, stored))?)
        });
        self.write("BATCH_INSERT", staged.collect::<Result<_, WriteError>>()?).await
    }

    /// Updates a row. Fails if its version is not the one that was read.
    pub async fn update(&self, changed: impl Updatable<T>) -> Result<Stored<T>, WriteError> {
        let mut updated = self.update_all([changed.into_changed()]).await?;
        Ok(updated.remove(0))
    }

    /// Updates all rows or none. One stale row fails the whole call.
    pub async fn update_all(
        &self,
        changed: impl IntoIterator<Item = Changed<T>>,
    ) -> Result<Vec<Stored<T>>, WriteError> {
        let now = self.clock.now();
        let staged = changed.into_iter().map(|changed| {
            no_events::<T>(changed.id.uuid(), changed.events.len())?;
            Ok(stage_changed(changed, now).map(|(staged, stored, _)| (staged, stored))?)
        });
        self.write("BATCH_UPDATE", staged.collect::<Result<_, WriteError>>()?).await
    }

    /// Soft-deletes a row. Fails if its version is not the one that was read.
    pub async fn delete(&self, row: impl Deletable<T>) -> Result<Stored<T>, WriteError> {
        self.update(row.into_deletion()).await
    }

    /// Deletes a row for good. Fails if its version is not the one that was read.
    #[doc(hidden)]
    pub async fn erase(&self, row: &Stored<T>) -> Result<(), WriteError> {
        self.write("DELETE", vec![(stage_deleted(row)?, row.clone())]).await.map(drop)
    }

    /// Deletes all rows for good or none. One stale row fails the whole call.
    #[doc(hidden)]
    pub async fn erase_all(
        &self,
        rows: impl IntoIterator<Item = Stored<T>>,
    ) -> Result<(), WriteError> {
        let staged = rows.into_iter().map(|row| Ok((stage_deleted(&row)?, row)));
        self.write("DELETE", staged.collect::<Result<_, WriteError>>()?).await.map(drop)
    }

    async fn write(
        &self,
        operation: &'static str,
        rows: Vec<(Staged, Stored<T>)>,
    ) -> Result<Vec<Stored<T>>, WriteError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(within) = performed_action() {
            return Err(WriteError::InsidePerform { model: T::TABLE.model, within });
        }
        let span = tracing::info_span!(
            "ekbatan.repository",
            db.operation.name = operation,
            ekbatan.entity.type = T::TABLE.model,
            ekbatan.batch.size = rows.len(),
        );
        let writing = self.write_batch(rows).instrument(span);
        if self.outside_transaction { outside_transaction(writing).await } else { writing.await }
    }

    async fn write_batch(
        &self,
        rows: Vec<(Staged, Stored<T>)>,
    ) -> Result<Vec<Stored<T>>, WriteError> {
        self.settle_pending().await;
        let database = self.destination(&rows)?;
        let info = self.table(&database, T::TABLE).await?;
        database.check_undone(&info).map_err(TableError::from)?;
        let mut seen = HashSet::new();
        let mut changes = Vec::with_capacity(rows.len());
        let mut answers = Vec::with_capacity(rows.len());
        for (staged, stored) in rows {
            if !seen.insert(staged.id) {
                return Err(WriteError::Twice { model: T::TABLE.model, id: staged.id });
            }
            changes.push(resolve(staged, info.clone())?);
            answers.push(stored);
        }
        let mut expected = Vec::with_capacity(self.expected.len());
        for row in &self.expected {
            expected.push(row.clone().resolve(self.table(&database, row.table).await?));
        }
        let batch = CommitBatch::of_rows(changes, expected);
        match &self.within {
            Some(transaction) => transaction.write(batch).await?,
            None => drop(database.commit(batch).await?),
        }
        Ok(answers)
    }

    /// A table as the database describes it; within a transaction, its own connection is asked.
    async fn table(
        &self,
        database: &Database,
        table: &'static Table,
    ) -> Result<Arc<TableInfo>, TableError> {
        match &self.within {
            Some(transaction) => transaction.table(table).await,
            None => database.table(table).await,
        }
    }

    /// The one database of all rows.
    fn destination(&self, rows: &[(Staged, Stored<T>)]) -> Result<Arc<Database>, WriteError> {
        let mut destination: Option<&Arc<Database>> = None;
        for (row, _) in rows {
            let database = self.shards.of_row(row.table, row.carries_shard, row.id, &row.values)?;
            if let Some(transaction) = &self.within {
                let open_on = transaction.database().shard;
                if database.shard != open_on {
                    return Err(WriteError::OtherShard {
                        model: T::TABLE.model,
                        id: row.id,
                        row: database.shard,
                        transaction: open_on,
                    });
                }
            }
            match destination {
                Some(first) if first.shard != database.shard => {
                    return Err(WriteError::CrossShard {
                        first: first.shard,
                        second: database.shard,
                    });
                }
                _ => destination = Some(database),
            }
        }
        Ok(destination.unwrap_or(self.shards.default()).clone())
    }
}

fn no_events<T: Entity>(id: Uuid, count: usize) -> Result<(), WriteError> {
    if count == 0 {
        Ok(())
    } else {
        Err(WriteError::CarriesEvents { model: T::TABLE.model, id, count })
    }
}

impl From<StageError> for WriteError {
    fn from(error: StageError) -> Self {
        match error {
            StageError::IdChanged { model, id } => WriteError::IdChanged { model, id },
            StageError::Field { model, id, source } => WriteError::Field { model, id, source },
            StageError::Table(error) => error.into(),
        }
    }
}
