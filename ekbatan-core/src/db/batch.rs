//! The unit of writing: what one action changes on one shard, committed whole or not at all.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::fence::FenceCheck;
use super::{CommitToken, DbError, TableInfo};
use crate::domain::{TableKey, Value};

/// Identifies one execution of an action. It is stored with the events, so that whether the
/// execution committed can be looked up later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ActionId(pub Uuid);

impl fmt::Display for ActionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a row changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ChangeKind {
    /// The row is new.
    Insert,
    /// The row exists at the version that the change names.
    Update,
    /// The row exists at the version that the change names, and is removed. Only the framework
    /// deletes rows, from its own tables: no other row refers to them, and no trigger runs when
    /// they are deleted.
    Delete,
}

impl ChangeKind {
    /// The columns of `table` whose values a change sends: an update leaves the creation date
    /// alone, and a delete needs the key and the version only.
    pub(crate) fn written(self, table: &TableInfo) -> impl Iterator<Item = usize> {
        let (version, dates) = (table.table.version, table.table.dates);
        (0..table.columns.len()).filter(move |position| match self {
            ChangeKind::Insert => true,
            ChangeKind::Update => Some(*position) != dates,
            ChangeKind::Delete => *position == 0 || Some(*position) == version,
        })
    }

    /// Whether the row must be at a version: all but new rows must.
    pub(crate) fn is_guarded(self) -> bool {
        self != ChangeKind::Insert
    }
}

/// One row to write, with a value for every column in the table's order.
///
/// In an update the value of the version column is the *expected* version; the database adds
/// `steps` to it. In a delete it is the expected version, too.
#[derive(Debug, Clone)]
pub(crate) struct RowChange {
    pub(crate) table: Arc<TableInfo>,
    pub(crate) kind: ChangeKind,
    pub(crate) id: Uuid,
    /// Shared, because a group keeps the rows of its members until it is committed.
    pub(crate) values: Arc<Vec<Value>>,
    /// How many changes an update stands for; each adds one to the version.
    pub(crate) steps: i64,
}

impl RowChange {
    /// The version that the row must have; zero for a table without versions.
    pub(crate) fn expected_version(&self) -> i64 {
        match self.table.table.version.map(|position| &self.values[position]) {
            Some(Value::Int(version)) => *version,
            _ => 0,
        }
    }

    /// The version that the row has after the commit; `None` if the row is deleted.
    pub(crate) fn next_version(&self) -> Option<i64> {
        match self.kind {
            ChangeKind::Insert => Some(self.expected_version()),
            ChangeKind::Update => Some(self.expected_version() + self.steps),
            ChangeKind::Delete => None,
        }
    }

    pub(crate) fn row_ref(&self) -> RowRef {
        RowRef {
            model: self.table.table.model,
            id: self.id,
            expected_version: self.expected_version(),
        }
    }
}

/// A row that an action read and does not change. It must still be at its version.
#[derive(Debug, Clone)]
pub(crate) struct ExpectedRow {
    pub(crate) table: Arc<TableInfo>,
    pub(crate) id: Uuid,
    pub(crate) version: i64,
    /// Whether the commit keeps others from changing the row until it ends.
    pub(crate) is_locked: bool,
}

impl ExpectedRow {
    pub(crate) fn row_ref(&self) -> RowRef {
        RowRef { model: self.table.table.model, id: self.id, expected_version: self.version }
    }
}

/// Names a row in an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowRef {
    /// The model's name.
    pub model: &'static str,
    /// The row's id.
    pub id: Uuid,
    /// The version that the row was expected to have.
    pub expected_version: i64,
}

impl fmt::Display for RowRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at version {}", self.model, self.id, self.expected_version)
    }
}

/// Everything that one action writes on one shard.
#[derive(Debug, Clone)]
pub(crate) struct CommitBatch {
    pub(crate) action: ActionId,
    /// The rows, ordered by table and key, so that no two batches lock rows in opposite order.
    pub(crate) changes: Vec<RowChange>,
    /// The rows that must be unchanged, in the same order.
    pub(crate) expected: Vec<ExpectedRow>,
    /// Rows that are only ever inserted, such as those of the outbox and of idempotency keys.
    pub(crate) records: Vec<RowChange>,
    /// One check per lease under which the action runs. All must hold.
    pub(crate) fences: Vec<FenceCheck>,
    /// Whether `records` has a row by which the action can be looked up.
    pub(crate) traceable: bool,
    /// The changes of a group's members, which are to be written one after another in place of
    /// `changes`: those are what all of them leave. Empty for a batch that is written at once.
    pub(crate) turns: Vec<CommitBatch>,
}

impl CommitBatch {
    /// Rows that are written outside of an action.
    pub(crate) fn of_rows(changes: Vec<RowChange>, expected: Vec<ExpectedRow>) -> Self {
        Self {
            action: ActionId(Uuid::now_v7()),
            changes,
            expected,
            records: Vec::new(),
            fences: Vec::new(),
            traceable: false,
            turns: Vec::new(),
        }
    }

    /// Puts the rows into the order in which every batch locks them.
    pub(crate) fn sort(&mut self) {
        self.changes.sort_by(|a, b| {
            (a.table.table.schema, a.table.table.name, a.kind, a.id).cmp(&(
                b.table.table.schema,
                b.table.table.name,
                b.kind,
                b.id,
            ))
        });
        self.expected.sort_by_key(|row| (row.table.table.key(), row.id));
    }

    /// The changes of rows that must be at a version: the updates and the deletes.
    pub(crate) fn guarded_changes(&self) -> impl Iterator<Item = &RowChange> {
        self.changes.iter().filter(|change| change.kind.is_guarded())
    }

    /// The rows that must be at a version: those that are updated or deleted, and those that are
    /// expected.
    pub(crate) fn guarded(&self) -> impl Iterator<Item = (TableKey, RowRef)> {
        let changed = self.guarded_changes().map(|row| (row.table.table.key(), row.row_ref()));
        let expected = self.expected.iter().map(|row| (row.table.table.key(), row.row_ref()));
        changed.chain(expected)
    }

    /// Whether the batch writes anything. One that does not only checks rows and fences.
    pub(crate) fn writes(&self) -> bool {
        !self.changes.is_empty() || !self.records.is_empty()
    }

    pub(crate) fn rows(&self) -> usize {
        self.changes.len() + self.expected.len() + self.records.len()
    }

    /// Its changes alone, as one of the turns of a group.
    pub(crate) fn turn(&self) -> Self {
        self.part(self.changes.clone(), Vec::new())
    }

    /// Its records alone.
    #[cfg(any(feature = "mysql", feature = "sqlite"))]
    pub(crate) fn records_alone(&self) -> Self {
        self.part(Vec::new(), self.records.clone())
    }

    /// Its expectations alone.
    #[cfg(feature = "sqlite")]
    pub(crate) fn expected_alone(&self) -> Self {
        Self { expected: self.expected.clone(), ..self.part(Vec::new(), Vec::new()) }
    }

    fn part(&self, changes: Vec<RowChange>, records: Vec<RowChange>) -> Self {
        let Self { action, traceable, .. } = *self;
        let (expected, fences, turns) = (Vec::new(), Vec::new(), Vec::new());
        Self { action, changes, expected, records, fences, traceable, turns }
    }
}

/// A successful commit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// The execution.
    pub action: ActionId,
    /// How many round trips to the server the commit took.
    pub round_trips: u32,
    /// How many batches were committed together, this one included.
    pub folded: usize,
    /// How long the batch waited for its lane.
    pub lane_wait: Duration,
    /// The position that a replica must have reached to show this commit. Set only if
    /// [`Execution::with_commit`](crate::action::Execution::with_commit) asks for it and the shard
    /// has a replica, because it takes a round trip of its own, for which the deadline must leave
    /// the time.
    pub token: Option<CommitToken>,
}

/// Error returned when a batch does not commit. Except for [`CommitError::Unknown`], nothing was
/// written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// Rows were no longer at the version from which the plan was made, or were deleted.
    #[error("rows have changed since they were read, and nothing was written: {}; read them again", .0.iter().map(RowRef::to_string).collect::<Vec<_>>().join(", "))]
    Stale(Vec<RowRef>),
    /// The lease under which the action ran is over.
    #[error("the lease on `{0}` ended before the commit")]
    FenceLost(String),
    /// The database rejected the batch.
    #[error(transparent)]
    Refused(DbError),
    /// The outcome is unknown: the connection broke and the database could not be asked in time.
    #[error("whether action {0} committed is unknown: {1}")]
    Unknown(ActionId, String),
}

impl From<DbError> for CommitError {
    fn from(error: DbError) -> Self {
        CommitError::Refused(error)
    }
}
