//! From a plan to one batch per shard.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use super::place_calls::{CallPlacer, PlacedCalls};
use super::{Effect, ExecuteError};
use crate::clock::Clock;
use crate::db::{CommitBatch, Database, StageError, Staged, StagedExpectation, resolve};
use crate::domain::{IdGenerator, ShardIdentifier};
use crate::outbox::deliveries::{Births, DeliveryHub};
use crate::outbox::{
    ActionRecord, EnqueueStep, EventRecord, KeyRecord, Mark, MarkedRow, Part, decision, records,
};
use crate::repository::PendingRow;
use crate::shard::{Fencing, Shards};

/// What one shard commits.
pub(super) struct ShardBatch {
    pub(super) database: Arc<Database>,
    pub(super) batch: CommitBatch,
    /// What the nodes of this process are told once the batch is committed.
    pub(super) births: Births,
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

/// The idempotency key or the message of a call.
pub(super) struct KeyPlan<'a> {
    pub(super) home: &'a Arc<Database>,
    pub(super) record: KeyRecord<'a>,
}

/// The claim of a key whose home the plan does not touch. It is inserted before the batches.
pub(super) struct ClaimPlan {
    pub(super) id: Uuid,
    pub(super) row: Staged,
    /// The shard that commits first, and decides.
    pub(super) first: Arc<Database>,
}

/// The batches of a plan, in the order in which they commit.
pub(super) struct PlannedBatches {
    pub(super) batches: Vec<ShardBatch>,
    pub(super) claim: Option<ClaimPlan>,
}

/// Builds the batches of one plan.
pub(super) struct BatchBuilder<'a> {
    pub(super) shards: &'a Shards,
    pub(super) ids: &'a IdGenerator,
    pub(super) action: &'a ActionRecord,
    pub(super) fencing: Option<&'a Fencing>,
    pub(super) allow_cross_shard: bool,
    /// Whether the action is recorded in the outbox. One that only checks rows need not be.
    pub(super) is_recorded: bool,
    pub(super) clock: &'a Arc<dyn Clock>,
    /// What the events are delivered to.
    pub(super) deliveries: &'a Arc<DeliveryHub>,
    /// The mark of the work that the call belongs to.
    pub(super) mark: Option<&'a Mark>,
}

/// The rows of a plan.
pub(super) struct PlanRows {
    pub(super) changes: Vec<Staged>,
    /// Rows that must be unchanged.
    pub(super) expected: Vec<StagedExpectation>,
    /// The calls for later.
    pub(super) calls: Vec<EnqueueStep>,
}

/// The rows of one shard, and the positions of its changes in the plan.
struct ShardRows {
    database: Arc<Database>,
    rows: Vec<Staged>,
    positions: Vec<usize>,
    expected: Vec<StagedExpectation>,
    /// Whether the shard only checks the mark. That needs no permission to touch several shards.
    is_mark_only: bool,
}

impl BatchBuilder<'_> {
    /// Builds the batch of every shard that the plan touches, in the order of the shards. The
    /// home of a key comes first, because its commit decides between calls. Shards
    /// on which rows are only checked come before it, so that a failed check leaves nothing
    /// behind.
    pub(super) async fn build<E>(
        &self,
        rows: PlanRows,
        events: &[EventRecord],
        key: Option<KeyPlan<'_>>,
    ) -> Result<PlannedBatches, ExecuteError<E>> {
        let home = key.as_ref().map(|key| key.home);
        let PlanRows { changes, expected, calls } = rows;
        // The home of a key follows from the key, so calls with one unique key would be on many shards.
        let of_no_rows = home.filter(|_| calls.is_empty()).unwrap_or(self.shards.default());
        let groups = self.group(changes, expected, of_no_rows)?;
        let is_of_plan = |group: &&ShardRows| !group.is_mark_only;
        let of_plan = groups.values().filter(is_of_plan);
        let shards: Vec<ShardIdentifier> = of_plan.map(|group| group.database.shard).collect();
        if shards.len() > 1 && !self.allow_cross_shard {
            return Err(ExecuteError::CrossShard { shards });
        }
        let mut groups: Vec<ShardRows> = groups.into_values().collect();
        if let Some(home) = home {
            groups.sort_by_key(|group| group.database.shard != home.shard);
        }
        let mut placed = PlacedCalls::default();
        if !calls.is_empty() {
            placed = self.place_calls(&calls, &mut groups).await?;
        }
        let (mut writing, mut checking): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| !group.rows.is_empty());
        if writing.is_empty() && self.is_recorded {
            // A plan without rows has a group, too.
            writing.extend(checking.drain(..1));
        }
        checking.retain(|group| !group.expected.is_empty());
        let (mut of_first, claim) = match key {
            Some(key) => self.place_key(key, &writing),
            None => (None, None),
        };
        let mut batches = Vec::with_capacity(checking.len() + writing.len());
        for ShardRows { database, expected, .. } in checking {
            let batch = self.batch(&database, Vec::new(), expected, Vec::new()).await?;
            batches.push(ShardBatch { database, batch, births: Births::default() });
        }
        let shards: Vec<_> = writing.iter().map(|group| group.database.shard).collect();
        for ShardRows { database, rows, positions, expected, .. } in writing {
            let own =
                |(_, event): &(usize, &EventRecord)| positions.binary_search(&event.row).is_ok();
            let events = events.iter().enumerate().filter(own);
            let subscriptions = self.deliveries.of(database.shard);
            let mut births = Births::new(self.deliveries, database.shard, subscriptions.clone());
            births.note_changes(rows.iter());
            let subscriptions = subscriptions.as_deref();
            // The calls belong to the batch that commits first.
            let PlacedCalls { calls, .. } = std::mem::take(&mut placed);
            let mut staged_records =
                records(self.action, events, &calls, self.ids, subscriptions, &mut births)?;
            staged_records.extend(of_first.take());
            if shards.len() > 1 {
                let part = Part {
                    action: self.action.action,
                    shard: database.shard,
                    shards: shards.clone(),
                    namespace: self.action.namespace.clone(),
                    action_name: self.action.name.to_owned(),
                    committed: self.action.completed,
                };
                staged_records.push(part.stage());
            }
            let batch = self.batch(&database, rows, expected, staged_records).await?;
            batches.push(ShardBatch { database, batch, births });
        }
        Ok(PlannedBatches { batches, claim })
    }

    /// Adds the rows of the calls to the group that commits first. If the plan writes no rows, that is
    /// the first one on which it checks rows, and it becomes the first of all.
    async fn place_calls<'r, E>(
        &self,
        calls: &'r [EnqueueStep],
        groups: &mut [ShardRows],
    ) -> Result<PlacedCalls<'r>, ExecuteError<E>> {
        let writing = groups.iter().position(|group| !group.rows.is_empty());
        let first = writing.unwrap_or_else(|| {
            let of_plan = groups.iter().position(|group| !group.is_mark_only).unwrap_or_default();
            if let Some(groups) = groups.get_mut(..=of_plan) {
                groups.rotate_right(1);
            }
            0
        });
        // Not reached: a plan without rows has a group, too.
        let Some(first) = groups.get_mut(first) else { return Ok(PlacedCalls::default()) };
        let placer = CallPlacer::new(&first.database, self.clock, self.ids, self.action.completed);
        let mut placed = placer.place(calls).await?;
        if let Some(Mark { row: MarkedRow::Written(mark), .. }) = self.mark {
            // A call that cancels itself: its mark deletes it.
            placed.rows.retain(|row| (row.table.key(), row.id) != (mark.table.key(), mark.id));
        }
        first.rows.append(&mut placed.rows);
        first.expected.append(&mut placed.expected);
        Ok(placed)
    }

    /// What the first batch records of the key: the row of the key if the batch is that of its
    /// home, otherwise the decision on a claim.
    fn place_key(
        &self,
        key: KeyPlan<'_>,
        groups: &[ShardRows],
    ) -> (Option<Staged>, Option<ClaimPlan>) {
        let order: Vec<_> = groups.iter().map(|group| group.database.shard).collect();
        // Not reached: a plan without rows has a group, too.
        let Some(ShardRows { database: first, .. }) = groups.first() else { return (None, None) };
        if first.shard == key.home.shard {
            let others: &[_] = if order.len() > 1 { &order } else { &[] };
            return (Some(key.record.stage(others, None)), None);
        }
        let id = self.ids.next_uuid();
        let decision = decision(id, true, self.action.completed);
        let row = key.record.stage(&order, Some(id));
        (Some(decision), Some(ClaimPlan { id, row, first: first.clone() }))
    }

    /// Groups the rows by shard. A plan without rows goes to the shard of the mark that it writes, or
    /// to `of_no_rows`.
    fn group<E>(
        &self,
        rows: Vec<Staged>,
        expected: Vec<StagedExpectation>,
        of_no_rows: &Arc<Database>,
    ) -> Result<BTreeMap<ShardIdentifier, ShardRows>, ExecuteError<E>> {
        let empty = |database: &Arc<Database>| ShardRows {
            database: database.clone(),
            rows: Vec::new(),
            positions: Vec::new(),
            expected: Vec::new(),
            is_mark_only: false,
        };
        let mut groups = BTreeMap::new();
        let goes_to_mark = self.mark.is_some_and(|mark| !mark.is_check());
        if rows.is_empty() && expected.is_empty() && !goes_to_mark {
            groups.insert(of_no_rows.shard, empty(of_no_rows));
        }
        for (position, row) in rows.into_iter().enumerate() {
            let database = self.shards.of_row(row.table, row.carries_shard, row.id, &row.values)?;
            let of_shard = groups.entry(database.shard).or_insert_with(|| empty(database));
            of_shard.rows.push(row);
            of_shard.positions.push(position);
        }
        for row in expected {
            let database = self.shards.of_row(row.table, row.carries_shard, row.id, &row.values)?;
            let of_shard = groups.entry(database.shard).or_insert_with(|| empty(database));
            of_shard.expected.push(row);
        }
        if let Some(Mark { database, row, .. }) = self.mark {
            let alone = || ShardRows { is_mark_only: true, ..empty(database) };
            let of_shard = groups.entry(database.shard).or_insert_with(alone);
            match row {
                MarkedRow::Written(row) => {
                    of_shard.is_mark_only = false;
                    of_shard.rows.push(row.clone());
                }
                MarkedRow::Checked(row) => of_shard.expected.push(row.clone()),
            }
        }
        Ok(groups)
    }

    async fn batch<E>(
        &self,
        database: &Database,
        rows: Vec<Staged>,
        expected: Vec<StagedExpectation>,
        records: Vec<Staged>,
    ) -> Result<CommitBatch, ExecuteError<E>> {
        let mut batch = CommitBatch {
            action: self.action.action,
            changes: Vec::with_capacity(rows.len()),
            expected: Vec::with_capacity(expected.len()),
            records: Vec::with_capacity(records.len()),
            fences: self.fencing.map(Fencing::checks).unwrap_or_default(),
            traceable: true,
            turns: Vec::new(),
        };
        for row in rows {
            let table = database.table(row.table).await.map_err(StageError::Table)?;
            batch.changes.push(resolve(row, table)?);
        }
        for row in expected {
            let table = database.table(row.table).await.map_err(StageError::Table)?;
            batch.expected.push(row.resolve(table));
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
