//! The neutral form of a field between Rust and a database.

use chrono::{DateTime, NaiveDate, Utc};
use rust_decimal::Decimal;
use uuid::Uuid;

/// One field of one row, independent of the dialect.
///
/// Timestamps are in UTC with a precision of microseconds. JSON is stored as its text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// SQL `NULL`.
    Null,
    /// A boolean.
    Bool(bool),
    /// Every integer that fits into a signed 64-bit integer.
    Int(i64),
    /// `f32` and `f64`.
    Float(f64),
    /// Text, and enums, which are stored as text.
    Text(String),
    /// Raw bytes.
    Bytes(Vec<u8>),
    /// A UUID. Stored natively if the database has the type.
    Uuid(Uuid),
    /// An exact decimal. Stored as text if the database has no exact type.
    Decimal(Decimal),
    /// A calendar date.
    Date(NaiveDate),
    /// An instant, in microseconds.
    Timestamp(DateTime<Utc>),
    /// A JSON document, as its text.
    Json(String),
}

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ValueType {
    /// See [`Value::Bool`].
    Bool,
    /// See [`Value::Int`].
    Int,
    /// See [`Value::Float`].
    Float,
    /// See [`Value::Text`].
    Text,
    /// See [`Value::Bytes`].
    Bytes,
    /// See [`Value::Uuid`].
    Uuid,
    /// See [`Value::Decimal`].
    Decimal,
    /// See [`Value::Date`].
    Date,
    /// See [`Value::Timestamp`].
    Timestamp,
    /// See [`Value::Json`].
    Json,
}

impl Value {
    /// Whether this is SQL `NULL`.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The kind of the value, for error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Int(_) => "integer",
            Value::Float(_) => "float",
            Value::Text(_) => "text",
            Value::Bytes(_) => "bytes",
            Value::Uuid(_) => "uuid",
            Value::Decimal(_) => "decimal",
            Value::Date(_) => "date",
            Value::Timestamp(_) => "timestamp",
            Value::Json(_) => "json",
        }
    }
}

impl ValueType {
    /// The type's name, for error messages.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::Bool => "bool",
            ValueType::Int => "integer",
            ValueType::Float => "float",
            ValueType::Text => "text",
            ValueType::Bytes => "bytes",
            ValueType::Uuid => "uuid",
            ValueType::Decimal => "decimal",
            ValueType::Date => "date",
            ValueType::Timestamp => "timestamp",
            ValueType::Json => "json",
        }
    }
}
