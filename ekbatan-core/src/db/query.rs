//! A read on its way to a database.

use std::borrow::Cow;
use std::sync::Arc;

use super::FenceCheck;
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

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl Query {
    /// What raises a fence and answers a row if it did: key `$1`, token `$2`, for `$3`
    /// microseconds.
    pub(crate) fn raising(fence: &FenceCheck, micros: i64, sql: &'static str) -> Self {
        Self {
            sql: sql.into(),
            args: vec![
                Arg::One(ValueType::Text, Value::Text(fence.key.clone())),
                Arg::One(ValueType::Int, Value::Int(fence.token)),
                Arg::One(ValueType::Int, Value::Int(micros)),
            ],
            columns: vec![ColumnDef::new("token", ValueType::Int)].into(),
        }
    }
}
