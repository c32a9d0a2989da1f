//! Why locks in MySQL could not be set up, and why a statement failed.

use sqlx::mysql::MySqlDatabaseError;

use crate::BackendError;

/// Locks in MySQL or MariaDB that could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MySqlLocksError {
    /// The address cannot be used.
    #[error("the address of the lock database cannot be used: {0}")]
    Address(String),
    /// There is a server, on which this provider cannot keep its promise.
    #[error("locks are refused here: {reason}")]
    Unsafe {
        /// Why, and what to do.
        reason: String,
    },
    /// The server failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// A statement that failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server refused it, and answers the next one.
    Refused { number: u16, error: BackendError },
    /// Whether it was carried out is unknown, and the connection is of no more use.
    Broken(BackendError),
}

/// The statement met another one, and will do when it is sent again.
const DEADLOCK: u16 = 1213;

/// This connection was ended, or the server is about to.
const ENDED: [u16; 8] = [1053, 1077, 1079, 1080, 1184, 1927, 3169, 4031];

impl Failure {
    pub(super) fn of(what: &str, error: &sqlx::Error) -> Self {
        let told = told(error);
        let failed = BackendError::new(format!("{what}: {told}"));
        match number(error) {
            Some(number) if !ENDED.contains(&number) => Self::Refused { number, error: failed },
            _ => Self::Broken(failed),
        }
    }

    pub(super) fn met_another(&self) -> bool {
        matches!(self, Self::Refused { number: DEADLOCK, .. })
    }

    pub(super) fn is_broken(&self) -> bool {
        matches!(self, Self::Broken(_))
    }
}

impl From<Failure> for BackendError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused { error, .. } | Failure::Broken(error) => error,
        }
    }
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

/// What went wrong, for people: what the server said, and by which number.
pub(super) fn told(error: &sqlx::Error) -> String {
    match (error.as_database_error(), number(error)) {
        (Some(said), Some(number)) => format!("{} ({number})", said.message()),
        _ => error.to_string(),
    }
}
