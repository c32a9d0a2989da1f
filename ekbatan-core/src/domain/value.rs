//! The neutral form of a field on its way to a database and back.

use chrono::{DateTime, NaiveDate, Utc};
use rust_decimal::Decimal;
use uuid::Uuid;

/// One field of one row, as every dialect understands it.
///
/// Timestamps are in UTC and carry microseconds at most; JSON is its text.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// SQL `NULL`.
    Null,
    /// A truth value.
    Bool(bool),
    /// Every integer type of Rust that fits 64 signed bits.
    Int(i64),
    /// `f32` and `f64`.
    Float(f64),
    /// Text, and enums, which are stored as text.
    Text(String),
    /// Raw bytes.
    Bytes(Vec<u8>),
    /// A UUID, native where the database has it.
    Uuid(Uuid),
    /// An exact decimal; as text where the database has no exact type.
    Decimal(Decimal),
    /// A calendar date.
    Date(NaiveDate),
    /// An instant, to the microsecond.
    Timestamp(DateTime<Utc>),
    /// A JSON document, as its text.
    Json(String),
}

/// The type of a column, known at compile time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

    /// What the value is, for error messages.
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
