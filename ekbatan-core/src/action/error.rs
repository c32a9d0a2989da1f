//! How an execution can fail.

use std::time::Duration;

use uuid::Uuid;

use super::LeaseError;
use crate::db::{
    ActionId, CommitError, DbError, DbErrorKind, RowRef, SchemaError, StageError, TableError,
};
use crate::domain::{FieldError, PayloadError, ShardIdentifier, list_shards};
use crate::shard::{PartialCommit, ShardError};

/// An executor that cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The namespace is no dotted identifier.
    #[error(
        "the namespace `{0}` is no dotted identifier; write, for example, com.example.wallet (letters, digits and _, no part beginning with a digit)"
    )]
    Namespace(String),
    /// Two models store events under one name.
    #[error(
        "`{first}` and `{second}` both store events named `{name}`; give one of them another #[event(name = \"..\")]"
    )]
    EventName {
        /// The name.
        name: &'static str,
        /// The one model.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// The strategy takes leases, and nobody gives them.
    #[error("the executor's contention strategy takes leases; say where by `.leases(..)`")]
    NoLeases,
    /// Tables are not as the code believes; each is listed.
    #[error("the database does not fit the code:{}", .0.iter().map(|e| format!("\n  {e}")).collect::<String>())]
    Schema(Vec<SchemaError>),
    /// The database could not be asked.
    #[error(transparent)]
    Database(#[from] DbError),
}

/// A plan that cannot be committed, because of a mistake in the action.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// One row was staged twice.
    #[error(
        "{model} {id} was staged twice; change the value that the first staging was made of, and stage it once"
    )]
    StagedTwice {
        /// The model.
        model: &'static str,
        /// The row.
        id: Uuid,
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
    /// Parameters or an event do not serialize to a JSON object.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The output does not serialize, which an idempotency key needs.
    #[error("the output does not serialize, which an idempotency key needs: {0}")]
    Output(serde_json::Error),
    /// The idempotency key is empty or too long.
    #[error("the idempotency key `{0}` has {1} bytes; it takes 1 to 255")]
    Key(String, usize),
    /// A table is not what the code believes.
    #[error(transparent)]
    Schema(#[from] SchemaError),
}

/// A strategy that the call or the action chose and that it cannot run by.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContentionError {
    /// Nothing says what is contended for.
    #[error(
        "`{action}` was to run by a strategy that needs a key, and has none; implement `Action::contention_key`, or name it by `.contention_key(..)`"
    )]
    NoKey {
        /// The action.
        action: &'static str,
    },
    /// Nobody gives leases.
    #[error(
        "`{action}` was to run under a lease, and the executor has none to give; build it with `.leases(..)`"
    )]
    NoLeases {
        /// The action.
        action: &'static str,
    },
}

/// Why an execution answered no output. Unless it says "unknown", nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError<E> {
    /// The action refused; its own error, untouched.
    #[error(transparent)]
    Domain(E),
    /// Rows had changed since they were read, in every attempt.
    #[error("gave up after {attempts} attempt(s), as rows had changed since they were read: {}", rows.iter().map(RowRef::to_string).collect::<Vec<_>>().join(", "))]
    Stale {
        /// Which rows, in the last attempt.
        rows: Vec<RowRef>,
        /// How many attempts there were.
        attempts: u32,
    },
    /// A unique constraint already has the value; [`DbError::constraint`] says which.
    #[error("{0}")]
    Unique(#[source] DbError),
    /// A row refers to one that is not there, or is still referred to.
    #[error("{0}")]
    ForeignKey(#[source] DbError),
    /// The database ended the commit to end a deadlock, in every attempt.
    #[error("{0}")]
    Deadlock(#[source] DbError),
    /// The commit could not be put in order with others, in every attempt.
    #[error("{0}")]
    Serialization(#[source] DbError),
    /// A lock of the database was not to be had in time, or SQLite was busy with another
    /// process. Nothing was written.
    #[error("{0}")]
    Busy(#[source] DbError),
    /// The database refused for another reason; [`DbError::kind`] says which.
    #[error("{0}")]
    Refused(#[source] DbError),
    /// The database was not to be reached.
    #[error("{0}")]
    Unavailable(#[source] DbError),
    /// The lease under which the action ran is over.
    #[error("the lease on `{key}` ended before the commit; nothing was written")]
    FenceLost {
        /// The lock's key.
        key: String,
    },
    /// The deadline passed before anything was sent.
    #[error("the deadline of {after:?} passed; nothing was written")]
    Deadline {
        /// How long it was.
        after: Duration,
    },
    /// The connection broke, or the deadline passed, while the commit was on its way. Ask
    /// [`ActionExecutor::outcome`](super::ActionExecutor::outcome) later.
    #[error("whether action {action} committed is unknown: {why}; ask executor.outcome({action})")]
    CommitUnknown {
        /// The execution.
        action: ActionId,
        /// What happened.
        why: String,
    },
    /// The key was used for another call.
    #[error(
        "the idempotency key `{key}` was used for other parameters, or for another action (`{action}`); use a new key for a new call"
    )]
    KeyReused {
        /// The key.
        key: String,
        /// The action that used it.
        action: String,
    },
    /// The stored output no longer fits the type.
    #[error("the output stored under the idempotency key `{key}` does not fit the type: {source}")]
    StoredOutput {
        /// The key.
        key: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The plan touches several shards, which the call does not allow.
    #[error(
        "the plan touches the shards {}, which do not commit together; allow it by `.allow_cross_shard()`, knowing that they commit one by one",
        list_shards(shards)
    )]
    CrossShard {
        /// Which.
        shards: Vec<ShardIdentifier>,
    },
    /// Some shards have committed their part, one has not, and nothing is tried again. The
    /// action is on the list of
    /// [`Databases::partial_commits`](crate::shard::Databases::partial_commits).
    #[error(
        "action {action} committed on {} and {} on {failed}{}; `databases.partial_commits()` lists it until it is resolved",
        list_shards(committed), if is_unknown(source) { "perhaps" } else { "not" }, source.as_ref().map_or_else(String::new, |source| format!(": {source}"))
    )]
    PartlyCommitted {
        /// The execution.
        action: ActionId,
        /// The shards that have committed their part.
        committed: Vec<ShardIdentifier>,
        /// The shard that has not, or may not have: then `source` is [`CommitError::Unknown`],
        /// and `executor.outcome(action)` tells.
        failed: ShardIdentifier,
        /// The shards behind it, to which nothing was sent.
        not_tried: Vec<ShardIdentifier>,
        /// Why it has not; unknown to a call that repeats an idempotency key.
        source: Option<CommitError>,
    },
    /// The strategy that was chosen cannot be followed.
    #[error(transparent)]
    Contention(#[from] ContentionError),
    /// The lease under which the action was to run could not be had.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A row's shard is not to be found.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The action has a mistake.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

fn is_unknown(source: &Option<CommitError>) -> bool {
    matches!(source, Some(CommitError::Unknown(..)))
}

/// The kind of a failure: what a [`RetryPolicy`](super::RetryPolicy) decides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[allow(missing_docs)] // each is the variant of `ExecuteError` of that name
pub enum ErrorKind {
    Domain,
    Stale,
    Unique,
    ForeignKey,
    Deadlock,
    Serialization,
    Busy,
    Refused,
    Unavailable,
    FenceLost,
    Deadline,
    CommitUnknown,
    KeyReused,
    StoredOutput,
    CrossShard,
    PartlyCommitted,
    Contention,
    Lease,
    Shard,
    Plan,
}

impl<E> ExecuteError<E> {
    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ExecuteError::Domain(_) => ErrorKind::Domain,
            ExecuteError::Stale { .. } => ErrorKind::Stale,
            ExecuteError::Unique(_) => ErrorKind::Unique,
            ExecuteError::ForeignKey(_) => ErrorKind::ForeignKey,
            ExecuteError::Deadlock(_) => ErrorKind::Deadlock,
            ExecuteError::Serialization(_) => ErrorKind::Serialization,
            ExecuteError::Busy(_) => ErrorKind::Busy,
            ExecuteError::Refused(_) => ErrorKind::Refused,
            ExecuteError::Unavailable(_) => ErrorKind::Unavailable,
            ExecuteError::FenceLost { .. } => ErrorKind::FenceLost,
            ExecuteError::Deadline { .. } => ErrorKind::Deadline,
            ExecuteError::CommitUnknown { .. } => ErrorKind::CommitUnknown,
            ExecuteError::KeyReused { .. } => ErrorKind::KeyReused,
            ExecuteError::StoredOutput { .. } => ErrorKind::StoredOutput,
            ExecuteError::CrossShard { .. } => ErrorKind::CrossShard,
            ExecuteError::PartlyCommitted { .. } => ErrorKind::PartlyCommitted,
            ExecuteError::Contention(_) => ErrorKind::Contention,
            ExecuteError::Lease(_) => ErrorKind::Lease,
            ExecuteError::Shard(_) => ErrorKind::Shard,
            ExecuteError::Plan(_) => ErrorKind::Plan,
        }
    }

    /// Whether the same call may well succeed a moment later.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Stale
                | ErrorKind::Deadlock
                | ErrorKind::Serialization
                | ErrorKind::Busy
                | ErrorKind::Unavailable
        )
    }

    /// The violated constraint, where one was.
    pub fn constraint(&self) -> Option<&str> {
        match self {
            ExecuteError::Unique(error)
            | ExecuteError::ForeignKey(error)
            | ExecuteError::Refused(error) => error.constraint(),
            _ => None,
        }
    }

    /// What the database said, where it said something.
    pub fn database_error(&self) -> Option<&DbError> {
        match self {
            ExecuteError::Unique(error)
            | ExecuteError::ForeignKey(error)
            | ExecuteError::Deadlock(error)
            | ExecuteError::Serialization(error)
            | ExecuteError::Busy(error)
            | ExecuteError::Refused(error)
            | ExecuteError::Unavailable(error) => Some(error),
            _ => None,
        }
    }

    pub(super) fn from_commit(error: CommitError, attempts: u32) -> Self {
        match error {
            CommitError::Stale(rows) => ExecuteError::Stale { rows, attempts },
            CommitError::FenceLost(key) => ExecuteError::FenceLost { key },
            CommitError::Unknown(action, why) => ExecuteError::CommitUnknown { action, why },
            CommitError::Refused(error) => error.into(),
        }
    }
}

impl<E> ExecuteError<E> {
    pub(super) fn of_partial(partial: PartialCommit) -> Self {
        let mut missing = partial.missing.into_iter().chain(partial.unreachable);
        ExecuteError::PartlyCommitted {
            action: partial.action,
            committed: partial.committed,
            failed: missing.next().unwrap_or_default(),
            not_tried: missing.collect(),
            source: None,
        }
    }
}

impl<E> From<DbError> for ExecuteError<E> {
    fn from(error: DbError) -> Self {
        match error.kind() {
            DbErrorKind::UniqueViolation => ExecuteError::Unique(error),
            DbErrorKind::ForeignKeyViolation => ExecuteError::ForeignKey(error),
            DbErrorKind::Deadlock => ExecuteError::Deadlock(error),
            DbErrorKind::Serialization => ExecuteError::Serialization(error),
            DbErrorKind::LockTimeout => ExecuteError::Busy(error),
            DbErrorKind::Unavailable | DbErrorKind::PoolTimeout => ExecuteError::Unavailable(error),
            _ => ExecuteError::Refused(error),
        }
    }
}

impl<E> From<StageError> for ExecuteError<E> {
    fn from(error: StageError) -> Self {
        match error {
            StageError::Table(TableError::Database(error)) => error.into(),
            other => ExecuteError::Plan(other.into()),
        }
    }
}

impl From<StageError> for PlanError {
    fn from(error: StageError) -> Self {
        match error {
            StageError::IdChanged { model, id } => PlanError::IdChanged { model, id },
            StageError::Field { model, id, source } => PlanError::Field { model, id, source },
            StageError::Table(TableError::Schema(error)) => PlanError::Schema(error),
            // Only a lookup of the table yields it, and that one asks the database first.
            StageError::Table(TableError::Database(error)) => PlanError::Field {
                model: "?",
                id: Uuid::nil(),
                source: FieldError::new(error.to_string()),
            },
        }
    }
}
