//! The rows and records that the members of a group commit together.
//!
//! Invariants: the rows are those that the members would have left one after another, each
//! one version above the one before it. The records are those of the members, in the order of
//! the members.

use std::collections::HashMap;
use std::sync::Arc;

use crate::action::shard_batches::ShardBatch;
use crate::db::{ActionId, ChangeKind, CommitBatch, Database, ExpectedRow, RowChange};
use crate::domain::Value;
use crate::repository::RowKey;
use crate::shard::Fencing;

/// The merged batch of a group.
#[derive(Default)]
pub(super) struct GroupBatch {
    database: Option<Arc<Database>>,
    /// The first member with a batch. The commit is looked up under its id.
    traced: Option<ActionId>,
    rows: Vec<RowChange>,
    positions: HashMap<RowKey, usize>,
    /// Rows that must be unchanged and that no member before had changed.
    expected: Vec<ExpectedRow>,
    records: Vec<RowChange>,
    bytes: usize,
}

impl GroupBatch {
    /// The approximate size of the batch when it is sent.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a call's batch can be merged: it is on the same shard, and its rows follow the
    /// versions of the group's rows.
    pub(super) fn can_merge(&self, part: &ShardBatch) -> bool {
        let here = self.database.as_ref();
        if here.is_some_and(|database| database.shard != part.database.shard) {
            return false;
        }
        let has_expected =
            |row: &ExpectedRow| self.version_of(row).is_none_or(|it| it == row.version);
        let changes_follow =
            part.batch.changes.iter().all(|row| match self.positions.get(&key(row)) {
                None => true,
                // A call that did not read the pending row, or inserts a row that exists, must be
                // refused by the database, and by itself.
                Some(at) => {
                    row.kind == ChangeKind::Update
                        && row.expected_version() == self.rows[*at].next_version()
                }
            });
        changes_follow && part.batch.expected.iter().all(has_expected)
    }

    /// The version at which the group expects a row that it does not change.
    fn expected_version(&self, key: &RowKey) -> Option<i64> {
        let expected = self.expected.iter();
        expected.filter(|row| (row.table.table.key(), row.id) == *key).map(|row| row.version).next()
    }

    /// The version that the group gives to a row, or at which it expects the row.
    fn version_of(&self, row: &ExpectedRow) -> Option<i64> {
        let key = (row.table.table.key(), row.id);
        let changed = self.positions.get(&key).map(|at| self.rows[*at].next_version());
        changed.or_else(|| self.expected_version(&key))
    }

    /// Merges a call's batch.
    pub(super) fn merge(&mut self, action: ActionId, ShardBatch { database, batch }: ShardBatch) {
        self.bytes += size(&batch);
        self.database.get_or_insert(database);
        self.traced.get_or_insert(action);
        self.records.extend(batch.records);
        // What is expected of a row that the group changes follows from the change: the group
        // commits only if the row has the version before it. An expectation of a member before a
        // change is the same as that of the change.
        let unchanged = batch.expected.into_iter().filter(|row| self.version_of(row).is_none());
        let unchanged: Vec<ExpectedRow> = unchanged.collect();
        self.expected.extend(unchanged);
        batch.changes.into_iter().for_each(|row| self.merge_row(row));
    }

    fn merge_row(&mut self, row: RowChange) {
        let Some(at) = self.positions.get(&key(&row)).copied() else {
            self.positions.insert(key(&row), self.rows.len());
            return self.rows.push(row);
        };
        let first = &mut self.rows[at];
        let (expected, next) = (first.expected_version(), row.next_version());
        let stored = match first.kind {
            ChangeKind::Insert => next,
            ChangeKind::Update => expected,
        };
        first.values = row.values;
        first.steps = next - expected;
        if let Some(version) = first.table.table.version {
            first.values[version] = Value::Int(stored);
        }
    }

    /// The batch to commit; `None` if no member changes anything.
    pub(super) fn into_commit(
        self,
        fencing: Option<&Fencing>,
    ) -> Option<(Arc<Database>, CommitBatch)> {
        let (database, action) = (self.database?, self.traced?);
        let mut records = self.records;
        // A stable sort: each table is written by one statement, in the order of the members.
        records.sort_by_key(|record| record.table.table.key());
        let fences = fencing.map(Fencing::checks).unwrap_or_default();
        let batch = CommitBatch {
            action,
            changes: self.rows,
            expected: self.expected,
            records,
            fences,
            traceable: true,
        };
        Some((database, batch))
    }
}

fn key(row: &RowChange) -> RowKey {
    (row.table.table.key(), row.id)
}

/// The approximate number of bytes that a batch takes when it is sent.
pub(super) fn size(batch: &CommitBatch) -> usize {
    let of_value = |value: &Value| match value {
        Value::Text(text) | Value::Json(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        _ => 16,
    };
    let rows = batch.changes.iter().chain(&batch.records);
    rows.flat_map(|row| &row.values).map(of_value).sum()
}
