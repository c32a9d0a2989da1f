//! Converts values to and from SQLite's storage classes.

use std::fmt::Write as _;
use std::sync::Arc;

use chrono::{DateTime, Datelike, NaiveDate, SecondsFormat, Utc};
use rust_decimal::Decimal;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments, Row, TypeInfo, ValueRef};
use uuid::Uuid;

use super::statement::MAX_PARAMETERS;
use super::syntax::float_list;
use crate::db::{Arg, ColumnInfo, DbError, DbErrorKind, Query};
use crate::domain::{ColumnDef, Value, ValueType};

/// A timestamp in the form whose order as text is its order in time.
fn timestamp(value: &DateTime<Utc>) -> Result<String, DbError> {
    in_order(value.year(), value)?;
    Ok(value.to_rfc3339_opts(SecondsFormat::Micros, true))
}

fn date(value: &NaiveDate) -> Result<String, DbError> {
    in_order(value.year(), value)?;
    Ok(value.to_string())
}

fn in_order(year: i32, value: &impl std::fmt::Display) -> Result<(), DbError> {
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

/// Binds a value of a row; an error names the column.
pub(super) fn bind_column(
    arguments: &mut SqliteArguments,
    value: &Value,
    column: &ColumnInfo,
) -> Result<(), DbError> {
    bind(arguments, value).map_err(|error| error.in_column(&column.name))
}

pub(super) fn bind(arguments: &mut SqliteArguments, value: &Value) -> Result<(), DbError> {
    let added = match value {
        Value::Null => arguments.add(None::<i64>),
        Value::Bool(v) => arguments.add(*v),
        Value::Int(v) => arguments.add(*v),
        Value::Float(v) => arguments.add(float(*v)?),
        Value::Text(v) | Value::Json(v) => arguments.add(v.clone()),
        Value::Bytes(v) => arguments.add(v.clone()),
        Value::Uuid(v) => arguments.add(v.to_string()),
        Value::Decimal(v) => arguments.add(v.to_string()),
        Value::Date(v) => arguments.add(date(v)?),
        Value::Timestamp(v) => arguments.add(timestamp(v)?),
    };
    added.map_err(|e| {
        DbError::new(DbErrorKind::ValueOutOfRange, format!("a value cannot be sent: {e}"))
    })
}

/// A query and its arguments. Lists of floats become further parameters at the end.
pub(super) fn bind_query(query: &Query) -> Result<(Arc<str>, SqliteArguments), DbError> {
    let mut sql = query.sql.clone();
    let mut arguments = SqliteArguments::default();
    let mut floats: Vec<&Value> = Vec::new();
    for (n, arg) in (1..).zip(&query.args) {
        let Arg::Many(ValueType::Float, values) = arg else {
            bind_arg(&mut arguments, arg)?;
            continue;
        };
        bind(&mut arguments, &Value::Null)?;
        let first = query.args.len() + floats.len() + 1;
        let marks: Vec<String> = (first..first + values.len()).map(|n| format!("${n}")).collect();
        if first + marks.len() > MAX_PARAMETERS {
            return Err(DbError::new(
                DbErrorKind::ValueOutOfRange,
                format!("SQLite compares with no more than {MAX_PARAMETERS} floats at once"),
            ));
        }
        // With the parentheses, so that `$1` does not match the beginning of `$10`.
        sql =
            sql.replace(&format!("({})", float_list(n)), &format!("({})", marks.join(", "))).into();
        floats.extend(values);
    }
    floats.into_iter().try_for_each(|value| bind(&mut arguments, value))?;
    Ok((sql, arguments))
}

fn bind_arg(arguments: &mut SqliteArguments, arg: &Arg) -> Result<(), DbError> {
    match arg {
        Arg::One(_, value) => bind(arguments, value),
        Arg::Many(_, values) => {
            let list = values.iter().map(element).collect::<Result<Vec<_>, _>>()?;
            bind(arguments, &Value::Json(serde_json::Value::Array(list).to_string()))
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
pub(super) fn decode(row: &SqliteRow, columns: &[ColumnDef]) -> Result<Vec<Value>, DbError> {
    columns
        .iter()
        .enumerate()
        .map(|(position, column)| {
            value(row, position, column.ty).map_err(|reason| DbError::misfit(column.name, reason))
        })
        .collect()
}

fn value(row: &SqliteRow, at: usize, ty: ValueType) -> Result<Value, String> {
    let raw = row.try_get_raw(at).map_err(|e| e.to_string())?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    let class = raw.type_info().name().to_owned();
    let text = || row.try_get_unchecked::<String, _>(at).map_err(|e| e.to_string());
    let integer = || row.try_get_unchecked::<i64, _>(at).map_err(|e| e.to_string());
    let is_text = class == "TEXT" || class == "DATE" || class == "DATETIME" || class == "TIME";
    let expected = |what: &str| format!("the database holds {class} where the code expects {what}");
    match ty {
        ValueType::Bool | ValueType::Int if class != "INTEGER" && class != "BOOLEAN" => {
            Err(expected("an integer"))
        }
        ValueType::Bool => integer().map(|v| Value::Bool(v != 0)),
        ValueType::Int => integer().map(Value::Int),
        ValueType::Float if class == "INTEGER" => integer().map(|v| Value::Float(v as f64)),
        ValueType::Float if class != "REAL" => Err(expected("a float")),
        ValueType::Float => row.try_get_unchecked(at).map(Value::Float).map_err(|e| e.to_string()),
        ValueType::Bytes => row.try_get_unchecked(at).map(Value::Bytes).map_err(|e| e.to_string()),
        _ if !is_text => Err(expected("text")),
        ValueType::Text => text().map(Value::Text),
        ValueType::Json => text().map(Value::Json),
        ValueType::Uuid => {
            let text = text()?;
            text.parse::<Uuid>().map(Value::Uuid).map_err(|e| format!("`{text}` is no UUID: {e}"))
        }
        ValueType::Decimal => {
            let text = text()?;
            Decimal::from_str_exact(&text)
                .map(Value::Decimal)
                .map_err(|e| format!("`{text}` is no decimal that fits: {e}"))
        }
        ValueType::Date => {
            let text = text()?;
            text.parse::<NaiveDate>()
                .map(Value::Date)
                .map_err(|e| format!("`{text}` is no date: {e}"))
        }
        ValueType::Timestamp => {
            let text = text()?;
            DateTime::parse_from_rfc3339(&text).map(|v| Value::Timestamp(v.to_utc())).map_err(|e| {
                format!("`{text}` is no timestamp such as 2026-01-31T12:00:00.000000Z: {e}")
            })
        }
    }
}
