//! Why locks in PostgreSQL could not be set up.

use crate::BackendError;

/// Locks in PostgreSQL that could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresLocksError {
    /// The address cannot be used.
    #[error("the address of the lock database cannot be used: {0}")]
    Address(String),
    /// There is a database, on which this provider cannot keep its promise.
    #[error("locks are refused here: {reason}")]
    Unsafe {
        /// Why, and what to do.
        reason: String,
    },
    /// The database failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// A failure with what PostgreSQL said, which its driver's own text leaves out.
pub(super) fn failed(what: &str, error: &tokio_postgres::Error) -> BackendError {
    BackendError::new(format!("{what}: {}", told(error)))
}

/// What went wrong, for people.
pub(super) fn told(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{} ({})", said.message(), said.code().code()),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}
