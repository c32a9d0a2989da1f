//! The errors of reads and of writes outside of actions.

use uuid::Uuid;

use crate::db::{CommitError, DbError, RowRef, SchemaError, TableError};
use crate::domain::{FieldError, ShardIdentifier, list_shards};
use crate::shard::{FencingError, ShardError};

/// An error of a read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no such row, or it is deleted.
    #[error("there is no {model} {id}")]
    #[non_exhaustive]
    NotFound {
        /// The model.
        model: &'static str,
        /// The requested id.
        id: Uuid,
    },
    /// One row was requested, and the condition matches several.
    #[error("the condition matches more than one {model}; narrow it, or use `find_where`")]
    #[non_exhaustive]
    NotUnique {
        /// The model.
        model: &'static str,
    },
    /// A row could not be converted to the type of the code.
    #[error("{model} {id}: {source}")]
    #[non_exhaustive]
    Row {
        /// The model.
        model: &'static str,
        /// The id of the row, if it has one.
        id: String,
        /// The column and the cause.
        source: FieldError,
    },
    /// The condition cannot be rendered.
    #[error("invalid condition on {model}: {source}")]
    #[non_exhaustive]
    Condition {
        /// The model.
        model: &'static str,
        /// The cause.
        source: FieldError,
    },
    /// The row belongs to another shard than the transaction.
    #[error(
        "{model} {id} belongs to shard {row}, and the transaction is open on shard {transaction}; read it outside of the transaction, or open the transaction on the row's shard: `databases.shard(..)?.transactions()`"
    )]
    #[non_exhaustive]
    OtherShard {
        /// The model.
        model: &'static str,
        /// The row.
        id: Uuid,
        /// The shard of the row.
        row: ShardIdentifier,
        /// The shard of the transaction.
        transaction: ShardIdentifier,
    },
    /// The shard of the row could not be determined.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// Some shards failed.
    #[error("{}", describe(failed, answered))]
    #[non_exhaustive]
    Shards {
        /// The shards that failed.
        failed: Vec<ShardFailure>,
        /// The shards that succeeded.
        answered: Vec<ShardIdentifier>,
    },
    /// The lease under which the action reads is over: its time has passed, or a later lease
    /// has read the same shard. Whatever the action makes of it, it is answered
    /// [`ExecuteError::FenceLost`](crate::action::ExecuteError::FenceLost).
    #[error(
        "the lease of `{key}` has ended, so the action must not read any more; acquire the lock again"
    )]
    #[non_exhaustive]
    FenceLost {
        /// The lock's key.
        key: String,
    },
    /// The table does not match the code.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DbError),
}

/// A shard that failed, with its error.
#[derive(Debug)]
#[non_exhaustive]
pub struct ShardFailure {
    /// The shard.
    pub shard: ShardIdentifier,
    /// The cause.
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
    /// Whether the same read might succeed on another database.
    pub(super) fn is_of_one_database(&self) -> bool {
        matches!(self, ReadError::Database(_) | ReadError::Schema(_) | ReadError::Row { .. })
    }

    /// The error of the database, if there is one. For several shards, the first one.
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

/// An error of a write outside of actions. Nothing was written, except that `Unknown` may have been.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The version of some rows is not the one that was read, or the rows are gone.
    #[error("rows have changed since they were read, and nothing was written: {}; read them again", .0.iter().map(RowRef::to_string).collect::<Vec<_>>().join(", "))]
    Stale(Vec<RowRef>),
    /// The write was made inside `perform` of an action, where it would commit even if the action does
    /// not. A task that `perform` spawns is not recognized.
    #[error(
        "a repository wrote {model} inside `perform` of `{within}`, which would commit even if `{within}` does not; nothing was written. Stage the change in the plan, or write it in an effect (`ctx.plan().after_commit(..)`)"
    )]
    #[non_exhaustive]
    InsidePerform {
        /// The model.
        model: &'static str,
        /// The action.
        within: &'static str,
    },
    /// The rows have events, which only an action stores.
    #[error(
        "{model} {id} carries {count} event(s), which a repository does not store; stage it on an action's plan, or make it without events"
    )]
    #[non_exhaustive]
    CarriesEvents {
        /// The model.
        model: &'static str,
        /// The row.
        id: Uuid,
        /// The number of events.
        count: usize,
    },
    /// A change moved the row's id.
    #[error(
        "a change of {model} {id} changed its id; add a new one and delete the old one instead"
    )]
    #[non_exhaustive]
    IdChanged {
        /// The model.
        model: &'static str,
        /// The id that was read.
        id: Uuid,
    },
    /// One call writes a row twice.
    #[error("{model} {id} is written twice by one call; combine the changes")]
    #[non_exhaustive]
    Twice {
        /// The model.
        model: &'static str,
        /// The row.
        id: Uuid,
    },
    /// A field cannot be stored.
    #[error("{model} {id}: {source}")]
    #[non_exhaustive]
    Field {
        /// The model.
        model: &'static str,
        /// The row.
        id: Uuid,
        /// The column and the cause.
        source: FieldError,
    },
    /// The rows belong to several shards, which do not commit together.
    #[error(
        "the rows belong to shards {first} and {second}, which do not commit together; write the rows of each shard separately, or stage them on an action with `.allow_cross_shard()`"
    )]
    #[non_exhaustive]
    CrossShard {
        /// One shard.
        first: ShardIdentifier,
        /// Another shard.
        second: ShardIdentifier,
    },
    /// The row belongs to another shard than the transaction.
    #[error(
        "{model} {id} belongs to shard {row}, and the transaction is open on shard {transaction}; open it there: `databases.shard(..)?.transactions()`"
    )]
    #[non_exhaustive]
    OtherShard {
        /// The model.
        model: &'static str,
        /// The row.
        id: Uuid,
        /// The shard of the row.
        row: ShardIdentifier,
        /// The shard of the transaction.
        transaction: ShardIdentifier,
    },
    /// The shard of the row could not be determined.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The table does not match the code.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The database rejected the write. The error has its kind and the constraint.
    #[error(transparent)]
    Database(DbError),
    /// The connection was lost during the write.
    #[error("it is unknown whether the write was committed: {0}")]
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
            // Not reached: a write outside of an action has no fences.
            CommitError::FenceLost(key) => {
                WriteError::Unknown(format!("the fence of `{key}` was lost"))
            }
        }
    }
}
