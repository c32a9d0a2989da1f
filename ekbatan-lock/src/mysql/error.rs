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
    Unsafe {
        /// The reason, and what to do.
        reason: String,
    },
    /// The server failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
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

/// The server has undone the statement because of another one: a wait that was too long, and
/// a deadlock.
const ROLLED_BACK: [u16; 2] = [1205, DEADLOCK];

/// The server has ended this connection, or is about to.
const ENDED: [u16; 8] = [1053, 1077, 1079, 1080, 1184, 1927, 3169, 4031];

/// The server does not accept writes: it is not the primary any more. The next connection may lead to
/// the new one.
const READ_ONLY: [u16; 2] = [1290, 1836];

impl StatementFailure {
    pub(super) fn of(what: &str, error: &sqlx::Error) -> Self {
        let text = describe(error);
        let failed = BackendError::new(format!("{what}: {text}"));
        match number(error) {
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
/// not pass, except that it has no place for a connection.
pub(super) fn connecting(error: &sqlx::Error) -> FailureKind {
    const FULL: [u16; 2] = [1040, 1203];
    match number(error) {
        Some(number) if !FULL.contains(&number) && !ENDED.contains(&number) => FailureKind::Refused,
        _ => FailureKind::Unavailable,
    }
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
