//! Classifies errors by the servers' error numbers.

use std::path::PathBuf;

use sqlx::mysql::MySqlDatabaseError;

use crate::db::sqlx_error::{self, classify_client_error};
use crate::db::{DbError, DbErrorKind};

/// The error of a commit's guard: a subquery returned two rows where one is allowed.
pub(super) const GUARD: &str = "1242";

/// A savepoint (or another object) does not exist.
pub(super) const NO_SAVEPOINT: &str = "1305";

/// The session to kill does not exist any more.
pub(super) const NO_SUCH_SESSION: &str = "1094";

fn kind(number: u16) -> DbErrorKind {
    use DbErrorKind as K;
    match number {
        1022 | 1062 | 1169 | 1557 | 1586 | 1761 | 1762 => K::UniqueViolation,
        1216 | 1217 | 1451 | 1452 => K::ForeignKeyViolation,
        1048 | 1263 | 1364 | 1566 => K::NotNullViolation,
        3819 | 4025 => K::CheckViolation,
        1213 | 3058 => K::Deadlock,
        // MariaDB: the snapshot is too old; a cluster rejected the commit.
        1020 | 3101 => K::Serialization,
        1205 | 3572 => K::LockTimeout,
        1317 | 1969 | 3024 => K::StatementTimeout,
        // Out of range, too long, wrong type, no date, no JSON, no UTF-8, too large for a packet.
        1153 | 1264 | 1265 | 1292 | 1300 | 1366 | 1367 | 1406 | 1411 | 1441 | 1525 | 1690
        | 3140 | 3141 | 3157 => K::ValueOutOfRange,
        1049 | 1109 | 1146 => K::UndefinedTable,
        1054 => K::UndefinedColumn,
        1290 | 1792 | 1836 => K::ReadOnly,
        1044 | 1045 | 1130 | 1142 | 1143 | 1227 | 1370 | 1698 | 1820 | 1862 | 3118 => K::Denied,
        // No connections left, shutting down, killed, closed after being idle.
        1040
        | 1053
        | 1077
        | 1079
        | 1080
        | 1129
        | 1152
        | 1158..=1161
        | 1184
        | 1203
        | 1927
        | 2006
        | 2013
        | 3169
        | 4031 => K::Unavailable,
        _ => K::Other,
    }
}

pub(super) fn classify(error: sqlx::Error) -> DbError {
    match error {
        sqlx::Error::Database(error) => {
            let number = error.try_downcast_ref::<MySqlDatabaseError>().map(|e| e.number());
            let kind = number.map_or(DbErrorKind::Other, kind);
            let constraint = constraint(kind, error.message()).map(str::to_owned);
            DbError::new(kind, error.message())
                .with_code(number.unwrap_or_default().to_string())
                .with_constraint(constraint)
        }
        error => classify_client_error(error),
    }
}

/// The name of the violated constraint. The protocol has no field for it, so it is taken from the
/// message; the kind of the error is derived from the number alone.
fn constraint(kind: DbErrorKind, message: &str) -> Option<&str> {
    match kind {
        // Duplicate entry '..' for key 'things.label_key', on MariaDB 'label_key'. The value
        // before the key may contain anything.
        DbErrorKind::UniqueViolation => {
            let key = message.rsplit_once("for key '")?.1.strip_suffix('\'')?;
            Some(key.split_once('.').map_or(key, |(_, key)| key))
        }
        // .. (`db`.`things`, CONSTRAINT `zone_fkey` FOREIGN KEY ..)
        DbErrorKind::ForeignKeyViolation => between(message, "CONSTRAINT `", "`"),
        // Check constraint 'small_check' is violated. / CONSTRAINT `small_check` failed ..
        DbErrorKind::CheckViolation => {
            between(message, "constraint '", "'").or_else(|| between(message, "CONSTRAINT `", "`"))
        }
        _ => None,
    }
}

fn between<'m>(message: &'m str, before: &str, after: &str) -> Option<&'m str> {
    message.split_once(before)?.1.split_once(after).map(|(name, _)| name)
}

pub(super) fn at_connect(error: sqlx::Error, address: &str, files: &[PathBuf]) -> DbError {
    sqlx_error::at_connect(error, address, files, classify)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constraint_is_found_in_the_messages_of_both_servers() {
        let unique = DbErrorKind::UniqueViolation;
        for (kind, message, name) in [
            (unique, "Duplicate entry 'a' for key 'things.label_key'", Some("label_key")),
            (unique, "Duplicate entry 'for key 'x'' for key 'label_key'", Some("label_key")),
            (unique, "Duplicate entry '1' for key 'things.PRIMARY'", Some("PRIMARY")),
            (
                DbErrorKind::ForeignKeyViolation,
                "Cannot add or update a child row: a foreign key constraint fails (`d`.`things`, \
                 CONSTRAINT `zone_fkey` FOREIGN KEY (`zone`) REFERENCES `zones` (`id`))",
                Some("zone_fkey"),
            ),
            (DbErrorKind::CheckViolation, "Check constraint 'c' is violated.", Some("c")),
            (DbErrorKind::CheckViolation, "CONSTRAINT `c` failed for `d`.`things`", Some("c")),
            (DbErrorKind::Deadlock, "Deadlock found for key 'x'", None),
        ] {
            assert_eq!(constraint(kind, message), name, "{message}");
        }
    }
}
