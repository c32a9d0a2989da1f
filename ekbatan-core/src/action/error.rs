//! The errors of building an executor and of running a call.

use std::time::Duration;

use super::{LeaseError, PlanError};
use crate::db::{
    ActionId, CommitError, DbError, DbErrorKind, RowRef, SchemaError, StageError, TableError,
};
use crate::domain::{LockKey, ShardIdentifier, list_shards};
use crate::shard::{PartialCommit, ShardError};

/// Error returned when an executor cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The namespace is not a dotted identifier, or too long.
    #[error("the namespace `{namespace}` {why}")]
    #[non_exhaustive]
    Namespace {
        /// The namespace.
        namespace: String,
        /// What is wrong with it.
        why: String,
    },
    /// Two models store events under one name.
    #[error(
        "`{first}` and `{second}` both store events named `{name}`; give one of them another #[event(name = \"..\")]"
    )]
    #[non_exhaustive]
    EventName {
        /// The name.
        name: &'static str,
        /// The first model.
        first: &'static str,
        /// The second model.
        second: &'static str,
    },
    /// The default strategy takes leases, and the executor has none.
    #[error(
        "the executor's contention strategy takes leases; set where to take them by `.leases(..)`"
    )]
    NoLeases,
    /// The homes of idempotency keys are no shards of the configuration, or there are none.
    #[error(
        "the homes of idempotency keys must be shards of the configuration, at least one; not configured: {}", list_shards(.0)
    )]
    KeyHomes(Vec<ShardIdentifier>),
    /// Tables do not match the code; each is listed.
    #[error("the database does not fit the code:{}", .0.iter().map(|e| format!("\n  {e}")).collect::<String>())]
    Schema(Vec<SchemaError>),
    /// The check of the tables failed.
    #[error(transparent)]
    Database(#[from] DbError),
}

/// Error returned when a call cannot run by the strategy that the call or the action chose.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContentionError {
    /// The strategy needs a key, and neither the action nor the call gives one.
    #[error(
        "the strategy of `{action}` needs a key, and there is none; implement `Action::contention_keys`, or set one by `.contention_keys(..)`"
    )]
    #[non_exhaustive]
    NoKey {
        /// The action.
        action: &'static str,
    },
    /// The strategy takes a lease, and the executor has no leases.
    #[error(
        "the strategy of `{action}` takes a lease, and the executor has none; build it with `.leases(..)`"
    )]
    #[non_exhaustive]
    NoLeases {
        /// The action.
        action: &'static str,
    },
}

/// Error returned when an execution fails. Except for [`CommitUnknown`](Self::CommitUnknown) and
/// [`PartlyCommitted`](Self::PartlyCommitted), nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError<E> {
    /// The action's own error, unchanged.
    #[error(transparent)]
    Domain(E),
    /// In every attempt, rows had changed since they were read.
    #[error("gave up after {attempts} attempt(s), because rows had changed since they were read: {}", rows.iter().map(RowRef::to_string).collect::<Vec<_>>().join(", "))]
    #[non_exhaustive]
    Stale {
        /// The rows of the last attempt.
        rows: Vec<RowRef>,
        /// The number of attempts.
        attempts: u32,
    },
    /// A row violates a unique constraint; [`DbError::constraint`] names it.
    #[error("{0}")]
    Unique(#[source] DbError),
    /// A row refers to a row that does not exist, or other rows still refer to it.
    #[error("{0}")]
    ForeignKey(#[source] DbError),
    /// In every attempt, the database rolled the commit back to end a deadlock.
    #[error("{0}")]
    Deadlock(#[source] DbError),
    /// In every attempt, the commit failed to serialize with others.
    #[error("{0}")]
    Serialization(#[source] DbError),
    /// The wait for a lock of the database timed out, or another process was writing to the
    /// SQLite file.
    #[error("{0}")]
    Busy(#[source] DbError),
    /// The database refused the commit for another reason; see [`DbError::kind`].
    #[error("{0}")]
    Refused(#[source] DbError),
    /// The database could not be reached.
    #[error("{0}")]
    Unavailable(#[source] DbError),
    /// As many commits as may wait for a lane waited already. Call again later, and send less.
    #[error("{0}")]
    Overloaded(#[source] DbError),
    /// The lease under which the action ran has ended.
    #[error(
        "the lease on `{}` ended before the commit; nothing was written. Take it again; if it was held for its maximum, give `LockOptions::hold` more time",
        LockKey::shown(key)
    )]
    #[non_exhaustive]
    FenceLost {
        /// The lock's key, as its provider stores it.
        key: String,
    },
    /// The event that the call handles is not to be handled by it any more: another node has taken it
    /// over, somebody has skipped it, or an earlier `finish` has committed whose answer was lost.
    #[error(
        "the event is not `{handler}`'s to handle any more: it was handled, skipped, or taken over by another node; nothing was written"
    )]
    #[non_exhaustive]
    DeliveryLost {
        /// The handler.
        handler: String,
    },
    /// The run of a job that the call belongs to has ended, or another node has taken it over.
    #[error("the run of `{job}` has ended, or another node has taken it over; nothing was written")]
    #[non_exhaustive]
    RunLost {
        /// The job.
        job: String,
    },
    /// The handler or the job has called `finish` already, which is its last action.
    #[error(
        "`{caller}` has called `finish` already, which is its last action; nothing was written. Do this in a `step` before `finish`"
    )]
    #[non_exhaustive]
    Finished {
        /// The handler or the job.
        caller: String,
    },
    /// The deadline passed before anything was sent.
    #[error("the deadline of {after:?} passed; nothing was written")]
    #[non_exhaustive]
    Deadline {
        /// The length of the deadline.
        after: Duration,
    },
    /// The connection broke or the deadline passed during the commit. Ask
    /// [`ActionExecutor::outcome`](super::ActionExecutor::outcome) later.
    #[error("whether action {action} committed is unknown: {why}; ask executor.outcome({action})")]
    #[non_exhaustive]
    CommitUnknown {
        /// The execution.
        action: ActionId,
        /// The cause.
        why: String,
    },
    /// The idempotency key was used for another call.
    #[error(
        "the idempotency key `{key}` was used {} `{action}`; use a new key for a new call",
        if *.is_other_action { "for another action," } else { "with other parameters of" }
    )]
    #[non_exhaustive]
    KeyReused {
        /// The key.
        key: String,
        /// The action that used it.
        action: String,
        /// Whether this call is one of another action.
        is_other_action: bool,
    },
    /// The stored output no longer deserializes.
    #[error("the output stored under the idempotency key `{key}` does not fit the type: {source}")]
    #[non_exhaustive]
    StoredOutput {
        /// The key.
        key: String,
        /// The cause.
        source: serde_json::Error,
    },
    /// The plan touches several shards, and the call does not allow it.
    #[error(
        "the plan touches the shards {}, which commit one after another and not as one; allow it by `.allow_cross_shard()`",
        list_shards(shards)
    )]
    #[non_exhaustive]
    CrossShard {
        /// The shards.
        shards: Vec<ShardIdentifier>,
    },
    /// Some shards have committed and one has not. This is not retried.
    /// [`Databases::partial_commits`](crate::shard::Databases::partial_commits) lists the action.
    #[error(
        "action {action} committed on {} and {} on {failed}{}; `databases.partial_commits()` lists it until it is resolved",
        list_shards(committed), if is_unknown(source) { "perhaps" } else { "not" }, source.as_ref().map_or_else(String::new, |source| format!(": {source}"))
    )]
    #[non_exhaustive]
    PartlyCommitted {
        /// The execution.
        action: ActionId,
        /// The shards that have committed.
        committed: Vec<ShardIdentifier>,
        /// The first shard that is not known to have committed. If `source` is
        /// [`CommitError::Unknown`] or `None`, it may have: ask `executor.outcome(action)`.
        failed: ShardIdentifier,
        /// The shards after it. Nothing is sent to them before `failed` has committed.
        not_tried: Vec<ShardIdentifier>,
        /// The cause. A call that repeats an idempotency key does not know it.
        source: Option<CommitError>,
    },
    /// The call was made inside `perform` of another one, where it would commit even if that one
    /// does not. A task that `perform` spawns is not recognized.
    #[error(
        "`{action}` was called inside `perform` of `{within}`, and would commit even if `{within}` does not; nothing was written. Stage its changes in the plan of `{within}`, call it in an effect (`ctx.plan().after_commit(..)`), or let the caller of `{within}` call it"
    )]
    #[non_exhaustive]
    Nested {
        /// The action that was called.
        action: &'static str,
        /// The action that called it.
        within: &'static str,
    },
    /// The call cannot run by the chosen strategy.
    #[error(transparent)]
    Contention(#[from] ContentionError),
    /// The call did not get its lease.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The shard of a row cannot be determined or is unknown.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The action has a mistake.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Whether the shard may have committed. A call that repeats an idempotency key does not know the
/// cause: the shard may be unreachable, or another process may still be committing there.
fn is_unknown(source: &Option<CommitError>) -> bool {
    source.as_ref().is_none_or(|source| matches!(source, CommitError::Unknown(..)))
}

/// The kind of a failure, by which a [`RetryPolicy`](super::RetryPolicy) decides.
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
    Overloaded,
    FenceLost,
    DeliveryLost,
    RunLost,
    Finished,
    Deadline,
    CommitUnknown,
    KeyReused,
    StoredOutput,
    CrossShard,
    PartlyCommitted,
    Nested,
    Contention,
    Lease,
    Shard,
    Plan,
}

/// Stands for the error of an action, which the call keeps: what runs calls is compiled once, and
/// not for each action.
#[derive(Debug)]
pub(super) struct KeptError;

/// The error of an attempt.
pub(super) type AttemptError = ExecuteError<KeptError>;

impl AttemptError {
    /// The same error with that of the action, which the call has kept.
    pub(super) fn with_own<E>(self, own: Option<E>) -> ExecuteError<E> {
        use ExecuteError as To;
        match self {
            Self::Domain(KeptError) => match own {
                Some(own) => To::Domain(own),
                // Not reached: an action that refused has returned its error.
                None => DbError::misfit("error", "the action returned none").into(),
            },
            Self::Stale { rows, attempts } => To::Stale { rows, attempts },
            Self::Unique(error) => To::Unique(error),
            Self::ForeignKey(error) => To::ForeignKey(error),
            Self::Deadlock(error) => To::Deadlock(error),
            Self::Serialization(error) => To::Serialization(error),
            Self::Busy(error) => To::Busy(error),
            Self::Refused(error) => To::Refused(error),
            Self::Unavailable(error) => To::Unavailable(error),
            Self::Overloaded(error) => To::Overloaded(error),
            Self::FenceLost { key } => To::FenceLost { key },
            Self::DeliveryLost { handler } => To::DeliveryLost { handler },
            Self::RunLost { job } => To::RunLost { job },
            Self::Finished { caller } => To::Finished { caller },
            Self::Deadline { after } => To::Deadline { after },
            Self::CommitUnknown { action, why } => To::CommitUnknown { action, why },
            Self::KeyReused { key, action, is_other_action } => {
                To::KeyReused { key, action, is_other_action }
            }
            Self::StoredOutput { key, source } => To::StoredOutput { key, source },
            Self::CrossShard { shards } => To::CrossShard { shards },
            Self::PartlyCommitted { action, committed, failed, not_tried, source } => {
                To::PartlyCommitted { action, committed, failed, not_tried, source }
            }
            Self::Nested { action, within } => To::Nested { action, within },
            Self::Contention(error) => To::Contention(error),
            Self::Lease(error) => To::Lease(error),
            Self::Shard(error) => To::Shard(error),
            Self::Plan(error) => To::Plan(error),
        }
    }
}

impl<E> ExecuteError<E> {
    /// The error of what a handler or a job does after its last action.
    #[doc(hidden)]
    pub fn finished(caller: &str) -> Self {
        ExecuteError::Finished { caller: caller.to_owned() }
    }

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
            ExecuteError::Overloaded(_) => ErrorKind::Overloaded,
            ExecuteError::FenceLost { .. } => ErrorKind::FenceLost,
            ExecuteError::DeliveryLost { .. } => ErrorKind::DeliveryLost,
            ExecuteError::RunLost { .. } => ErrorKind::RunLost,
            ExecuteError::Finished { .. } => ErrorKind::Finished,
            ExecuteError::Deadline { .. } => ErrorKind::Deadline,
            ExecuteError::CommitUnknown { .. } => ErrorKind::CommitUnknown,
            ExecuteError::KeyReused { .. } => ErrorKind::KeyReused,
            ExecuteError::StoredOutput { .. } => ErrorKind::StoredOutput,
            ExecuteError::CrossShard { .. } => ErrorKind::CrossShard,
            ExecuteError::PartlyCommitted { .. } => ErrorKind::PartlyCommitted,
            ExecuteError::Nested { .. } => ErrorKind::Nested,
            ExecuteError::Contention(_) => ErrorKind::Contention,
            ExecuteError::Lease(_) => ErrorKind::Lease,
            ExecuteError::Shard(_) => ErrorKind::Shard,
            ExecuteError::Plan(_) => ErrorKind::Plan,
        }
    }

    /// Whether the same call may succeed a moment later.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            ExecuteError::Stale { .. }
                | ExecuteError::Deadlock(_)
                | ExecuteError::Serialization(_)
                | ExecuteError::Busy(_)
                | ExecuteError::Unavailable(_)
                | ExecuteError::Overloaded(_)
                | ExecuteError::Lease(LeaseError::Busy { .. })
        )
    }

    /// The violated constraint, if there is one. Of a call that
    /// [committed partly](Self::PartlyCommitted), that of the shard that refused.
    pub fn constraint(&self) -> Option<&str> {
        self.database_error().and_then(DbError::constraint)
    }

    /// The error of the database, if it is the cause. Of a call that
    /// [committed partly](Self::PartlyCommitted), that of the shard that refused.
    pub fn database_error(&self) -> Option<&DbError> {
        match self {
            ExecuteError::Unique(error)
            | ExecuteError::ForeignKey(error)
            | ExecuteError::Deadlock(error)
            | ExecuteError::Serialization(error)
            | ExecuteError::Busy(error)
            | ExecuteError::Refused(error)
            | ExecuteError::Unavailable(error)
            | ExecuteError::Overloaded(error)
            | ExecuteError::PartlyCommitted { source: Some(CommitError::Refused(error)), .. } => {
                Some(error)
            }
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
        // After the first one, the shards commit in their order.
        let mut missing = [partial.missing, partial.unreachable].concat();
        missing.sort();
        let mut missing = missing.into_iter();
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
            DbErrorKind::Overloaded => ExecuteError::Overloaded(error),
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

#[cfg(test)]
mod tests {
    use chrono::Utc;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_partial_commit_names_the_first_shard_that_may_not_have_committed() {
        let [first, second, third] = [0, 1, 2].map(|n| ShardIdentifier::new(0, n).unwrap());
        let partial = PartialCommit {
            action: ActionId(Uuid::nil()),
            namespace: "com.example.wallet".to_owned(),
            action_name: "wallet.transfer".to_owned(),
            committed: vec![first],
            missing: vec![third],
            unreachable: vec![second],
            committed_date: Utc::now(),
        };
        let error = ExecuteError::<std::io::Error>::of_partial(partial);
        let text = error.to_string();
        assert!(text.contains("committed on 0/0 and perhaps on 0/1;"), "{text}");
        let ExecuteError::PartlyCommitted { failed, not_tried, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!((failed, &not_tried[..]), (second, &[third][..]));
    }
}
