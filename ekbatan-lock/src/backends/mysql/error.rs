//! Errors of locks in MySQL, and of their statements.

use sqlx::mysql::MySqlDatabaseError;

use crate::{BackendError, FailureKind};

/// Error returned when locks in MySQL or MariaDB cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MySqlLocksError {
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
    /// The server failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl MySqlLocksError {
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

/// A statement that failed.
#[derive(Debug)]
pub(super) enum StatementFailure {
    /// The server rejected the statement. The connection stays usable.
    Refused { number: u16, error: BackendError },
    /// The connection is not to be used again. The error says whether the statement may have been
    /// executed.
    Broken(BackendError),
}

/// A deadlock: the statement can be sent again.
const DEADLOCK: u16 = 1213;

/// Number of tries for a statement that deadlocks.
pub(super) const DEADLOCK_TRIES: usize = 5;

/// The server has undone the statement because of another one: a wait that was too long, a
/// deadlock, and a conflict with another member of its cluster.
const ROLLED_BACK: [u16; 3] = [1205, DEADLOCK, 3101];

/// The server has ended this connection, or is about to.
const ENDED: [u16; 8] = [1053, 1077, 1079, 1080, 1184, 1927, 3169, 4031];

/// The server does not accept writes: it is not the primary any more, or not a part of its cluster
/// (1047). The next connection may lead to another one.
const READ_ONLY: [u16; 3] = [1047, 1290, 1836];

impl StatementFailure {
    pub(super) fn of(what: &str, error: &sqlx::Error) -> Self {
        Self::numbered(number(error), BackendError::new(format!("{what}: {}", describe(error))))
    }

    fn numbered(number: Option<u16>, failed: BackendError) -> Self {
        match number {
            Some(number) if ROLLED_BACK.contains(&number) => {
                Self::Refused { number, error: failed.of_kind(FailureKind::Unavailable) }
            }
            Some(number) if READ_ONLY.contains(&number) => {
                Self::Broken(failed.of_kind(FailureKind::Unavailable))
            }
            Some(number) if !ENDED.contains(&number) => Self::Refused { number, error: failed },
            _ => Self::Broken(failed.of_kind(FailureKind::InDoubt)),
        }
    }

    pub(super) fn is_deadlock(&self) -> bool {
        matches!(self, Self::Refused { number: DEADLOCK, .. })
    }

    pub(super) fn is_broken(&self) -> bool {
        matches!(self, Self::Broken(_))
    }
}

impl From<StatementFailure> for BackendError {
    fn from(failure: StatementFailure) -> Self {
        match failure {
            StatementFailure::Refused { error, .. } | StatementFailure::Broken(error) => error,
        }
    }
}

/// The kind of an error of connecting. The server's own errors, such as a wrong password, do
/// not pass, except that it has no place for a connection, or no other member of its cluster.
pub(super) fn connecting(error: &sqlx::Error) -> FailureKind {
    connecting_by(number(error))
}

fn connecting_by(number: Option<u16>) -> FailureKind {
    const FULL: [u16; 2] = [1040, 1203];
    let passes =
        |number| [&FULL[..], &ENDED, &READ_ONLY].iter().any(|numbers| numbers.contains(&number));
    if number.is_none_or(passes) { FailureKind::Unavailable } else { FailureKind::Refused }
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

/// The server's message and error number, or the driver's text.
pub(super) fn describe(error: &sqlx::Error) -> String {
    match (error.as_database_error(), number(error)) {
        (Some(said), Some(number)) => format!("{} ({number})", said.message()),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(number: u16) -> (bool, FailureKind) {
        let failure = StatementFailure::numbered(Some(number), BackendError::new("a test"));
        (failure.is_broken(), BackendError::from(failure).kind())
    }

    #[test]
    fn a_member_of_a_cluster_that_cannot_write_is_away() {
        // Galera without a quorum, a replica, and a super-read-only member.
        for number in READ_ONLY {
            assert_eq!(kind(number), (true, FailureKind::Unavailable), "{number}");
            assert_eq!(connecting_by(Some(number)), FailureKind::Unavailable, "{number}");
        }
        // Undone at the end of the transaction: the connection stays usable.
        assert_eq!(kind(3101), (false, FailureKind::Unavailable));
        assert_eq!(kind(1927), (true, FailureKind::InDoubt));
        // A duplicate key, and a wrong password.
        assert_eq!(kind(1062), (false, FailureKind::Refused));
        assert_eq!(connecting_by(Some(1045)), FailureKind::Refused);
        assert_eq!(connecting_by(None), FailureKind::Unavailable);
    }
}
