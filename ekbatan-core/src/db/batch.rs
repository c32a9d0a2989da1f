//! The unit of writing: what one action changes, committed whole or not at all.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{CommitToken, DbError, TableInfo};
use crate::domain::Value;

/// The identity of one execution of an action: it is stored with the events, so that
/// whether the execution committed can be asked later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ActionId(pub Uuid);

impl fmt::Display for ActionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What happens to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChangeKind {
    /// The row is new.
    Insert,
    /// The row is there with the version that the change names.
    Update,
}

/// One row to write, every column's value in the table's order.
///
/// In an update the value of the version column is the *expected* version; the database
/// stores as many more as the row takes steps.
#[derive(Debug, Clone)]
pub struct RowChange {
    /// Where.
    pub table: Arc<TableInfo>,
    /// What happens to it.
    pub kind: ChangeKind,
    /// The id, by which changes are ordered and guarded.
    pub id: Uuid,
    /// The values.
    pub values: Vec<Value>,
    /// How many versions an update goes up by: one for each change that it stands for.
    pub steps: i64,
}

impl RowChange {
    /// The version that the row must have; zero for a row that has none.
    pub fn expected_version(&self) -> i64 {
        match self.table.table.version.map(|position| &self.values[position]) {
            Some(Value::Int(version)) => *version,
            _ => 0,
        }
    }

    /// The version that the row has once this is committed.
    pub(crate) fn next_version(&self) -> i64 {
        match self.kind {
            ChangeKind::Insert => self.expected_version(),
            ChangeKind::Update => self.expected_version() + self.steps,
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

/// Which row, for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRef {
    /// The model's name.
    pub model: &'static str,
    /// The row's id.
    pub id: Uuid,
    /// The version that it was expected to have.
    pub expected_version: i64,
}

impl fmt::Display for RowRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at version {}", self.model, self.id, self.expected_version)
    }
}

/// A lease's token that must still be the key's own when the batch commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceCheck {
    /// The lock's key.
    pub key: String,
    /// The token of the lease.
    pub token: i64,
}

/// Everything that one action writes on one shard.
#[derive(Debug, Clone)]
pub struct CommitBatch {
    /// The execution.
    pub action: ActionId,
    /// The rows, ordered by table and key, so that no two batches lock in opposite order.
    pub changes: Vec<RowChange>,
    /// Outbox and idempotency rows; whatever else only ever is inserted.
    pub records: Vec<RowChange>,
    /// The fences, one for each lease under which the action runs. All have to stand.
    pub fences: Vec<FenceCheck>,
    /// Whether `records` holds a row by which the action can be found again.
    pub traceable: bool,
}

impl CommitBatch {
    /// Puts the rows into the order in which every batch locks.
    pub(crate) fn sort(&mut self) {
        self.changes.sort_by(|a, b| {
            (a.table.table.schema, a.table.table.name, a.kind, a.id).cmp(&(
                b.table.table.schema,
                b.table.table.name,
                b.kind,
                b.id,
            ))
        });
    }

    pub(crate) fn updates(&self) -> impl Iterator<Item = &RowChange> {
        self.changes.iter().filter(|change| change.kind == ChangeKind::Update)
    }

    pub(crate) fn rows(&self) -> usize {
        self.changes.len() + self.records.len()
    }
}

/// What is known of a commit that went through.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// The execution.
    pub action: ActionId,
    /// How many trips to the server the commit took.
    pub round_trips: u32,
    /// How many batches went with this one.
    pub folded: usize,
    /// How long the batch waited for its lane.
    pub lane_wait: Duration,
    /// What a replica has to have seen to have seen this commit. Asked for only by
    /// [`Execution::with_commit`](crate::action::Execution::with_commit), and only of a shard
    /// that has a replica: it is a trip of its own.
    pub token: Option<CommitToken>,
}

/// Why a batch did not commit. Except for [`CommitError::Unknown`], nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// Rows were no longer at the version that the plan was made from, or were gone.
    #[error("stale: {}", list(.0))]
    Stale(Vec<RowRef>),
    /// The lease under which the action ran is over.
    #[error("the lease on `{0}` ended before the commit")]
    FenceLost(String),
    /// The database refused.
    #[error(transparent)]
    Refused(DbError),
    /// Nothing is known: the connection broke and the database could not be asked in time.
    #[error("whether action {0} committed is unknown: {1}")]
    Unknown(ActionId, String),
}

fn list(rows: &[RowRef]) -> String {
    rows.iter().map(RowRef::to_string).collect::<Vec<_>>().join(", ")
}
