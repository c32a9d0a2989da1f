//! Classifies errors by SQLite's result codes.

use crate::db::{DbError, DbErrorKind};

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
            10 | 11 | 13 | 14 | 26 => K::Unavailable,
            _ => K::Other,
        },
    }
}

pub(super) fn classify(error: sqlx::Error) -> DbError {
    match error {
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default().into_owned();
            let kind = code.parse().map_or(DbErrorKind::Other, kind);
            let message = error.message().to_owned();
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
        error @ (sqlx::Error::WorkerCrashed | sqlx::Error::Io(_)) => {
            DbError::new(DbErrorKind::Unavailable, error.to_string()).with_source(error)
        }
        error @ (sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) => {
            DbError::new(DbErrorKind::Decode, error.to_string()).with_source(error)
        }
        error => DbError::new(DbErrorKind::Other, error.to_string()).with_source(error),
    }
}
