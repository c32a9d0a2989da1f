//! A query, its arguments and its rows.

use std::borrow::Cow;
use std::sync::Arc;

use crate::domain::{ColumnDef, Value, ValueType};

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
    pub(crate) columns: Cow<'static, [ColumnDef]>,
}
