//! What the database says about a table, held against what the code believes.

use std::sync::{Arc, OnceLock};

use super::DbError;
use crate::domain::Table;

/// A column as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnInfo {
    /// Its name.
    pub name: String,
    /// Its type, in the dialect's words.
    pub db_type: String,
    /// Precision and scale, where the type has them.
    pub numeric: Option<(u32, u32)>,
    /// How many characters a text, or digits of a second a timestamp may have, where
    /// `db_type` does not say so.
    pub length: Option<u32>,
    /// Whether the type is one of the application's own enums.
    pub is_enum: bool,
    /// The tables that its foreign keys refer to, as [`Table::full_name`] writes them; asked
    /// only where the dialect checks each row at once and so has to write parents first.
    pub references: Vec<String>,
}

/// A table whose columns were found in the database, in the code's order.
#[derive(Debug)]
pub(crate) struct TableInfo {
    /// The table as the code sees it.
    pub table: &'static Table,
    /// Each column of `table.columns`, as the database has it.
    pub columns: Vec<ColumnInfo>,
    /// The text of the read by id: the one that every action makes.
    pub(crate) by_id: OnceLock<Arc<str>>,
}

/// A table that is not as the code believes. Every difference is listed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// The table is missing.
    #[error(
        "{model}: there is no table `{table}` in {database}; has its migration run? (`databases.migrate(..)`)"
    )]
    NoTable {
        /// The model.
        model: &'static str,
        /// Its table.
        table: String,
        /// Where it was looked for.
        database: String,
    },
    /// Columns are missing or of a type that cannot hold the field.
    #[error("{model}: table `{table}` in {database} does not fit the code: {}", problems.join("; "))]
    Columns {
        /// The model.
        model: &'static str,
        /// Its table.
        table: String,
        /// Where it was looked at.
        database: String,
        /// One sentence per problem.
        problems: Vec<String>,
    },
}

/// A table could not be looked at, or is not what the code believes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TableError {
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error(transparent)]
    Database(#[from] DbError),
}

impl TableInfo {
    /// Statements are kept per table, so that one table has one shape in the code.
    pub(crate) fn check_same(
        &self,
        table: &'static Table,
        database: &str,
    ) -> Result<(), SchemaError> {
        if self.table == table {
            return Ok(());
        }
        let other = self.table.model;
        Err(SchemaError::Columns {
            model: table.model,
            table: table.full_name(),
            database: database.to_owned(),
            problems: vec![format!("`{other}` has this table with other columns; map it once")],
        })
    }

    /// Holds what `found` says against `table`.
    pub(crate) fn check(
        table: &'static Table,
        found: Vec<ColumnInfo>,
        misfit: impl Fn(&ColumnInfo, crate::domain::ValueType) -> Option<String>,
        database: &str,
    ) -> Result<Self, SchemaError> {
        if found.is_empty() {
            return Err(SchemaError::NoTable {
                model: table.model,
                table: table.full_name(),
                database: database.to_owned(),
            });
        }
        let mut columns = Vec::with_capacity(table.columns.len());
        let mut problems = Vec::new();
        for wanted in table.columns {
            match found.iter().find(|column| column.name == wanted.name) {
                Some(column) => {
                    problems.extend(misfit(column, wanted.ty));
                    columns.push(column.clone());
                }
                None => problems.push(format!(
                    "column `{}` ({}) is missing; the table has {}",
                    wanted.name,
                    wanted.ty.name(),
                    found
                        .iter()
                        .map(|column| format!("`{}`", column.name))
                        .collect::<Vec<_>>()
                        .join(", ")
                )),
            }
        }
        if problems.is_empty() {
            return Ok(Self { table, columns, by_id: OnceLock::new() });
        }
        Err(SchemaError::Columns {
            model: table.model,
            table: table.full_name(),
            database: database.to_owned(),
            problems,
        })
    }
}
