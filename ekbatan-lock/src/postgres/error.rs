//! Errors of locks in PostgreSQL.

use crate::BackendError;

/// Error returned when locks in PostgreSQL cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresLocksError {
    /// The address cannot be used.
    #[error("the address of the lock database cannot be used: {0}")]
    Address(String),
    /// Locks on this server are not safe.
    #[error("locks are not safe here: {reason}")]
    Unsafe {
        /// The reason, and what to do.
        reason: String,
    },
    /// The database failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// An error with PostgreSQL's message, which the driver's own text omits.
pub(super) fn failed(what: &str, error: &tokio_postgres::Error) -> BackendError {
    BackendError::new(format!("{what}: {}", describe(error)))
}

/// The server's message and code, or the driver's text.
pub(super) fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(server) => format!("{} ({})", server.message(), server.code().code()),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}
