//! The errors of opening and closing windows.

use chrono::{DateTime, Utc};
use ekbatan_core::db::BarrierError;
use ekbatan_core::repository::ReadError;

use super::cutoffs::LONGEST_NAME;
use crate::job_set::BoxError;

/// Error returned when a window cannot be opened or closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// A name cannot be stored.
    #[error("the {what} `{text}` of a window has {bytes} bytes; use 1 to {LONGEST_NAME}, not only blanks", bytes = text.len())]
    #[non_exhaustive]
    Name {
        /// Which name.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// A window has not reached its cutoff.
    #[error(
        "the window `{key}` of `{participant}` closes at {cutoff}, and it is {now} by the database"
    )]
    #[non_exhaustive]
    TooEarly {
        /// The key of the window.
        key: String,
        /// The participant.
        participant: String,
        /// Its cutoff.
        cutoff: DateTime<Utc>,
        /// The time of the database.
        now: DateTime<Utc>,
    },
    /// A key comes again although its window has begun to close.
    #[error(
        "the window `{key}` of `{participant}` began to close at {closing_date}, so there is none that closes at {cutoff}; give each window a key of its own"
    )]
    #[non_exhaustive]
    KeyAgain {
        /// The key of both windows.
        key: String,
        /// The participant.
        participant: String,
        /// When the window that is there began to close.
        closing_date: DateTime<Utc>,
        /// The cutoff of the window that was to be opened.
        cutoff: DateTime<Utc>,
    },
    /// The series did not answer which windows are to be opened.
    #[error("the windows that are to be opened are not known: {0}")]
    Upcoming(#[source] BoxError),
    /// Transactions that began before the closing are still open.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
    /// A window cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Why the windows of a series were not opened or closed, or one of them not batched.
#[derive(Debug, thiserror::Error)]
pub(super) enum SeriesError {
    #[error("the window `{key}` of `{participant}` was not opened: {error}")]
    Open {
        key: String,
        participant: String,
        #[source]
        error: BoxError,
    },
    #[error("{count} window(s) do not close yet; that of `{participant}`, `{key}`: {error}")]
    Close {
        count: usize,
        key: String,
        participant: String,
        #[source]
        error: BoxError,
    },
    #[error("chunk {chunk} was not batched: {error}")]
    Chunk {
        chunk: i64,
        #[source]
        error: BoxError,
    },
    #[error("everything is batched, and the window is not closed: {0}")]
    Finish(#[source] BoxError),
    #[error("`{0}` is no id of a window")]
    Id(String),
    #[error(
        "the window is open again, although it had begun to close; somebody has changed its row"
    )]
    Reopened,
    #[error(transparent)]
    Window(#[from] WindowError),
    #[error(transparent)]
    Database(#[from] ekbatan_core::db::DbError),
    #[error(transparent)]
    Shard(#[from] ekbatan_core::shard::ShardError),
}

impl From<ReadError> for SeriesError {
    fn from(error: ReadError) -> Self {
        Self::Window(error.into())
    }
}

#[cfg(test)]
mod tests {
    use ekbatan_core::domain::FieldError;
    use ekbatan_events::__private::failure;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the bank did not take the chunk")]
    struct NotTaken(#[source] FieldError);

    #[test]
    fn what_is_stored_of_a_failure_has_its_causes() {
        let error = || BoxError::from(NotTaken(FieldError::new("there is none").at("account")));
        let (key, participant) = (String::from("2026-07-01"), String::from("alpha"));
        let failures = [
            SeriesError::Window(WindowError::Upcoming(error())),
            SeriesError::Open {
                key: key.clone(),
                participant: participant.clone(),
                error: error(),
            },
            SeriesError::Close { count: 1, key, participant, error: error() },
            SeriesError::Chunk { chunk: 7, error: error() },
            SeriesError::Finish(error()),
        ];
        for failure in failures {
            let stored = failure::of_error(&failure);
            let cause = ": the bank did not take the chunk: column `account`: there is none";
            assert!(stored.ends_with(cause), "{stored}");
        }
    }
}
