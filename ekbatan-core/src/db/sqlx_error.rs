//! Errors of sqlx that PostgreSQL and MySQL classify alike: those that no server sent.

use super::{DbError, DbErrorKind};

pub(super) fn classify_client_error(error: sqlx::Error) -> DbError {
    let (kind, message) = match &error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::WorkerCrashed => {
            (DbErrorKind::Unavailable, format!("the connection broke: {error}"))
        }
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
            (DbErrorKind::Decode, error.to_string())
        }
        _ => (DbErrorKind::Other, error.to_string()),
    };
    DbError::new(kind, message).with_source(error)
}

/// The error of a connection attempt, with the address. `classify` is the dialect's own.
pub(super) fn at_connect(
    error: sqlx::Error,
    address: &str,
    classify: fn(sqlx::Error) -> DbError,
) -> DbError {
    if matches!(error, sqlx::Error::Database(_)) {
        let error = classify(error);
        let why = format!("{address} refused the connection: {error}");
        return DbError::new(error.kind(), why).with_source(error);
    }
    let why = format!("{address} is not to be reached: {error}");
    DbError::new(DbErrorKind::Unavailable, why).with_source(error)
}
