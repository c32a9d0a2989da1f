//! Classifies errors by their SQLSTATE.

use std::path::PathBuf;

use sqlx::postgres::PgDatabaseError;

use crate::db::sqlx_error::{self, classify_client_error};
use crate::db::{DbError, DbErrorKind};

fn kind(code: &str) -> DbErrorKind {
    use DbErrorKind as K;
    match code {
        "23505" => K::UniqueViolation,
        // A server from version 18 on says of `ON DELETE RESTRICT` that it is a violation of its own kind.
        "23503" | "23001" => K::ForeignKeyViolation,
        "23502" => K::NotNullViolation,
        "23514" | "23P01" => K::CheckViolation,
        "40P01" => K::Deadlock,
        "40001" => K::Serialization,
        "55P03" => K::LockTimeout,
        "57014" => K::StatementTimeout,
        "22001" | "22003" | "22007" | "22008" | "22021" | "22P02" | "22P05" => K::ValueOutOfRange,
        "42P01" | "3F000" => K::UndefinedTable,
        "42703" => K::UndefinedColumn,
        "25006" => K::ReadOnly,
        "42501" => K::Denied,
        // Shutting down, starting up, crashed, no connections left, terminated.
        "57P01" | "57P02" | "57P03" | "53300" | "57P05" | "25P03" | "25P04" => K::Unavailable,
        code if code.starts_with("08") => K::Unavailable,
        code if code.starts_with("28") => K::Denied,
        _ => K::Other,
    }
}

/// A statement is refused because an earlier one of its transaction failed.
pub(super) const IN_FAILED_TRANSACTION: &str = "25P02";

pub(super) fn has_code(error: &sqlx::Error, code: &str) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|its| its == code)
}

/// Whether the columns of a prepared statement have changed their types since it was prepared.
/// The code alone means any feature that is not supported.
pub(super) fn is_outdated(error: &sqlx::Error) -> bool {
    let routine = || match error {
        sqlx::Error::Database(error) => error.try_downcast_ref::<PgDatabaseError>()?.routine(),
        _ => None,
    };
    has_code(error, "0A000") && routine() == Some("RevalidateCachedQuery")
}

pub(super) fn classify(error: sqlx::Error) -> DbError {
    match error {
        sqlx::Error::Database(error) => {
            let (constraint, table) = match error.try_downcast_ref::<PgDatabaseError>() {
                Some(error) => {
                    (error.constraint().map(str::to_owned), error.table().map(str::to_owned))
                }
                None => (None, None),
            };
            let code = error.code().unwrap_or_default().into_owned();
            DbError::new(kind(&code), message_of(&code, error.message()))
                .with_code(code)
                .with_constraint(constraint)
                .with_table(table)
        }
        error => classify_client_error(error),
    }
}

/// The server names neither the role nor what to do.
fn message_of(code: &str, message: &str) -> String {
    match code {
        "42501" => format!(
            "{message}: grant it to the user of this connection; the guide lists the grants under \"The framework's tables\""
        ),
        _ => message.to_owned(),
    }
}

pub(super) fn at_connect(error: sqlx::Error, address: &str, files: &[PathBuf]) -> DbError {
    sqlx_error::at_connect(error, address, files, classify)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_still_referred_to_violates_a_foreign_key() {
        for code in ["23503", "23001"] {
            assert_eq!(kind(code), DbErrorKind::ForeignKeyViolation, "{code}");
        }
    }

    #[test]
    fn a_role_without_rights_is_told_where_the_grants_are() {
        let denied = message_of("42501", "permission denied for table nodes");
        assert!(denied.starts_with("permission denied for table nodes: grant it to"), "{denied}");
        assert_eq!(message_of("42P01", "there is none"), "there is none");
    }

    #[test]
    fn a_timeout_that_ends_the_session_makes_it_unavailable() {
        for code in ["25P03", "25P04", "57P05"] {
            assert_eq!(kind(code), DbErrorKind::Unavailable, "{code}");
        }
    }
}
