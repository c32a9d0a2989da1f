//! Errors of locks in PostgreSQL.

use crate::{BackendError, FailureKind};

/// Error returned when locks in PostgreSQL cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresLocksError {
    /// The address cannot be used.
    #[error("the address of the lock database cannot be used: {0}")]
    Address(String),
    /// Locks on this server are not safe.
    #[error("locks are not safe here: {reason}")]
    #[non_exhaustive]
    Unsafe {
        /// The reason, and what to do.
        reason: String,
    },
    /// The database failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl PostgresLocksError {
    /// The error of a connection, once the locks are open.
    pub(super) fn of_connection(self) -> BackendError {
        match self {
            Self::Backend(error) => error,
            // When the locks were opened, the address led to a server that is safe. It may again,
            // as after a fail-over.
            other => BackendError::unavailable(other.to_string()),
        }
    }
}

/// An error with PostgreSQL's message, which the driver's own text omits.
pub(super) fn failed(what: &str, error: &tokio_postgres::Error) -> BackendError {
    BackendError::new(format!("{what}: {}", describe(error))).of_kind(kind(error))
}

/// An error of opening a connection: nothing was asked yet.
pub(super) fn not_connected(error: &tokio_postgres::Error) -> BackendError {
    failed("no connection to the lock database", error).not_sent()
}

fn kind(error: &tokio_postgres::Error) -> FailureKind {
    error.code().map_or(FailureKind::InDoubt, |code| kind_of(code.code()))
}

fn kind_of(code: &str) -> FailureKind {
    match code {
        // The server shuts down or starts, has no place for a connection, or has rolled the
        // statement back because of another one.
        "57P01" | "57P02" | "57P03" | "57P05" | "53300" | "40001" | "40P01" | "55P03" => {
            FailureKind::Unavailable
        }
        READ_ONLY | TOO_LATE => FailureKind::Unavailable,
        // A pooler has lost its connection to the server, which may have executed the statement.
        code if code.starts_with("08") => FailureKind::InDoubt,
        _ => FailureKind::Refused,
    }
}

/// The server does not accept writes: it is not the primary.
const READ_ONLY: &str = "25006";

/// A take was carried out after its caller had given it up, and was undone.
const TOO_LATE: &str = "EK001";

pub(super) fn was_too_late(error: &BackendError) -> bool {
    error.to_string().ends_with(&format!("({TOO_LATE})"))
}

/// Whether the next connection may lead to another server, which accepts writes.
pub(super) fn is_of_a_replica(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code() == READ_ONLY)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_whose_pooler_lost_the_server_is_in_doubt() {
        // PgBouncer's "server conn crashed?" is the second.
        for code in ["08006", "08P01"] {
            assert_eq!(kind_of(code), FailureKind::InDoubt, "{code}");
        }
        for code in ["57P01", "40P01", READ_ONLY, TOO_LATE] {
            assert_eq!(kind_of(code), FailureKind::Unavailable, "{code}");
        }
        assert_eq!(kind_of("42501"), FailureKind::Refused);
    }
}
