//! What runs the statements of a commit: the library, or the sqlx connection of an open
//! transaction.

use std::sync::Arc;

use sqlx::AssertSqlSafe;

use super::decode::{Cells, cell, sqlx_arguments};
use super::error::classify;
use super::library::{Library, is_long};
use super::statement::write_row;
use crate::db::{DbError, RowChange};

pub(super) enum StatementRunner<'c> {
    /// Each statement is done when its future is polled first.
    Library(&'c mut Library),
    /// Each statement is one call, which counts as a round trip.
    Sqlx { connection: &'c mut sqlx::SqliteConnection, trips: &'c mut u64 },
}

impl StatementRunner<'_> {
    /// Runs a statement that returns no rows; returns how many rows it changed.
    pub(super) async fn run(&mut self, sql: &str, arguments: Cells) -> Result<u64, DbError> {
        match self {
            Self::Library(library) => library.run(sql, arguments),
            Self::Sqlx { connection, trips } => {
                **trips += 1;
                let is_long = is_long(&arguments);
                sqlx::query_with(AssertSqlSafe(sql), sqlx_arguments(arguments)?)
                    .persistent(!is_long)
                    .execute(&mut **connection)
                    .await
                    .map(|done| done.rows_affected())
                    .map_err(classify)
            }
        }
    }

    /// Runs a query.
    pub(super) async fn rows(
        &mut self,
        sql: &str,
        arguments: Cells,
    ) -> Result<Vec<Cells>, DbError> {
        match self {
            Self::Library(library) => library.rows(sql, arguments),
            Self::Sqlx { connection, trips } => {
                **trips += 1;
                let is_long = is_long(&arguments);
                let rows = sqlx::query_with(AssertSqlSafe(sql), sqlx_arguments(arguments)?)
                    .persistent(!is_long)
                    .fetch_all(&mut **connection)
                    .await
                    .map_err(classify)?;
                let cells = |row| (0..sqlx::Row::len(row)).map(|at| cell(row, at)).collect();
                rows.iter().map(cells).collect()
            }
        }
    }

    /// The text that writes one row. The library keeps it.
    pub(super) fn write_row(&mut self, change: &RowChange) -> Arc<str> {
        match self {
            Self::Library(library) => library.write_row(change),
            Self::Sqlx { .. } => write_row(&change.table, change.kind).into(),
        }
    }
}
