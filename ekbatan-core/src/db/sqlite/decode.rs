//! Converts values to and from SQLite's storage classes.

use std::fmt::{Display, Write as _};
use std::sync::Arc;

use chrono::{DateTime, Datelike, NaiveDate, SecondsFormat, Utc};
use rusqlite::types::Value as SqlValue;
use rust_decimal::Decimal;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments, Row, TypeInfo, ValueRef};
use uuid::Uuid;

use super::error::classify;
use super::syntax::{MAX_PARAMETERS, float_list};
use crate::db::{Arg, ColumnInfo, Columns, DbError, DbErrorKind, Query, boolean, too_large};
use crate::domain::{ColumnDef, Value, ValueType};

/// The values of a row, or the arguments of a statement, in SQLite's storage classes.
pub(super) type Cells = Vec<SqlValue>;

/// A timestamp in the form whose order as text is its order in time.
fn timestamp(value: &DateTime<Utc>) -> Result<String, DbError> {
    in_order(value.year(), value)?;
    Ok(value.to_rfc3339_opts(SecondsFormat::Micros, true))
}

/// Whether a text that was read as a timestamp is the one that [`timestamp`] returns.
fn is_sortable(text: &str) -> bool {
    text.len() == "2026-01-31T12:00:00.000000Z".len()
        && text.ends_with('Z')
        && text.as_bytes().get(10) == Some(&b'T')
}

/// Whether a text that was read as a date is the one that [`date`] returns.
fn is_sortable_date(text: &str) -> bool {
    text.len() == "2026-01-31".len()
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

fn date(value: &NaiveDate) -> Result<String, DbError> {
    in_order(value.year(), value)?;
    Ok(value.to_string())
}

fn in_order(year: i32, value: &impl Display) -> Result<(), DbError> {
    if (0..=9999).contains(&year) {
        return Ok(());
    }
    Err(DbError::new(
        DbErrorKind::ValueOutOfRange,
        format!("{value} lies outside the years 0 to 9999, in which SQLite's dates are in order"),
    ))
}

/// Rejects NaN, which SQLite would store as NULL.
fn float(value: f64) -> Result<f64, DbError> {
    if !value.is_nan() {
        return Ok(value);
    }
    Err(DbError::new(
        DbErrorKind::ValueOutOfRange,
        "NaN is no number, and SQLite's floats are all numbers",
    ))
}

/// An argument for a value of a row; an error names the column.
pub(super) fn bind_column(value: &Value, column: &ColumnInfo) -> Result<SqlValue, DbError> {
    bind(value).map_err(|error| error.in_column(&column.name))
}

pub(super) fn bind(value: &Value) -> Result<SqlValue, DbError> {
    Ok(match value {
        Value::Null => SqlValue::Null,
        Value::Bool(v) => SqlValue::Integer(i64::from(*v)),
        Value::Int(v) => SqlValue::Integer(*v),
        Value::Float(v) => SqlValue::Real(float(*v)?),
        Value::Text(v) | Value::Json(v) => SqlValue::Text(v.clone()),
        Value::Bytes(v) => SqlValue::Blob(v.clone()),
        Value::Uuid(v) => SqlValue::Text(v.to_string()),
        Value::Decimal(v) => SqlValue::Text(v.to_string()),
        Value::Date(v) => SqlValue::Text(date(v)?),
        Value::Timestamp(v) => SqlValue::Text(timestamp(v)?),
    })
}

/// The same arguments for sqlx.
pub(super) fn sqlx_arguments(cells: Cells) -> Result<SqliteArguments, DbError> {
    let mut arguments = SqliteArguments::default();
    for cell in cells {
        let added = match cell {
            SqlValue::Null => arguments.add(None::<i64>),
            SqlValue::Integer(v) => arguments.add(v),
            SqlValue::Real(v) => arguments.add(v),
            SqlValue::Text(v) => arguments.add(v),
            SqlValue::Blob(v) => arguments.add(v),
        };
        added.map_err(|e| {
            DbError::new(DbErrorKind::ValueOutOfRange, format!("a value cannot be sent: {e}"))
        })?;
    }
    Ok(arguments)
}

/// A query and its arguments. Lists of floats become further parameters at the end.
pub(super) fn bind_query(query: &Query) -> Result<(Arc<str>, Cells), DbError> {
    let mut sql = query.sql.clone();
    let mut arguments = Vec::new();
    let mut floats: Vec<&Value> = Vec::new();
    for (n, arg) in (1..).zip(&query.args) {
        let Arg::Many(ValueType::Float, values) = arg else {
            arguments.push(bind_arg(arg)?);
            continue;
        };
        arguments.push(SqlValue::Null);
        let first = query.args.len() + floats.len() + 1;
        let marks: Vec<String> = (first..first + values.len()).map(|n| format!("${n}")).collect();
        let parameters = first + marks.len() - 1;
        if parameters > MAX_PARAMETERS {
            return Err(too_large(format!(
                "the query has {parameters} parameters, and SQLite takes {MAX_PARAMETERS} at most; each float of a list counts as one parameter"
            )));
        }
        // With the parentheses, so that `$1` does not match the beginning of `$10`.
        sql =
            sql.replace(&format!("({})", float_list(n)), &format!("({})", marks.join(", "))).into();
        floats.extend(values);
    }
    for value in floats {
        arguments.push(bind(value)?);
    }
    Ok((sql, arguments))
}

fn bind_arg(arg: &Arg) -> Result<SqlValue, DbError> {
    match arg {
        Arg::One(_, value) => bind(value),
        Arg::Many(_, values) => {
            let list = values.iter().map(element).collect::<Result<Vec<_>, _>>()?;
            Ok(SqlValue::Text(serde_json::Value::Array(list).to_string()))
        }
    }
}

/// An element of a list as JSON, in the form in which the column stores it.
fn element(value: &Value) -> Result<serde_json::Value, DbError> {
    Ok(match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(v) => i64::from(*v).into(),
        Value::Int(v) => (*v).into(),
        Value::Float(v) => float(*v)?.into(),
        Value::Text(v) | Value::Json(v) => v.as_str().into(),
        Value::Bytes(v) => v
            .iter()
            .fold(String::with_capacity(v.len() * 2), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            })
            .into(),
        Value::Uuid(v) => v.to_string().into(),
        Value::Decimal(v) => v.to_string().into(),
        Value::Date(v) => date(v)?.into(),
        Value::Timestamp(v) => timestamp(v)?.into(),
    })
}

/// Decodes a row's values as the types of `columns`.
pub(super) fn decode(row: &SqliteRow, columns: &Columns) -> Result<Vec<Value>, DbError> {
    let cells = (0..columns.len()).map(|at| cell(row, at)).collect::<Result<_, _>>()?;
    decode_cells(cells, columns)
}

/// Like [`decode`].
pub(super) fn decode_cells(cells: Cells, columns: &Columns) -> Result<Vec<Value>, DbError> {
    let value = |(cell, column): (SqlValue, &ColumnDef)| {
        value(cell, column.ty, columns.is_exact)
            .map_err(|reason| DbError::misfit(column.name, reason))
    };
    cells.into_iter().zip(columns.iter()).map(value).collect()
}

/// A value of a row of sqlx.
pub(super) fn cell(row: &SqliteRow, at: usize) -> Result<SqlValue, DbError> {
    let raw = row.try_get_raw(at).map_err(classify)?;
    if raw.is_null() {
        return Ok(SqlValue::Null);
    }
    let cell = match raw.type_info().name() {
        "INTEGER" => row.try_get_unchecked(at).map(SqlValue::Integer),
        "REAL" => row.try_get_unchecked(at).map(SqlValue::Real),
        "TEXT" => row.try_get_unchecked(at).map(SqlValue::Text),
        _ => row.try_get_unchecked(at).map(SqlValue::Blob),
    };
    cell.map_err(classify)
}

fn class(cell: &SqlValue) -> &'static str {
    match cell {
        SqlValue::Null => "NULL",
        SqlValue::Integer(_) => "INTEGER",
        SqlValue::Real(_) => "REAL",
        SqlValue::Text(_) => "TEXT",
        SqlValue::Blob(_) => "BLOB",
    }
}

/// The problem of a text that is compared in another spelling.
fn misspelt(stored: &str, canonical: impl Display) -> String {
    format!(
        "`{stored}` has to be written `{canonical}`, because SQLite compares the text; update the rows that have another spelling"
    )
}

/// With `is_exact`, a text must have the spelling in which it is compared. Otherwise its row would not
/// be found by its id, and pages would lose or repeat it.
fn value(cell: SqlValue, ty: ValueType, is_exact: bool) -> Result<Value, String> {
    Ok(match (ty, cell) {
        (_, SqlValue::Null) => Value::Null,
        (ValueType::Bool, SqlValue::Integer(v)) => boolean(v)?,
        (ValueType::Int, SqlValue::Integer(v)) => Value::Int(v),
        (ValueType::Float, SqlValue::Integer(v)) => Value::Float(v as f64),
        (ValueType::Float, SqlValue::Real(v)) => Value::Float(v),
        (ValueType::Bytes, SqlValue::Blob(v)) => Value::Bytes(v),
        (ValueType::Bytes, SqlValue::Text(v)) => Value::Bytes(v.into_bytes()),
        (ValueType::Text, SqlValue::Text(v)) => Value::Text(v),
        (ValueType::Json, SqlValue::Text(v)) => Value::Json(v),
        (ValueType::Uuid, SqlValue::Text(v)) => {
            let uuid = v.parse::<Uuid>().map_err(|e| format!("`{v}` is no UUID: {e}"))?;
            if is_exact && v != *uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) {
                return Err(misspelt(&v, uuid));
            }
            Value::Uuid(uuid)
        }
        (ValueType::Decimal, SqlValue::Text(v)) => Value::Decimal(
            Decimal::from_str_exact(&v)
                .map_err(|e| format!("`{v}` is no decimal that fits: {e}"))?,
        ),
        (ValueType::Date, SqlValue::Text(v)) => {
            let day: NaiveDate = v.parse().map_err(|e| format!("`{v}` is no date: {e}"))?;
            if is_exact && !is_sortable_date(&v) {
                return Err(misspelt(&v, date(&day).map_err(|e| e.to_string())?));
            }
            Value::Date(day)
        }
        (ValueType::Timestamp, SqlValue::Text(v)) => {
            let parsed = DateTime::parse_from_rfc3339(&v).map_err(|e| {
                format!("`{v}` is no timestamp such as 2026-01-31T12:00:00.000000Z: {e}")
            })?;
            let parsed = parsed.to_utc();
            if is_exact && !is_sortable(&v) {
                return Err(misspelt(&v, timestamp(&parsed).map_err(|e| e.to_string())?));
            }
            Value::Timestamp(parsed)
        }
        (ty, cell) => {
            let expected = match ty {
                ValueType::Bool | ValueType::Int => "an integer",
                ValueType::Float => "a float",
                ValueType::Bytes => "bytes",
                _ => "text",
            };
            let class = class(&cell);
            return Err(format!("the database holds {class} where the code expects {expected}"));
        }
    })
}
