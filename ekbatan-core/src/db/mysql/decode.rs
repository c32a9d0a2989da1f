//! Decodes values of MySQL's types.

use chrono::{NaiveDate, NaiveDateTime};
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, Row, Type, TypeInfo, ValueRef};
use uuid::Uuid;

use crate::db::{DbError, boolean, exact_decimal};
use crate::domain::{ColumnDef, Value, ValueType};

/// Decodes a row's values as the types of `columns`.
pub(super) fn decode(row: &MySqlRow, columns: &[ColumnDef]) -> Result<Vec<Value>, DbError> {
    columns
        .iter()
        .enumerate()
        .map(|(position, column)| {
            value(row, position, column.ty).map_err(|reason| DbError::misfit(column.name, reason))
        })
        .collect()
}

/// The column types were compared with the code when the table was described. Here only different
/// spellings of one type are told apart.
fn value(row: &MySqlRow, at: usize, ty: ValueType) -> Result<Value, String> {
    let raw = row.try_get_raw(at).map_err(|e| e.to_string())?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    let of = raw.type_info();
    let name = of.name().to_owned();
    let wrong = |e: sqlx::Error| format!("the database holds {name}: {e}");
    let text = || row.try_get_unchecked::<String, _>(at).map_err(wrong);
    let integer = || {
        if !<u64 as Type<MySql>>::compatible(&of) {
            return row.try_get_unchecked::<i64, _>(at).map_err(wrong);
        }
        // A value has as many bytes as its column. sqlx reads the highest bit as the sign of an `i64`.
        let number = row.try_get_unchecked::<u64, _>(at).map_err(wrong)?;
        i64::try_from(number).map_err(|e| format!("the database holds {name} {number}: {e}"))
    };
    Ok(match ty {
        ValueType::Bool => boolean(integer()?)?,
        ValueType::Int => Value::Int(integer()?),
        ValueType::Float => Value::Float(row.try_get_unchecked(at).map_err(wrong)?),
        ValueType::Text => Value::Text(text()?),
        ValueType::Json => Value::Json(text()?),
        ValueType::Bytes => Value::Bytes(row.try_get_unchecked(at).map_err(wrong)?),
        ValueType::Uuid => Value::Uuid(uuid(row.try_get_unchecked(at).map_err(wrong)?)?),
        ValueType::Decimal => Value::Decimal(exact_decimal(&text()?)?),
        ValueType::Date => Value::Date(row.try_get_unchecked::<NaiveDate, _>(at).map_err(wrong)?),
        ValueType::Timestamp => Value::Timestamp(
            row.try_get_unchecked::<NaiveDateTime, _>(at).map_err(wrong)?.and_utc(),
        ),
    })
}

/// A UUID from its 16 bytes or its text.
fn uuid(bytes: &[u8]) -> Result<Uuid, String> {
    match bytes.len() {
        16 => Uuid::from_slice(bytes).map_err(|e| e.to_string()),
        _ => Uuid::try_parse_ascii(bytes)
            .map_err(|e| format!("`{}` is no UUID: {e}", String::from_utf8_lossy(bytes))),
    }
}
