//! A read on its way to a database.

use std::borrow::Cow;
use std::sync::Arc;

use crate::domain::{ColumnDef, Value, ValueType};

/// An argument of a query.
#[derive(Debug, Clone)]
pub enum Arg {
    /// One value of a type.
    One(ValueType, Value),
    /// A list of values of a type, none of them null.
    Many(ValueType, Vec<Value>),
}

/// A `SELECT` with its arguments (`$1`, `$2`, ...) and the columns that it answers.
#[derive(Debug, Clone)]
pub struct Query {
    /// The statement.
    pub sql: Arc<str>,
    /// Its arguments, `$1` first.
    pub args: Vec<Arg>,
    /// What it answers.
    pub columns: Cow<'static, [ColumnDef]>,
}
