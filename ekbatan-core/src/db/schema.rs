//! The columns of a table in the database, compared with the columns in the code.

use std::sync::{Arc, OnceLock};

use super::DbError;
use crate::domain::Table;

/// A column in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnInfo {
    pub(crate) name: String,
    /// Its type, as the dialect spells it.
    pub(crate) db_type: String,
    /// Precision and scale, if the type has them.
    pub(crate) numeric: Option<(u32, u32)>,
    /// The maximum number of characters of a text, or of fractional digits of a timestamp, if
    /// `db_type` does not contain it.
    pub(crate) length: Option<u32>,
    /// Whether the type is an enum of the application.
    pub(crate) is_enum: bool,
    /// What its foreign keys refer to. Filled only by dialects that check foreign keys row by
    /// row, and so must write parents first.
    pub(crate) references: Vec<Reference>,
}

/// What a foreign key refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The table, as [`Table::full_name`] writes it.
    pub(crate) table: String,
    /// The table's quoted name, and the column; `None` for a key of several columns.
    pub(crate) column: Option<(String, String)>,
}

/// A table whose columns fit the code.
#[derive(Debug)]
pub(crate) struct TableInfo {
    pub(crate) table: &'static Table,
    /// The columns in the database, in the order of `table.columns`.
    pub(crate) columns: Vec<ColumnInfo>,
    /// The text of the read by id, built once.
    pub(crate) by_id: OnceLock<Arc<str>>,
}

/// Error returned when a table does not fit the code. It lists every difference.
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
        /// The database.
        database: String,
    },
    /// Columns are missing or of a type that cannot hold the field.
    #[error("{model}: table `{table}` in {database} does not fit the code: {}", problems.join("; "))]
    Columns {
        /// The model.
        model: &'static str,
        /// Its table.
        table: String,
        /// The database.
        database: String,
        /// One sentence per difference.
        problems: Vec<String>,
    },
}

/// The columns of a table cannot be read, or do not fit the code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TableError {
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error(transparent)]
    Database(#[from] DbError),
}

impl SchemaError {
    /// A table that another model has under another name.
    pub(super) fn of_two_names(table: &Table, other: &Table, database: &str) -> Self {
        let name = other.full_name();
        let problem = format!(
            "`{}` has this table under the name `{name}`; map it once, and write its name in one way",
            other.model
        );
        SchemaError::Columns {
            model: table.model,
            table: table.full_name(),
            database: database.to_owned(),
            problems: vec![problem],
        }
    }
}

impl TableInfo {
    /// Rejects a second mapping of the table: statements are cached per table, so all code must
    /// map it to the same columns.
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

    /// Compares the columns that were found with those of `table`.
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
