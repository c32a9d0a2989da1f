//! From a plan to what each shard is to commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::Value as Json;

use super::commit::Keyed;
use super::{Action, ExecuteError, Execution, PlanError};
use crate::db::{CommitBatch, Database, StageError, Staged, resolve};
use crate::domain::ShardIdentifier;
use crate::outbox::{ActionRecord, EventRecord, KeyRecord, Part, records};

/// What one shard is to commit.
pub(super) struct ShardBatch {
    pub(super) database: Arc<Database>,
    pub(super) batch: CommitBatch,
}

/// A shard's rows, and which rows of the plan they are.
struct Group {
    database: Arc<Database>,
    rows: Vec<Staged>,
    positions: Vec<usize>,
}

impl<A: Action> Execution<'_, A> {
    /// What every shard that the plan touches is to commit, in the order of the shards.
    pub(super) async fn parts(
        &self,
        rows: Vec<Staged>,
        events: &[EventRecord],
        key: Option<Staged>,
        action: &ActionRecord,
    ) -> Result<Vec<ShardBatch>, ExecuteError<A::Error>> {
        let groups = self.group(rows)?;
        let shards: Vec<ShardIdentifier> = groups.keys().copied().collect();
        if shards.len() > 1 && !self.options.allow_cross_shard {
            return Err(ExecuteError::CrossShard { shards });
        }
        let ids = &self.executor.inner.ids;
        let mut key = key;
        let mut parts = Vec::with_capacity(groups.len());
        for (shard, Group { database, rows, positions }) in groups {
            let own =
                |(_, event): &(usize, &EventRecord)| positions.binary_search(&event.row).is_ok();
            let mut staged_records = records(action, events.iter().enumerate().filter(own), ids);
            // The first shard to commit keeps the key: what has begun is not begun again.
            staged_records.extend(key.take());
            if shards.len() > 1 {
                let part = Part {
                    action: action.action,
                    shard,
                    shards: shards.clone(),
                    namespace: action.namespace.clone(),
                    action_name: action.name.to_owned(),
                    committed: action.completed,
                };
                staged_records.push(part.stage());
            }
            let batch = self.batch(&database, rows, staged_records).await?;
            parts.push(ShardBatch { database, batch });
        }
        Ok(parts)
    }

    /// The rows by shard. A plan without rows leaves its trace on the default shard.
    fn group(
        &self,
        rows: Vec<Staged>,
    ) -> Result<BTreeMap<ShardIdentifier, Group>, ExecuteError<A::Error>> {
        let shards = &self.executor.inner.databases.shards;
        let group = |database: &Arc<Database>| Group {
            database: database.clone(),
            rows: Vec::new(),
            positions: Vec::new(),
        };
        let mut groups = BTreeMap::new();
        if rows.is_empty() {
            groups.insert(shards.default().shard, group(shards.default()));
        }
        for (position, row) in rows.into_iter().enumerate() {
            let database = shards.of_row(row.table, row.carries_shard, row.id, &row.values)?;
            let of_shard = groups.entry(database.shard).or_insert_with(|| group(database));
            of_shard.rows.push(row);
            of_shard.positions.push(position);
        }
        Ok(groups)
    }

    async fn batch(
        &self,
        database: &Database,
        rows: Vec<Staged>,
        records: Vec<Staged>,
    ) -> Result<CommitBatch, ExecuteError<A::Error>> {
        let mut batch = CommitBatch {
            action: self.id,
            changes: Vec::with_capacity(rows.len()),
            records: Vec::with_capacity(records.len()),
            fences: self.options.fencing.as_ref().map(|it| it.checks()).unwrap_or_default(),
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
        Ok(batch)
    }

    pub(super) fn record(&self, params: &Json, started: DateTime<Utc>) -> ActionRecord {
        let inner = &self.executor.inner;
        ActionRecord {
            namespace: inner.namespace.clone(),
            action: self.id,
            name: A::NAME,
            params: params.to_string(),
            started,
            completed: inner.databases.clock.now(),
            principal: self.options.principal.clone(),
            reason: self.options.reason.clone(),
            trace_parent: self.options.trace_parent.clone(),
        }
    }

    pub(super) fn key_record(
        &self,
        keyed: &Keyed<'_, A::Output>,
        output: &A::Output,
        created: DateTime<Utc>,
    ) -> Result<Staged, PlanError> {
        let record = KeyRecord {
            namespace: &self.executor.inner.namespace,
            key: keyed.key,
            action_name: A::NAME,
            fingerprint: &keyed.fingerprint,
            action: self.id,
            output: (keyed.codec.encode)(output).map_err(PlanError::Output)?,
            created,
        };
        Ok(record.stage())
    }
}
