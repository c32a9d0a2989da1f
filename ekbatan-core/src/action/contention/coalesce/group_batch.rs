//! The rows and records that the members of a group commit together.
//!
//! Invariants: each member's rows follow the versions that the members before it leave. The
//! records are those of the members, in the order of the members.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::action::shard_batches::ShardBatch;
use crate::db::{ActionId, ChangeKind, CommitBatch, Database, ExpectedRow, RowChange, may_merge};
use crate::domain::Value;
use crate::repository::RowKey;
use crate::shard::Fencing;

/// What a member commits: its turn.
struct Turn {
    /// The member's position in the group.
    member: usize,
    batch: CommitBatch,
}

/// The batches of a group's members.
#[derive(Default)]
pub(super) struct GroupBatch {
    database: Option<Arc<Database>>,
    turns: Vec<Turn>,
    /// The version of each row after the members so far that changed or expected it.
    versions: HashMap<RowKey, i64>,
    bytes: usize,
}

/// How the turns of a group are written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Writing {
    /// For each row the last image, whose version has advanced by the number of its changes.
    Merged,
    /// One turn after another.
    InTurn,
}

impl GroupBatch {
    /// The approximate size of the batch when it is sent.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of members that write.
    pub(super) fn turns(&self) -> usize {
        self.turns.len()
    }

    /// The position of the member whose turn this is.
    pub(super) fn member(&self, turn: usize) -> usize {
        self.turns[turn].member
    }

    /// The database of the group; `None` if no member writes.
    pub(super) fn database(&self) -> Option<&Arc<Database>> {
        self.database.as_ref()
    }

    /// The action under whose id the commit is looked up: that of the first turn.
    pub(super) fn traced(&self) -> Option<ActionId> {
        self.turns.first().map(|turn| turn.batch.action)
    }

    /// Whether a call may join: it is on the same shard, its rows follow the versions of the
    /// group's rows, and later members can know what it leaves.
    pub(super) fn can_join(&self, part: &ShardBatch) -> bool {
        let here = self.database.as_ref();
        if here.is_some_and(|database| database.shard != part.database.shard) {
            return false;
        }
        let has_expected = |row: &ExpectedRow| {
            self.versions.get(&expected_key(row)).is_none_or(|it| *it == row.version)
        };
        let changes_follow = part.batch.changes.iter().all(|row| {
            // A trigger may change what later members read.
            !row.table.rules.reacts
                && match self.versions.get(&key(row)) {
                    None => true,
                    // A call that did not read the pending row, or inserts a row that exists,
                    // must be refused by the database, and by itself.
                    Some(version) => {
                        row.kind == ChangeKind::Update && row.expected_version() == *version
                    }
                }
        });
        changes_follow && part.batch.expected.iter().all(has_expected)
    }

    /// Adds the batch of the member at this position.
    pub(super) fn join(&mut self, member: usize, ShardBatch { database, batch }: ShardBatch) {
        self.bytes += size(&batch);
        self.database.get_or_insert(database);
        self.versions.extend(batch.expected.iter().map(|row| (expected_key(row), row.version)));
        self.versions.extend(batch.changes.iter().map(|row| (key(row), row.next_version())));
        self.turns.push(Turn { member, batch });
    }

    /// How the first `count` turns must be written, so that the rules of the database hold as if
    /// the members committed one after another.
    pub(super) fn writing(&self, count: usize) -> Writing {
        if count == 1 || may_merge(self.turns[..count].iter().map(|turn| &turn.batch)) {
            Writing::Merged
        } else {
            Writing::InTurn
        }
    }

    /// The batch that commits the first `count` turns, at least one. It has the id of the first:
    /// the commit is looked up under that id.
    pub(super) fn commit(
        &self,
        count: usize,
        writing: Writing,
        fencing: Option<&Fencing>,
    ) -> CommitBatch {
        let batches = || self.turns[..count].iter().map(|turn| &turn.batch);
        let mut records: Vec<RowChange> =
            batches().flat_map(|batch| &batch.records).cloned().collect();
        // A stable sort: each table is written by one statement, in the order of the members.
        records.sort_by_key(|record| record.table.table.key());
        CommitBatch {
            action: self.turns[0].batch.action,
            changes: merged(batches().flat_map(|batch| &batch.changes)),
            expected: unchanged(batches()),
            records,
            fences: fencing.map(Fencing::checks).unwrap_or_default(),
            traceable: true,
            turns: match writing {
                Writing::Merged => Vec::new(),
                Writing::InTurn => batches().map(CommitBatch::turn).collect(),
            },
        }
    }
}

/// One change for each row: what all changes of it leave.
fn merged<'b>(changes: impl Iterator<Item = &'b RowChange>) -> Vec<RowChange> {
    let mut rows: Vec<(&RowChange, &RowChange)> = Vec::new();
    let mut positions: HashMap<RowKey, usize> = HashMap::new();
    for row in changes {
        match positions.get(&key(row)) {
            Some(at) => rows[*at].1 = row,
            None => {
                positions.insert(key(row), rows.len());
                rows.push((row, row));
            }
        }
    }
    rows.into_iter().map(|(first, last)| merge(first, last)).collect()
}

/// The expected rows that no member before had changed. What is expected of a changed row follows
/// from the change: the group commits only if the row has the version before it.
fn unchanged<'b>(batches: impl Iterator<Item = &'b CommitBatch>) -> Vec<ExpectedRow> {
    let mut known: HashSet<RowKey> = HashSet::new();
    let mut unchanged = Vec::new();
    for batch in batches {
        let new = batch.expected.iter().filter(|row| known.insert(expected_key(row)));
        unchanged.extend(new.cloned());
        known.extend(batch.changes.iter().map(key));
    }
    unchanged
}

/// The change of a row from what `first` expects to what `last` leaves.
fn merge(first: &RowChange, last: &RowChange) -> RowChange {
    let mut row = first.clone();
    if std::ptr::eq(first, last) {
        return row;
    }
    let (expected, next) = (first.expected_version(), last.next_version());
    row.values = last.values.clone();
    row.steps = next - expected;
    if let Some(version) = row.table.table.version {
        let stored = match first.kind {
            ChangeKind::Insert => next,
            ChangeKind::Update => expected,
        };
        Arc::make_mut(&mut row.values)[version] = Value::Int(stored);
    }
    row
}

fn key(row: &RowChange) -> RowKey {
    (row.table.table.key(), row.id)
}

fn expected_key(row: &ExpectedRow) -> RowKey {
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
    rows.flat_map(|row| &*row.values).map(of_value).sum()
}
