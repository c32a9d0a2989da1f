//! What reading and direct writing can answer instead.

use uuid::Uuid;

use crate::db::{CommitError, DbError, RowRef, SchemaError, TableError};
use crate::domain::{FieldError, ShardIdentifier, list_shards};
use crate::shard::{FencingError, ShardError};

/// A read that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No such row, or it is deleted.
    #[error("there is no {model} {id}")]
    NotFound {
        /// The model.
        model: &'static str,
        /// The id that was asked for.
        id: Uuid,
    },
    /// One row was asked for and the condition fits several.
    #[error("the condition fits more than one {model}")]
    NotUnique {
        /// The model.
        model: &'static str,
    },
    /// A row does not fit the code.
    #[error("{model} {id}: {source}")]
    Row {
        /// The model.
        model: &'static str,
        /// The row's id, or what stands in its place.
        id: String,
        /// Which column, and why.
        source: FieldError,
    },
    /// The condition cannot be asked.
    #[error("a condition on {model} cannot be asked: {source}")]
    Condition {
        /// The model.
        model: &'static str,
        /// Why.
        source: FieldError,
    },
    /// The row belongs to another shard than the transaction, which cannot know of it.
    #[error(
        "{model} {id} belongs to shard {row}, and the transaction is open on shard {transaction}; read it without the transaction, or open that one there: `databases.shard(..)?.transactions()`"
    )]
    OtherShard {
        /// The model.
        model: &'static str,
        /// The row.
        id: Uuid,
        /// Where it belongs.
        row: ShardIdentifier,
        /// Where the transaction is.
        transaction: ShardIdentifier,
    },
    /// The row's shard is not to be found.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// Some shards did not answer.
    #[error("{}", describe(failed, answered))]
    Shards {
        /// Which did not, and why.
        failed: Vec<ShardFailure>,
        /// Which did.
        answered: Vec<ShardIdentifier>,
    },
    /// The lease under which the action reads is over: its time has passed, or a later lease
    /// has read the same shard. Whatever the action makes of it, it is answered
    /// [`ExecuteError::FenceLost`](crate::action::ExecuteError::FenceLost).
    #[error("the lease of `{key}` is over, and nothing more is read under it; take the lock again")]
    FenceLost {
        /// The lock's key.
        key: String,
    },
    /// The table is not what the code believes.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DbError),
}

/// A shard that did not answer, and why.
#[derive(Debug)]
pub struct ShardFailure {
    /// Which.
    pub shard: ShardIdentifier,
    /// Why.
    pub error: ReadError,
}

fn describe(failed: &[ShardFailure], answered: &[ShardIdentifier]) -> String {
    let failed: Vec<String> = failed
        .iter()
        .map(|failure| format!("shard {}: {}", failure.shard, failure.error))
        .collect();
    let answered = if answered.is_empty() { "no shard".to_owned() } else { list_shards(answered) };
    format!("{}; {answered} answered", failed.join("; "))
}

impl From<FencingError> for ReadError {
    fn from(error: FencingError) -> Self {
        match error {
            FencingError::Lost(key) => ReadError::FenceLost { key },
            FencingError::Database(error) => ReadError::Database(error),
        }
    }
}

impl ReadError {
    /// Whether another database might have answered the same question.
    pub(super) fn is_of_one_database(&self) -> bool {
        matches!(self, ReadError::Database(_) | ReadError::Schema(_) | ReadError::Row { .. })
    }

    /// What the database said, where one said something; of several shards, the first.
    pub fn database_error(&self) -> Option<&DbError> {
        match self {
            ReadError::Database(error) => Some(error),
            ReadError::Shards { failed, .. } => {
                failed.iter().find_map(|failure| failure.error.database_error())
            }
            _ => None,
        }
    }
}

/// A direct write that failed. Nothing of it was written, unless it says "unknown".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Rows were no longer at the version that was read, or were gone.
    #[error("stale: {}", .0.iter().map(RowRef::to_string).collect::<Vec<_>>().join(", "))]
    Stale(Vec<RowRef>),
    /// The rows carry events, which only an action stores.
    #[error(
        "{model} {id} carries {count} event(s), which a repository does not store; stage it on an action's plan, or make it without events"
    )]
    CarriesEvents {
        /// The model.
        model: &'static str,
        /// The row.
        id: Uuid,
        /// How many.
        count: usize,
    },
    /// A change moved the row's id.
    #[error(
        "a change of {model} {id} changed its id; add a new one and delete the old one instead"
    )]
    IdChanged {
        /// The model.
        model: &'static str,
        /// The id under which it was read.
        id: Uuid,
    },
    /// One row is written twice.
    #[error("{model} {id} is written twice at once")]
    Twice {
        /// The model.
        model: &'static str,
        /// The row.
        id: Uuid,
    },
    /// A field cannot be stored.
    #[error("{model} {id}: {source}")]
    Field {
        /// The model.
        model: &'static str,
        /// The row.
        id: Uuid,
        /// Which column, and why.
        source: FieldError,
    },
    /// The rows belong to several shards, which do not commit together.
    #[error(
        "the rows belong to shards {first} and {second}, which do not commit together; write those of each shard by themselves, or stage them on an action with `.allow_cross_shard()`"
    )]
    CrossShard {
        /// The one.
        first: ShardIdentifier,
        /// The other.
        second: ShardIdentifier,
    },
    /// The row belongs to another shard than the transaction.
    #[error(
        "{model} {id} belongs to shard {row}, and the transaction is open on shard {transaction}; open it there: `databases.shard(..)?.transactions()`"
    )]
    OtherShard {
        /// The model.
        model: &'static str,
        /// The row.
        id: Uuid,
        /// Where it belongs.
        row: ShardIdentifier,
        /// Where the transaction is.
        transaction: ShardIdentifier,
    },
    /// The row's shard is not to be found.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The table is not what the code believes.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The database refused; its kind says why, its constraint which.
    #[error(transparent)]
    Database(DbError),
    /// The connection broke while the write was on its way.
    #[error("whether the write went through is unknown: {0}")]
    Unknown(String),
}

impl From<TableError> for ReadError {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Schema(error) => ReadError::Schema(error),
            TableError::Database(error) => ReadError::Database(error),
        }
    }
}

impl From<TableError> for WriteError {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Schema(error) => WriteError::Schema(error),
            TableError::Database(error) => WriteError::Database(error),
        }
    }
}

impl From<CommitError> for WriteError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Stale(rows) => WriteError::Stale(rows),
            CommitError::Refused(error) => WriteError::Database(error),
            CommitError::Unknown(_, why) => WriteError::Unknown(why),
            CommitError::FenceLost(key) => {
                WriteError::Unknown(format!("the fence of `{key}` was lost"))
            }
        }
    }
}
