//! The columns of a table in the database, compared with the columns in the code.

use std::sync::{Arc, OnceLock};

use super::{DbError, DbErrorKind, Rules};
use crate::domain::{ColumnDef, Table};

/// A column in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnInfo {
    pub(crate) name: String,
    /// Its type, as the dialect spells it.
    pub(crate) db_type: String,
    /// Precision and scale, if the type has them. A scale below zero is a number of zeros before the
    /// decimal point.
    pub(crate) numeric: Option<(u32, i32)>,
    /// The maximum number of characters of a text, or of fractional digits of a timestamp, if
    /// `db_type` does not contain it.
    pub(crate) length: Option<u32>,
    /// Whether the type is an enum of the application.
    pub(crate) is_enum: bool,
    /// Whether its collation compares texts as if they ended in spaces. MySQL sorts those by their first bytes.
    pub(crate) is_padded: bool,
    pub(crate) nulls: Nulls,
    /// Whether an insert has to name the column: it refuses null, and neither a default nor a
    /// trigger fills it.
    pub(crate) required: bool,
    /// Whether the database computes its values, and refuses every other one.
    pub(crate) is_computed: bool,
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

/// Whether a column can hold null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nulls {
    Refused,
    Allowed,
    /// The column of a view.
    Unknown,
}

impl Nulls {
    pub(crate) fn of(nullable: Option<bool>) -> Self {
        match nullable {
            Some(true) => Nulls::Allowed,
            Some(false) => Nulls::Refused,
            None => Nulls::Unknown,
        }
    }
}

/// The name of a table in a database. SQLite has no schemas, so it is a prefix there.
fn name_in(table: &Table, database: &str) -> String {
    match table.schema {
        Some(schema) if database.starts_with("sqlite:") => format!("{schema}_{}", table.name),
        _ => table.full_name(),
    }
}

/// How the columns of one mapping of a table differ from those of another.
fn differences(other: &Table, this: &Table) -> String {
    let named = |table: &Table, name: &str| {
        table.columns.iter().find(|column| column.name == name).copied()
    };
    let of_this = this.columns.iter().filter_map(|column| match named(other, column.name) {
        None => Some(format!("without `{}`", column.name)),
        Some(of_other) if of_other != *column => Some(format!("another type of `{}`", column.name)),
        Some(_) => None,
    });
    let of_other = other.columns.iter().filter(|column| named(this, column.name).is_none());
    let of_other = of_other.map(|column| format!("with `{}`", column.name));
    let all: Vec<String> = of_this.chain(of_other).collect();
    if all.is_empty() { "in another order".to_owned() } else { all.join(", ") }
}

/// A table whose columns fit the code.
#[derive(Debug)]
pub(crate) struct TableInfo {
    pub(crate) table: &'static Table,
    /// The columns in the database, in the order of `table.columns`.
    pub(crate) columns: Vec<ColumnInfo>,
    /// Why no row can be inserted, one sentence per reason; empty if rows can be inserted. Reads
    /// work all the same.
    pub(super) uninsertable: Vec<String>,
    /// What in the database looks at the changes of rows.
    pub(crate) rules: Rules,
    /// The text of the read of one row by its id, built once.
    pub(super) by_id: OnceLock<Arc<str>>,
    /// The text of the read of several rows by their ids, built once.
    pub(super) by_ids: OnceLock<Arc<str>>,
}

/// Error returned when a table does not fit the code. It lists every difference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// The table is missing.
    #[error(
        "{model}: there is no table `{table}` in {database}; run its migration, in code by `databases.migrate(..)`"
    )]
    #[non_exhaustive]
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
    #[non_exhaustive]
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

impl From<TableError> for DbError {
    /// For the tables of the framework. Those of an application have errors of their own.
    fn from(error: TableError) -> Self {
        match error {
            TableError::Database(error) => error,
            TableError::Schema(error) => {
                DbError::new(DbErrorKind::UndefinedTable, error.to_string())
            }
        }
    }
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
            table: name_in(table, database),
            database: database.to_owned(),
            problems: vec![problem],
        }
    }
}

impl TableInfo {
    /// The column of this name.
    pub(crate) fn column(&self, name: &str) -> Result<&ColumnInfo, DbError> {
        let found = self.columns.iter().find(|column| &*column.name == name);
        found.ok_or_else(|| DbError::misfit(name, "there is none"))
    }

    /// Rejects a second mapping of the table: statements are cached per table, so all code must
    /// map it to the same columns, and events and errors name the model of a row.
    pub(crate) fn check_same(
        &self,
        table: &'static Table,
        database: &str,
    ) -> Result<(), SchemaError> {
        if self.table == table {
            return Ok(());
        }
        let other = self.table.model;
        let is_renamed = *self.table == Table { model: other, ..*table };
        let problem = if is_renamed {
            format!(
                "`{other}` has this table under another name; give both types `name = \"{other}\"`, \
                 because events and errors name the model of a row"
            )
        } else {
            format!(
                "`{other}` has this table with other columns ({}); map it once, or with the same columns",
                differences(self.table, table)
            )
        };
        Err(misfit_of(table, database, vec![problem]))
    }

    /// Compares the columns that were found with those of `table`.
    pub(crate) fn check(
        table: &'static Table,
        found: Vec<ColumnInfo>,
        rules: Rules,
        misfit: impl Fn(&ColumnInfo, crate::domain::ValueType) -> Option<String>,
        database: &str,
    ) -> Result<Self, SchemaError> {
        if found.is_empty() {
            return Err(SchemaError::NoTable {
                model: table.model,
                table: name_in(table, database),
                database: database.to_owned(),
            });
        }
        let mut columns = Vec::with_capacity(table.columns.len());
        let mut problems = Vec::new();
        for wanted in table.columns {
            match found.iter().find(|column| column.name == wanted.name) {
                Some(column) => {
                    problems.extend(misfit(column, wanted.ty));
                    problems.extend(unexpected_null(table, wanted, column));
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
        problems.extend(repeatable_id(table, &found, &rules));
        let mut uninsertable: Vec<String> = not_undone(table, &rules).into_iter().collect();
        uninsertable.extend(columns.iter().filter(|column| column.is_computed).map(computed));
        uninsertable.extend(unfilled(table, &found));
        if problems.is_empty() {
            let (by_id, by_ids) = (OnceLock::new(), OnceLock::new());
            return Ok(Self { table, columns, rules, uninsertable, by_id, by_ids });
        }
        problems.extend(uninsertable);
        Err(misfit_of(table, database, problems))
    }

    /// Rejects a table into which no row can be inserted.
    pub(crate) fn check_insertable(&self, database: &str) -> Result<(), SchemaError> {
        if self.uninsertable.is_empty() {
            Ok(())
        } else {
            Err(misfit_of(self.table, database, self.uninsertable.clone()))
        }
    }

    /// Rejects a table whose engine cannot undo a commit.
    pub(crate) fn check_undone(&self, database: &str) -> Result<(), SchemaError> {
        match not_undone(self.table, &self.rules) {
            Some(problem) => Err(misfit_of(self.table, database, vec![problem])),
            None => Ok(()),
        }
    }

    /// Whether this is a view. Its catalogue does not say whether a column can hold null.
    #[cfg(feature = "sqlite")]
    pub(crate) fn is_view(&self) -> bool {
        self.columns[0].nulls == Nulls::Unknown
    }
}

fn misfit_of(table: &Table, database: &str, problems: Vec<String>) -> SchemaError {
    SchemaError::Columns {
        model: table.model,
        table: name_in(table, database),
        database: database.to_owned(),
        problems,
    }
}

/// The problem of a column that can hold null under a field that cannot.
fn unexpected_null(table: &Table, wanted: &ColumnDef, column: &ColumnInfo) -> Option<String> {
    if wanted.nullable || column.nulls != Nulls::Allowed {
        return None;
    }
    let way_out = if table.user_columns().contains(wanted) {
        "make the field an Option, or declare the column NOT NULL"
    } else {
        "declare the column NOT NULL"
    };
    Some(format!(
        "column `{}` can be NULL, but its field of type {} is no Option; {way_out}",
        wanted.name,
        wanted.ty.name()
    ))
}

/// The problem of an id that two rows may have. A view has no keys of its own.
fn repeatable_id(table: &Table, found: &[ColumnInfo], rules: &Rules) -> Option<String> {
    let id = found.iter().find(|column| column.name == table.columns[0].name)?;
    if rules.has_unique_id || id.nulls == Nulls::Unknown {
        return None;
    }
    Some(format!(
        "column `{}` is in no primary key and no unique index, so two rows may have one id, and each read \
         looks at the whole table; add one of them",
        id.name
    ))
}

/// The problem of a table that keeps what a rejected commit has written.
fn not_undone(table: &Table, rules: &Rules) -> Option<String> {
    let engine = rules.engine_without_transactions.as_ref()?;
    let table = table.full_name();
    Some(format!(
        "table `{table}` is stored by {engine}, which cannot undo a commit; \
         `ALTER TABLE {table} ENGINE=InnoDB` stores it by an engine that can"
    ))
}

/// The problem of a column that no statement may write.
fn computed(column: &ColumnInfo) -> String {
    format!(
        "the database computes column `{}`, so no value can be written to it; \
         leave the field out, or turn it into an ordinary column",
        column.name
    )
}

/// The problems of the columns that have to be filled and that the code does not have.
fn unfilled(table: &Table, found: &[ColumnInfo]) -> Vec<String> {
    let unknown =
        |column: &&ColumnInfo| table.columns.iter().all(|known| known.name != column.name);
    let required = found.iter().filter(|column| column.required).filter(unknown);
    required
        .map(|column| {
            format!(
                "column `{}` is NOT NULL without a default, and the code has no field for it; \
                 add the field, or give the column a default",
                column.name
            )
        })
        .collect()
}
