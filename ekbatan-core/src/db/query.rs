//! A query, its arguments and its rows.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use crate::domain::{ColumnDef, Table, Value, ValueType};

/// The rows of a query; each has one value per column.
pub(crate) type Rows = Vec<Vec<Value>>;

/// An argument of a query. Only PostgreSQL binds arguments by their declared type.
#[cfg_attr(not(feature = "postgres"), allow(dead_code))]
#[derive(Debug, Clone)]
pub(crate) enum Arg {
    One(ValueType, Value),
    /// A list of values, none of them null.
    Many(ValueType, Vec<Value>),
}

/// A statement with its arguments and the columns of its rows.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    pub(crate) sql: Arc<str>,
    /// `$1` first.
    pub(crate) args: Vec<Arg>,
    pub(crate) columns: Columns,
}

/// The columns of the rows of a query. SQLite keeps dates and UUIDs as texts.
#[cfg_attr(not(feature = "sqlite"), allow(dead_code))]
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    columns: Cow<'static, [ColumnDef]>,
    /// Whether a value that a database keeps as text must be spelled as it is compared. Not so where
    /// the framework reads what other programs may have written.
    pub(crate) is_exact: bool,
}

impl Columns {
    /// The columns of a table. Its rows are found again by the values that are read.
    pub(crate) fn of(table: &'static Table) -> Self {
        Self { columns: table.columns.into(), is_exact: true }
    }
}

impl Deref for Columns {
    type Target = [ColumnDef];

    fn deref(&self) -> &[ColumnDef] {
        &self.columns
    }
}

impl<C: Into<Cow<'static, [ColumnDef]>>> From<C> for Columns {
    fn from(columns: C) -> Self {
        Self { columns: columns.into(), is_exact: false }
    }
}
