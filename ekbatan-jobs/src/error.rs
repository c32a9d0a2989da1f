//! The errors of nodes and operations.

use ekbatan_core::db::{DbError, DbErrorKind, TransactionError};
use ekbatan_core::domain::FieldError;
use ekbatan_core::repository::{ReadError, WriteError};

/// Error returned when the tables of jobs cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobsError {
    /// A row cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A row cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DbError),
    /// A transaction did not commit.
    #[error(transparent)]
    Transaction(Box<TransactionError<JobsError>>),
    /// No process has registered a job of this name.
    #[error("there is no job `{job}`; there is {known}")]
    #[non_exhaustive]
    UnknownJob {
        /// The name.
        job: String,
        /// The jobs that there are.
        known: String,
    },
    /// The schedule that is stored is one of a newer release.
    #[error("the schedule `{schedule}` of `{job}` cannot be read: it is that of a newer release")]
    #[non_exhaustive]
    Schedule {
        /// The job.
        job: String,
        /// What is stored.
        schedule: String,
    },
    /// What an operator gave cannot be used.
    #[error("`{what}` {why}")]
    #[non_exhaustive]
    Unfit {
        /// What was given.
        what: &'static str,
        /// What is wrong with it, and what would do.
        why: String,
    },
}

impl From<TransactionError<JobsError>> for JobsError {
    fn from(error: TransactionError<JobsError>) -> Self {
        match error {
            TransactionError::Inner(error) => error,
            TransactionError::Database(error) => JobsError::Database(error),
            other => JobsError::Transaction(Box::new(other)),
        }
    }
}

impl From<FieldError> for JobsError {
    fn from(error: FieldError) -> Self {
        JobsError::Database(DbError::new(DbErrorKind::Decode, error.to_string()))
    }
}

impl JobsError {
    /// Whether a row is such that this release cannot read it.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, JobsError::Read(ReadError::Row { .. }))
    }

    /// Whether another process has changed the same rows, so that they are to be read again. A lock
    /// timeout is no such error: reading them again at once would only wait for the lock once more.
    pub(crate) fn is_conflict(&self) -> bool {
        let of_database = |error: &DbError| {
            matches!(
                error.kind(),
                DbErrorKind::UniqueViolation | DbErrorKind::Serialization | DbErrorKind::Deadlock
            )
        };
        match self {
            JobsError::Write(WriteError::Stale(_)) => true,
            JobsError::Write(WriteError::Database(error)) | JobsError::Database(error) => {
                of_database(error)
            }
            _ => false,
        }
    }
}

/// Error returned when a node cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobNodeStartError {
    /// Two jobs have one name.
    #[error("two jobs have the name `{0}`; each needs its own")]
    NameTwice(&'static str),
    /// A name cannot be stored.
    #[error("the name `{0}` of a job has {1} bytes; use 1 to 255, not only blanks")]
    Name(&'static str, usize),
    /// An option of a job cannot work.
    #[error("the job `{job}` has a wrong `{option}`: {why}")]
    #[non_exhaustive]
    Option {
        /// The job.
        job: &'static str,
        /// The option.
        option: &'static str,
        /// The value, and what would do.
        why: String,
    },
    /// A setting of the node cannot work.
    #[error("a node of jobs has a wrong `{setting}`: {why}")]
    #[non_exhaustive]
    Setting {
        /// The setting.
        setting: &'static str,
        /// The value, and what would do.
        why: String,
    },
    /// The jobs cannot be stored.
    #[error(transparent)]
    Jobs(#[from] JobsError),
}
