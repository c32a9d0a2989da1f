//! Errors of migrations.

use std::path::PathBuf;

use crate::db::{DbError, Dialect};
use crate::domain::{FieldError, ShardIdentifier};

/// Error returned when not all migrations ran. Those before the failed one stay applied.
///
/// The failed migration leaves nothing behind, except on databases that commit every `CREATE`,
/// `ALTER` and `DROP` by itself, as MySQL and MariaDB do; the error says so
/// ([`Capabilities::atomic_migrations`](crate::db::Capabilities::atomic_migrations)).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrationError {
    /// The folder cannot be read.
    #[error("the migrations in `{}` cannot be read: {source}", folder.display())]
    #[non_exhaustive]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// There are scripts in the folders of other dialects only.
    #[error(
        "there are no migrations for {dialect}: they belong into `{}`, which does not exist, and the folders beside it \
         hold scripts; rename one, or create an empty folder if there is nothing to migrate", folder.display()
    )]
    #[non_exhaustive]
    NoFolder {
        /// The folder that does not exist.
        folder: PathBuf,
        /// The dialect.
        dialect: Dialect,
    },
    /// A file cannot be read.
    #[error("the migration `{}` cannot be read: {source}", path.display())]
    #[non_exhaustive]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file is not UTF-8.
    #[error("the migration `{}` is not UTF-8: see its byte {at}; save it as UTF-8", path.display())]
    #[non_exhaustive]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The number of bytes before the first one that is not UTF-8.
        at: usize,
    },
    /// A script contains a NUL character, which databases refuse or take for the end of the text.
    #[error(
        "migration {version} `{name}` contains a NUL character: see its byte {at}; remove it, or save the file as \
         UTF-8 if it is UTF-16"
    )]
    #[non_exhaustive]
    Nul {
        /// The number.
        version: i64,
        /// The name.
        name: String,
        /// The number of bytes before the first NUL character.
        at: usize,
    },
    /// A file's name has no number.
    #[error("`{}` is no migration's name; call it, for example, 0001_create_wallets.sql", .0.display())]
    Name(PathBuf),
    /// Two scripts have the same number.
    #[error(
        "two migrations have the number {version}: `{first}` and `{second}`; give one of them a number of its own"
    )]
    #[non_exhaustive]
    Twice {
        /// The number.
        version: i64,
        /// The name of the first script.
        first: String,
        /// The name of the second script.
        second: String,
    },
    /// A script has no text for this dialect.
    #[error(
        "migration {version} `{name}` has no text for {dialect}; add one with `script_for`, or one for every dialect with `script`"
    )]
    #[non_exhaustive]
    NoText {
        /// The number.
        version: i64,
        /// The name.
        name: String,
        /// The dialect.
        dialect: Dialect,
    },
    /// A script was changed after it had run.
    #[error(
        "migration {version} `{name}` was changed after it had run on {database}; restore its text and add a new migration instead"
    )]
    #[non_exhaustive]
    Edited {
        /// The number.
        version: i64,
        /// The name.
        name: String,
        /// The database on which it had run.
        database: String,
    },
    /// The script failed, or its commit.
    #[error("migration {version} `{name}` failed on {database}: {source}{}", hint(*.left_nothing, *.can_resume, source.is_connection_lost()))]
    #[non_exhaustive]
    Failed {
        /// The number.
        version: i64,
        /// The name.
        name: String,
        /// The database.
        database: String,
        /// Whether the database rolled the whole script back. If not, the statements before the
        /// one that failed stay applied. If the connection broke at the commit, the next run finds
        /// out whether the script has run.
        left_nothing: bool,
        /// Whether the next run continues behind the statements that stayed: it does in the
        /// framework's own migrations, and in those of a single statement.
        can_resume: bool,
        /// The cause.
        source: DbError,
    },
    /// The script ended the transaction that also stores that it has run. What it committed stays.
    #[error(
        "migration {version} `{name}` ended the transaction that the framework opened for it on {database}, so it is \
         not recorded: {}, correct the script, then migrate anew", undo(*.dialect)
    )]
    #[non_exhaustive]
    EndedTransaction {
        /// The number.
        version: i64,
        /// The name.
        name: String,
        /// The database.
        database: String,
        /// Its dialect.
        dialect: Dialect,
    },
    /// Some shards failed; the others are migrated.
    #[error("{}", .0.iter().map(|(shard, error)| format!("shard {shard}: {error}")).collect::<Vec<_>>().join("\n"))]
    Shards(Vec<(ShardIdentifier, MigrationError)>),
    /// The database failed outside of the scripts.
    #[error(transparent)]
    Database(#[from] DbError),
    /// The record of migrations cannot be read.
    #[error("the record of migrations is damaged: {0}")]
    Record(#[from] FieldError),
}

impl MigrationError {
    pub(super) fn is_connection_lost(&self) -> bool {
        match self {
            Self::Failed { source, .. } | Self::Database(source) => source.is_connection_lost(),
            _ => false,
        }
    }
}

/// What a script must not contain, and how to undo it.
fn undo(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => {
            "a script must not contain COMMIT or ROLLBACK; what it committed stays: undo that by hand"
        }
        _ => {
            "a script must not contain COMMIT, ROLLBACK or PREPARE TRANSACTION; what it committed stays: undo \
             that by hand, and what it prepared by ROLLBACK PREPARED"
        }
    }
}

fn hint(left_nothing: bool, can_resume: bool, is_connection_lost: bool) -> &'static str {
    if left_nothing {
        ""
    } else if can_resume {
        "; when the cause is gone, migrate anew: it continues where it stopped"
    } else if is_connection_lost {
        // It may have broken at the record, or at the commit after it.
        "; its statements that ran stay, as this database commits them one by one, and it may be \
         recorded: see `Databases::migration_status`; if it is not, undo them by hand, or make the \
         script one that can run again, then migrate anew"
    } else {
        "; its statements before the one that failed stay, as this database commits them one by \
         one: undo them by hand, or make the script one that can run again, then migrate anew"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::DbErrorKind;

    /// It is known that a script is not recorded, unless its record may have been the last that was sent.
    #[test]
    fn after_a_lost_connection_the_error_says_to_look_for_the_record() {
        for (kind, may_be_recorded) in
            [(DbErrorKind::Unavailable, true), (DbErrorKind::Denied, false)]
        {
            let error = MigrationError::Failed {
                version: 10,
                name: String::from("list"),
                database: String::from("mysql://h/d"),
                left_nothing: false,
                can_resume: false,
                source: DbError::new(kind, "why"),
            };
            let error = error.to_string();
            assert_eq!(error.contains("`Databases::migration_status`"), may_be_recorded, "{error}");
        }
    }
}
