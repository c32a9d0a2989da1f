//! Converts values to and from PostgreSQL's types.

use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};
use rust_decimal::Decimal;
use serde_json::value::RawValue;
use sqlx::postgres::{PgArguments, PgRow, PgValueFormat};
use sqlx::types::Json;
use sqlx::{Arguments, Row, TypeInfo, ValueRef};
use uuid::Uuid;

use super::numeric::ExactDecimal;
use super::range::check;
use crate::db::{Arg, DbError, DbErrorKind, Query};
use crate::domain::{ColumnDef, Value, ValueType};

/// Binds a value as the wire type of `ty`.
pub(super) fn bind(
    arguments: &mut PgArguments,
    ty: ValueType,
    value: &Value,
) -> Result<(), DbError> {
    check(value)?;
    let added = match (ty, value) {
        (ValueType::Bool, Value::Bool(v)) => arguments.add(v),
        (ValueType::Bool, Value::Null) => arguments.add(None::<bool>),
        (ValueType::Int, Value::Int(v)) => arguments.add(v),
        (ValueType::Int, Value::Null) => arguments.add(None::<i64>),
        (ValueType::Float, Value::Float(v)) => arguments.add(v),
        (ValueType::Float, Value::Null) => arguments.add(None::<f64>),
        (ValueType::Text, Value::Text(v)) | (ValueType::Json, Value::Json(v)) => {
            arguments.add(v.as_str())
        }
        (ValueType::Text | ValueType::Json, Value::Null) => arguments.add(None::<&str>),
        (ValueType::Bytes, Value::Bytes(v)) => arguments.add(v.as_slice()),
        (ValueType::Bytes, Value::Null) => arguments.add(None::<&[u8]>),
        (ValueType::Uuid, Value::Uuid(v)) => arguments.add(v),
        (ValueType::Uuid, Value::Null) => arguments.add(None::<Uuid>),
        (ValueType::Decimal, Value::Decimal(v)) => arguments.add(v),
        (ValueType::Decimal, Value::Null) => arguments.add(None::<Decimal>),
        (ValueType::Date, Value::Date(v)) => arguments.add(v),
        (ValueType::Date, Value::Null) => arguments.add(None::<NaiveDate>),
        (ValueType::Timestamp, Value::Timestamp(v)) => arguments.add(v.naive_utc()),
        (ValueType::Timestamp, Value::Null) => arguments.add(None::<NaiveDateTime>),
        (ty, value) => return Err(confused(ty, value)),
    };
    added.map_err(unencodable)
}

/// Binds a list of values as an array of the wire type of `ty`.
pub(super) fn bind_many<'v>(
    arguments: &mut PgArguments,
    ty: ValueType,
    values: impl Iterator<Item = &'v Value>,
) -> Result<(), DbError> {
    macro_rules! array {
        ($variant:ident, $as:ty, $convert:expr) => {{
            let mut array: Vec<Option<$as>> = Vec::with_capacity(values.size_hint().0);
            for value in values {
                check(value)?;
                array.push(match value {
                    Value::$variant(value) => Some($convert(value)),
                    Value::Null => None,
                    other => return Err(confused(ty, other)),
                });
            }
            arguments.add(array)
        }};
    }
    let added = match ty {
        ValueType::Bool => array!(Bool, bool, |v: &bool| *v),
        ValueType::Int => array!(Int, i64, |v: &i64| *v),
        ValueType::Float => array!(Float, f64, |v: &f64| *v),
        ValueType::Text => array!(Text, &str, String::as_str),
        ValueType::Json => array!(Json, &str, String::as_str),
        ValueType::Bytes => array!(Bytes, &[u8], Vec::as_slice),
        ValueType::Uuid => array!(Uuid, Uuid, |v: &Uuid| *v),
        ValueType::Decimal => array!(Decimal, Decimal, |v: &Decimal| *v),
        ValueType::Date => array!(Date, NaiveDate, |v: &NaiveDate| *v),
        ValueType::Timestamp => array!(Timestamp, NaiveDateTime, |v: &DateTime<Utc>| v.naive_utc()),
    };
    added.map_err(unencodable)
}

pub(super) fn bind_args(query: &Query) -> Result<PgArguments, DbError> {
    let mut arguments = PgArguments::default();
    for arg in &query.args {
        bind_arg(&mut arguments, arg)?;
    }
    Ok(arguments)
}

pub(super) fn bind_arg(arguments: &mut PgArguments, arg: &Arg) -> Result<(), DbError> {
    match arg {
        Arg::One(ty, value) => bind(arguments, *ty, value),
        Arg::Many(ty, values) => bind_many(arguments, *ty, values.iter()),
    }
}

/// Decodes a row's values as the types of `columns`.
pub(super) fn decode(row: &PgRow, columns: &[ColumnDef]) -> Result<Vec<Value>, DbError> {
    columns
        .iter()
        .enumerate()
        .map(|(position, column)| {
            value(row, position, column.ty)
                .map_err(|error| DbError::misfit(column.name, &error).with_source(error))
        })
        .collect()
}

fn value(row: &PgRow, at: usize, ty: ValueType) -> Result<Value, sqlx::Error> {
    let raw = row.try_get_raw(at)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    let of = raw.type_info().into_owned();
    // The answer to a text without arguments.
    let is_text = raw.format() == PgValueFormat::Text;
    Ok(match ty {
        ValueType::Bool => Value::Bool(row.try_get(at)?),
        ValueType::Int => Value::Int(match of.name() {
            "INT2" => row.try_get::<i16, _>(at)?.into(),
            "INT4" => row.try_get::<i32, _>(at)?.into(),
            _ => row.try_get(at)?,
        }),
        ValueType::Float => Value::Float(match of.name() {
            "FLOAT4" => row.try_get::<f32, _>(at)?.into(),
            _ => row.try_get(at)?,
        }),
        ValueType::Text => Value::Text(text(row, at)?),
        ValueType::Bytes => Value::Bytes(row.try_get(at)?),
        ValueType::Uuid => Value::Uuid(row.try_get(at)?),
        ValueType::Decimal => Value::Decimal(row.try_get::<ExactDecimal, _>(at)?.0),
        ValueType::Date if is_text => Value::Date(row.try_get_unchecked(at)?),
        ValueType::Date => {
            let days = row.try_get_unchecked::<i32, _>(at)?;
            let days = days.checked_add(EPOCH_DAYS).and_then(NaiveDate::from_num_days_from_ce_opt);
            Value::Date(days.ok_or_else(beyond)?)
        }
        ValueType::Timestamp if is_text => {
            Value::Timestamp(row.try_get_unchecked::<NaiveDateTime, _>(at)?.and_utc())
        }
        ValueType::Timestamp => {
            let micros = row.try_get_unchecked::<i64, _>(at)?;
            let micros = micros.checked_add(EPOCH_MICROS);
            let instant = micros.and_then(DateTime::from_timestamp_micros);
            Value::Timestamp(instant.ok_or_else(beyond)?)
        }
        ValueType::Json => {
            Value::Json(row.try_get::<Json<Box<RawValue>>, _>(at)?.0.get().to_owned())
        }
    })
}

/// The server counts from the beginning of the year 2000. These are that date in days of the
/// common era and in microseconds since 1970. sqlx would panic on an overflow of the sums.
const EPOCH_DAYS: i32 = 730_120;
const EPOCH_MICROS: i64 = 946_684_800_000_000;

fn beyond() -> sqlx::Error {
    sqlx::Error::Decode("the database holds infinity, or a date beyond the year 262142".into())
}

/// Text of any textual type. Unchecked, because sqlx does not know the names of enums.
fn text(row: &PgRow, at: usize) -> Result<String, sqlx::Error> {
    row.try_get_unchecked(at)
}

fn confused(ty: ValueType, value: &Value) -> DbError {
    DbError::new(
        DbErrorKind::ValueOutOfRange,
        format!(
            "a field that says it is {} gave {}; mend its `Field` implementation",
            ty.name(),
            value.kind()
        ),
    )
}

fn unencodable(error: sqlx::error::BoxDynError) -> DbError {
    DbError::new(DbErrorKind::ValueOutOfRange, format!("a value cannot be sent: {error}"))
}
