//! Classifies errors by SQLite's result codes.

use crate::db::{DbError, DbErrorKind};

/// The code of a full disk.
const FULL: u32 = 13;

fn kind(code: u32) -> DbErrorKind {
    use DbErrorKind as K;
    match code {
        2067 | 1555 | 2579 => K::UniqueViolation,
        787 => K::ForeignKeyViolation,
        1299 => K::NotNullViolation,
        275 => K::CheckViolation,
        _ => match code & 0xff {
            5 | 6 => K::LockTimeout,
            8 => K::ReadOnly,
            9 => K::StatementTimeout,
            18 | 20 => K::ValueOutOfRange,
            10 | 11 | FULL | 14 | 26 => K::Unavailable,
            _ => K::Other,
        },
    }
}

pub(super) fn is_disk_full(error: &DbError) -> bool {
    error.code().and_then(|code| code.parse().ok()) == Some(FULL)
}

/// An error that SQLite reports.
fn reported(code: impl Into<String>, message: &str) -> DbError {
    let code = code.into();
    let kind = code.parse().map_or(DbErrorKind::Other, kind);
    // SQLite has no field for the constraint. It is the part of the message after the
    // colon, as in `UNIQUE constraint failed: wallets.email`.
    let constraint = match kind {
        DbErrorKind::UniqueViolation
        | DbErrorKind::NotNullViolation
        | DbErrorKind::CheckViolation => {
            message.split_once("failed: ").map(|(_, name)| name.to_owned())
        }
        _ => None,
    };
    DbError::new(kind, message).with_code(code).with_constraint(constraint)
}

pub(super) fn classify(error: sqlx::Error) -> DbError {
    match error {
        sqlx::Error::Database(error) => reported(error.code().unwrap_or_default(), error.message()),
        error @ (sqlx::Error::WorkerCrashed | sqlx::Error::Io(_)) => {
            DbError::new(DbErrorKind::Unavailable, error.to_string()).with_source(error)
        }
        error @ (sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) => {
            DbError::new(DbErrorKind::Decode, error.to_string()).with_source(error)
        }
        error => DbError::new(DbErrorKind::Other, error.to_string()).with_source(error),
    }
}

pub(super) fn classify_of_library(error: rusqlite::Error) -> DbError {
    use rusqlite::Error as E;
    match &error {
        E::SqliteFailure(code, message) => {
            let code = code.extended_code;
            let default = || rusqlite::ffi::code_to_str(code).to_owned();
            let message = message.clone().unwrap_or_else(default);
            reported(code.to_string(), &message)
        }
        E::SqlInputError { error, msg, .. } => reported(error.extended_code.to_string(), msg),
        E::FromSqlConversionFailure(..) => {
            DbError::new(DbErrorKind::Decode, error.to_string()).with_source(error)
        }
        _ => DbError::new(DbErrorKind::Other, error.to_string()).with_source(error),
    }
}
