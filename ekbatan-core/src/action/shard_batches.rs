//! From a plan to one batch per shard.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Effect, ExecuteError};
use crate::db::{CommitBatch, Database, StageError, Staged, resolve};
use crate::domain::{IdGenerator, ShardIdentifier};
use crate::outbox::{ActionRecord, EventRecord, Part, records};
use crate::repository::PendingRow;
use crate::shard::{Fencing, Shards};

/// What one shard commits.
pub(super) struct ShardBatch {
    pub(super) database: Arc<Database>,
    pub(super) batch: CommitBatch,
}

/// What a call commits, and what follows the commit.
pub(super) struct Planned {
    pub(super) batches: Vec<ShardBatch>,
    pub(super) effects: Vec<Box<dyn Effect>>,
    /// The number of events in the batches.
    pub(super) events: usize,
    /// The staged rows, for later calls of the same group.
    pub(super) pending: Vec<PendingRow>,
}

/// Builds the batches of one plan.
pub(super) struct BatchBuilder<'a> {
    pub(super) shards: &'a Shards,
    pub(super) ids: &'a IdGenerator,
    pub(super) action: &'a ActionRecord,
    pub(super) fencing: Option<&'a Fencing>,
    pub(super) allow_cross_shard: bool,
}

/// The rows of one shard, and their positions in the plan.
struct ShardRows {
    database: Arc<Database>,
    rows: Vec<Staged>,
    positions: Vec<usize>,
}

impl BatchBuilder<'_> {
    /// Builds the batch of every shard that the plan touches, in the order of the shards.
    pub(super) async fn build<E>(
        &self,
        rows: Vec<Staged>,
        events: &[EventRecord],
        mut key: Option<Staged>,
    ) -> Result<Vec<ShardBatch>, ExecuteError<E>> {
        let groups = self.group(rows)?;
        let shards: Vec<ShardIdentifier> = groups.keys().copied().collect();
        if shards.len() > 1 && !self.allow_cross_shard {
            return Err(ExecuteError::CrossShard { shards });
        }
        let mut batches = Vec::with_capacity(groups.len());
        for (shard, ShardRows { database, rows, positions }) in groups {
            let own =
                |(_, event): &(usize, &EventRecord)| positions.binary_search(&event.row).is_ok();
            let events = events.iter().enumerate().filter(own);
            let mut staged_records = records(self.action, events, self.ids);
            // The first shard to commit stores the idempotency key, so that a repeated call
            // finds it as soon as anything is committed.
            staged_records.extend(key.take());
            if shards.len() > 1 {
                let part = Part {
                    action: self.action.action,
                    shard,
                    shards: shards.clone(),
                    namespace: self.action.namespace.clone(),
                    action_name: self.action.name.to_owned(),
                    committed: self.action.completed,
                };
                staged_records.push(part.stage());
            }
            let batch = self.batch(&database, rows, staged_records).await?;
            batches.push(ShardBatch { database, batch });
        }
        Ok(batches)
    }

    /// Groups the rows by shard. A plan without rows goes to the default shard.
    fn group<E>(
        &self,
        rows: Vec<Staged>,
    ) -> Result<BTreeMap<ShardIdentifier, ShardRows>, ExecuteError<E>> {
        let empty = |database: &Arc<Database>| ShardRows {
            database: database.clone(),
            rows: Vec::new(),
            positions: Vec::new(),
        };
        let mut groups = BTreeMap::new();
        if rows.is_empty() {
            let default = self.shards.default();
            groups.insert(default.shard, empty(default));
        }
        for (position, row) in rows.into_iter().enumerate() {
            let database = self.shards.of_row(row.table, row.carries_shard, row.id, &row.values)?;
            let of_shard = groups.entry(database.shard).or_insert_with(|| empty(database));
            of_shard.rows.push(row);
            of_shard.positions.push(position);
        }
        Ok(groups)
    }

    async fn batch<E>(
        &self,
        database: &Database,
        rows: Vec<Staged>,
        records: Vec<Staged>,
    ) -> Result<CommitBatch, ExecuteError<E>> {
        let mut batch = CommitBatch {
            action: self.action.action,
            changes: Vec::with_capacity(rows.len()),
            records: Vec::with_capacity(records.len()),
            fences: self.fencing.map(Fencing::checks).unwrap_or_default(),
            traceable: true,
        };
        for row in rows {
            let table = database.table(row.table).await.map_err(StageError::Table)?;
            batch.changes.push(resolve(row, table)?);
        }
        for record in records {
            let table = database.table(record.table).await.map_err(StageError::Table)?;
            batch.records.push(resolve(record, table)?);
        }
        // Here, so that a call that writes too much does not fail the others of its group.
        database.sizes().check(&batch)?;
        Ok(batch)
    }
}
