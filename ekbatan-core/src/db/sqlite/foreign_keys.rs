//! Migrations run without foreign keys.
//!
//! What `ALTER TABLE` cannot change, a script changes by building the table anew. With foreign keys,
//! the `DROP TABLE` of the old one would delete or change the rows that refer to it, and a script
//! cannot switch them off: `PRAGMA foreign_keys` has no effect within a transaction. So they are off
//! from the beginning, and the references are checked before the commit.

use sqlx::Connection as _;

use super::connection::SqliteConnection;
use super::error::classify;
use crate::db::{Connection, DbError, DbErrorKind};

/// A table, the table that it refers to, and how many of its rows refer to a row that is not there.
type Orphans = (String, String, i64);

impl SqliteConnection {
    pub(super) async fn begin_without_foreign_keys(&mut self) -> Result<(), DbError> {
        self.writing = Some(self.writer_lock.acquire().await?);
        self.script("PRAGMA foreign_keys = OFF; BEGIN IMMEDIATE").await
    }

    pub(super) async fn end_with_foreign_keys(&mut self, commit: bool) -> Result<(), DbError> {
        let end = if commit { "COMMIT" } else { "ROLLBACK" };
        self.script(&format!("{end}; PRAGMA foreign_keys = ON")).await?;
        self.writing = None;
        Ok(())
    }

    /// Fails if more rows refer to a row that is not there than before the migration. All tables
    /// count together, because a script may rename one.
    pub(super) async fn check_foreign_keys(&mut self) -> Result<(), DbError> {
        let after = orphans(&mut self.inner).await;
        // Most databases have none, and what was there before need not be looked up.
        if after.as_ref().is_ok_and(Vec::is_empty) {
            return Ok(());
        }
        // Another connection sees the database as it was before.
        let mut other =
            sqlx::SqliteConnection::connect_with(&self.options).await.map_err(classify)?;
        let before = orphans(&mut other).await;
        other.close().await.map_err(classify)?;
        let before = match before {
            Ok(before) => before,
            Err(error) => {
                // As when a key refers to a column that is not unique. The script did not cause it.
                tracing::warn!(%error, "the foreign keys could not be checked after a migration, as before it");
                return Ok(());
            }
        };
        let after = after?;
        let all = |orphans: &[Orphans]| orphans.iter().map(|(.., rows)| rows).sum::<i64>();
        if all(&after) <= all(&before) {
            return Ok(());
        }
        for (table, parent, rows) in after {
            let is_same = |(of, to, _): &&Orphans| *of == table && *to == parent;
            let had = before.iter().find(is_same).map_or(0, |(.., rows)| *rows);
            if rows > had {
                let more = rows - had;
                let why = format!(
                    "{more} row(s) of `{table}` would refer to rows of `{parent}` that are not there; foreign keys are off while a migration \
                     runs, and ON DELETE has no effect: let the script delete or change these rows, too"
                );
                return Err(DbError::new(DbErrorKind::ForeignKeyViolation, why));
            }
        }
        Ok(())
    }
}

async fn orphans(connection: &mut sqlx::SqliteConnection) -> Result<Vec<Orphans>, DbError> {
    let sql = "SELECT \"table\", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2";
    sqlx::query_as(sql).fetch_all(connection).await.map_err(classify)
}
