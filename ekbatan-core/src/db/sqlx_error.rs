//! Errors of sqlx that PostgreSQL and MySQL classify alike: those that no server sent.

use std::io::ErrorKind;
use std::path::PathBuf;

use super::{DbError, DbErrorKind};

/// The driver's own text may show a character of the password.
const UNFIT_LOGIN: &str = "the driver does not log in with this user and password: one of them is a text that SASLprep (RFC 4013) does not allow, for example because of an emoji or of Hebrew or Arabic letters; choose another one";

pub(super) fn classify_client_error(error: sqlx::Error) -> DbError {
    let (kind, message) = match &error {
        sqlx::Error::Configuration(why) if why.to_string().contains("saslprep") => {
            return DbError::new(DbErrorKind::Other, UNFIT_LOGIN);
        }
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

/// The error of a connection attempt, with the address. `files` are those of its certificates, which
/// the driver reads while it connects over TCP. `classify` is the dialect's own.
pub(super) fn at_connect(
    error: sqlx::Error,
    address: &str,
    files: &[PathBuf],
    classify: fn(sqlx::Error) -> DbError,
) -> DbError {
    if matches!(error, sqlx::Error::Database(_)) {
        let error = classify(error);
        let why = format!("{address} refused the connection: {error}");
        return DbError::new(error.kind(), why).with_source(error);
    }
    if matches!(error, sqlx::Error::Configuration(_)) {
        let error = classify(error);
        let why = format!("{address} cannot be used: {error}");
        return DbError::new(DbErrorKind::Unavailable, why).with_source(error).into_mistake();
    }
    let unavailable = |why| DbError::new(DbErrorKind::Unavailable, why);
    match mistake(&error, address, files) {
        Some(why) => unavailable(why).into_mistake(),
        None => unavailable(format!("{address} is not to be reached: {error}")),
    }
    .with_source(error)
}

/// What is wrong with the encryption, if that is why there is no connection.
fn mistake(error: &sqlx::Error, address: &str, files: &[PathBuf]) -> Option<String> {
    let is_missing = |kind| {
        matches!(kind, ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::IsADirectory)
    };
    match error {
        // The driver could not read one of the files, and does not say which.
        sqlx::Error::Io(io) if is_missing(io.kind()) => files.iter().find_map(|file| {
            let (why, file) = (std::fs::read(file).err()?, file.display());
            Some(format!("the certificates for {address} cannot be read from `{file}`: {why}"))
        }),
        // What rustls does not accept: mostly the server's certificate.
        sqlx::Error::Io(io) if io.kind() != ErrorKind::InvalidData => None,
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) => Some(format!(
            "no encrypted connection to {address}: {error}; see `tls-mode`, `tls-root-cert` and the certificate of the server"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    /// A log may show causes, and the driver's own error shows a character.
    #[test]
    fn the_error_of_a_login_that_the_driver_refuses_has_no_cause() {
        let why = "Failed to saslprep password: ProhibitedCharacter('x')";
        let error = classify_client_error(sqlx::Error::Configuration(why.into()));
        assert!(error.source().is_none() && error.to_string().contains("SASLprep"), "{error:?}");
    }
}
