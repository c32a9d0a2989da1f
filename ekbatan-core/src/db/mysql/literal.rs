//! Values as SQL literals, for statements that are sent together as one text.
//!
//! Invariants:
//! - No part of a value can end its literal. Bytes are written in hexadecimal, and so is a text
//!   with anything but printable ASCII without quote and backslash. All other literals consist of
//!   digits, signs and fixed letters.
//! - A value that its column would change is rejected here, because the server would not report
//!   it.

use std::fmt::{Display, Write as _};

use chrono::{DateTime, Datelike, Timelike, Utc};
use uuid::Uuid;

use super::enum_values::declares;
use super::syntax::{is_binary_uuid, length};
use crate::db::{ColumnInfo, DbError, DbErrorKind, beginning};
use crate::domain::{Value, depth};

/// Nanoseconds of a second.
const NANOS: u32 = 1_000_000_000;

/// Writes a value as a literal for its column.
pub(super) fn write_literal(
    sql: &mut String,
    value: &Value,
    column: &ColumnInfo,
) -> Result<(), DbError> {
    check(value, column)?;
    // Writing to a String cannot fail.
    let _ = match value {
        Value::Null => write!(sql, "NULL"),
        Value::Bool(v) => write!(sql, "{}", u8::from(*v)),
        Value::Int(v) => write!(sql, "{v}"),
        // The shortest digits that read back as the same float, written as a float: `1e-1`. MariaDB
        // stores a negative zero as zero, however it is written.
        Value::Float(v) => write!(sql, "{v:e}"),
        Value::Text(v) | Value::Json(v) => {
            write_text(sql, v);
            Ok(())
        }
        Value::Bytes(v) => {
            write_hex(sql, v);
            Ok(())
        }
        Value::Uuid(v) if is_binary_uuid(column) => {
            write_hex(sql, v.as_bytes());
            Ok(())
        }
        Value::Uuid(v) => {
            sql.push('\'');
            sql.push_str(v.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
            sql.push('\'');
            Ok(())
        }
        Value::Decimal(v) => write!(sql, "{v}"),
        Value::Date(v) => write!(sql, "DATE'{v}'"),
        Value::Timestamp(v) => {
            write_timestamp(sql, v);
            Ok(())
        }
    };
    Ok(())
}

/// Digit by digit: a commit has several, and chrono takes ten times as long for a format.
fn write_timestamp(sql: &mut String, value: &DateTime<Utc>) {
    // A leap second is counted in the nanoseconds.
    let (leap, nanos) = (value.nanosecond() / NANOS, value.nanosecond() % NANOS);
    sql.push_str("TIMESTAMP");
    for (before, number, digits) in [
        ('\'', value.year().unsigned_abs(), 4),
        ('-', value.month(), 2),
        ('-', value.day(), 2),
        (' ', value.hour(), 2),
        (':', value.minute(), 2),
        (':', value.second() + leap, 2),
        ('.', nanos / 1_000, 6),
    ] {
        sql.push(before);
        for place in (0..digits).rev() {
            sql.extend(char::from_digit(number / 10_u32.pow(place) % 10, 10));
        }
    }
    sql.push('\'');
}

/// Plain if no byte is special to the server's parser in any mode and character set, as in most
/// texts. Hexadecimal would be twice as long.
pub(super) fn write_text(sql: &mut String, text: &str) {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'\'' && byte != b'\\') {
        sql.push('\'');
        sql.push_str(text);
        sql.push('\'');
    } else {
        sql.push_str("_utf8mb4 ");
        write_hex(sql, text.as_bytes());
    }
}

fn write_hex(sql: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    sql.reserve(bytes.len() * 2 + 3);
    sql.push_str("x'");
    for byte in bytes {
        sql.push(char::from(DIGITS[usize::from(byte >> 4)]));
        sql.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    sql.push('\'');
}

/// The first year that MySQL promises to store.
const FIRST_STORED: i32 = 1000;

/// Rejects values that cannot be compared with those of a column. Another program may have stored dates of the
/// first thousand years.
pub(super) fn check_compared(value: &Value) -> Result<(), DbError> {
    check_range(value, 0)
}

fn check_range(value: &Value, first: i32) -> Result<(), DbError> {
    let in_range = |year: i32, value: &dyn Display| {
        if (first..=9999).contains(&year) {
            return Ok(());
        }
        Err(out_of_range(format!(
            "{value} lies outside the years {first} to 9999, the only ones that MySQL takes here"
        )))
    };
    match value {
        Value::Float(v) if !v.is_finite() => {
            Err(out_of_range(format!("{v} is no number, and MySQL's floats are all numbers")))
        }
        Value::Date(v) => in_range(v.year(), v),
        Value::Timestamp(v) => in_range(v.year(), v),
        _ => Ok(()),
    }
}

/// Rejects values that this column would change silently.
fn check(value: &Value, column: &ColumnInfo) -> Result<(), DbError> {
    // A list in a condition has no column.
    match column.name.as_str() {
        "" => check_compared(value)?,
        name => check_range(value, FIRST_STORED).map_err(|error| error.in_column(name))?,
    }
    let spoils = |what: &str| {
        let ColumnInfo { name, db_type, .. } = column;
        Err(out_of_range(format!("column `{name}` of type {db_type} {what}")))
    };
    match value {
        Value::Text(text)
            if column.db_type.starts_with("enum(") && !declares(&column.db_type, text) =>
        {
            return spoils(&format!("does not declare {}", beginning(text)));
        }
        Value::Text(text) if text.ends_with(' ') => {
            if column.db_type.starts_with("char(") {
                return spoils(&format!(
                    "would lose the spaces at the end of {}; declare it varchar",
                    beginning(text)
                ));
            }
            let cuts = length(column, "varchar").is_some_and(|most| text.chars().count() > most)
                || most_bytes(column).is_some_and(|most| text.len() > most);
            if cuts {
                return spoils(&format!(
                    "is too short for {}, which ends with spaces",
                    beginning(text)
                ));
            }
        }
        Value::Json(text) if column.db_type == "json" && depth(text) > 100 => {
            return spoils("takes JSON that is nested 100 deep at most");
        }
        Value::Bytes(bytes) => {
            if let Some(wanted) = length(column, "binary").filter(|wanted| bytes.len() < *wanted) {
                return spoils(&format!(
                    "would fill {} bytes up with zeros to {wanted}; declare it varbinary",
                    bytes.len()
                ));
            }
        }
        _ => {}
    }
    Ok(())
}

/// The number of bytes that a text column holds, if a value may be longer. Of a longer value, the
/// server cuts spaces at the end silently, and refuses everything else.
fn most_bytes(column: &ColumnInfo) -> Option<usize> {
    match column.db_type.split(' ').next()? {
        "tinytext" => Some((1 << 8) - 1),
        "text" => Some((1 << 16) - 1),
        "mediumtext" => Some((1 << 24) - 1),
        _ => None,
    }
}

fn out_of_range(why: String) -> DbError {
    DbError::new(DbErrorKind::ValueOutOfRange, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::fixtures::column;
    use chrono::NaiveDate;
    use rust_decimal::Decimal;

    fn literal(value: Value, db_type: &str) -> Result<String, String> {
        let mut sql = String::new();
        write_literal(&mut sql, &value, &column("c", db_type)).map_err(|error| {
            assert_eq!(error.kind(), DbErrorKind::ValueOutOfRange);
            error.to_string()
        })?;
        Ok(sql)
    }

    #[test]
    fn no_value_can_end_its_literal() {
        let quote = |text: &str| literal(Value::Text(text.to_owned()), "text").unwrap();
        assert_eq!(quote("'\\\0ü\u{1F980}"), "_utf8mb4 x'275c00c3bcf09fa680'");
        assert_eq!(quote("it's"), "_utf8mb4 x'69742773'");
        assert_eq!(quote("a\\"), "_utf8mb4 x'615c'");
        assert_eq!(quote("a\n"), "_utf8mb4 x'610a'");
        assert_eq!(quote("\u{7f}"), "_utf8mb4 x'7f'");
        assert_eq!(quote("say \"$1\" -- ; `?` ~"), "'say \"$1\" -- ; `?` ~'");
        assert_eq!(quote(""), "''");
        assert_eq!(literal(Value::Bytes(vec![0, 255]), "blob").unwrap(), "x'00ff'");
        assert_eq!(literal(Value::Json("{}".into()), "json").unwrap(), "'{}'");
        assert_eq!(literal(Value::Null, "text").unwrap(), "NULL");
    }

    #[test]
    fn numbers_and_dates_keep_every_digit() {
        let id = Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let day = NaiveDate::from_ymd_opt(2024, 2, 29).unwrap();
        let at = day.and_hms_micro_opt(1, 2, 3, 40).unwrap().and_utc();
        for (value, db_type, expected) in [
            (Value::Float(0.1), "double", "1e-1"),
            (Value::Float(-0.0), "double", "-0e0"),
            (Value::Float(f64::MAX), "double", "1.7976931348623157e308"),
            (Value::Int(i64::MIN), "bigint", "-9223372036854775808"),
            (Value::Bool(true), "tinyint(1)", "1"),
            (Value::Decimal(Decimal::new(-1050, 2)), "decimal(9,2)", "-10.50"),
            (Value::Date(day), "date", "DATE'2024-02-29'"),
            (Value::Timestamp(at), "datetime(6)", "TIMESTAMP'2024-02-29 01:02:03.000040'"),
            (Value::Uuid(id), "char(36)", "'01234567-89ab-cdef-0123-456789abcdef'"),
            (Value::Uuid(id), "uuid", "'01234567-89ab-cdef-0123-456789abcdef'"),
            (Value::Uuid(id), "binary(16)", "x'0123456789abcdef0123456789abcdef'"),
        ] {
            assert_eq!(literal(value, db_type).unwrap(), expected);
        }
    }

    #[test]
    fn timestamps_are_written_as_chrono_formats_them() {
        let day = NaiveDate::from_ymd_opt(999, 12, 31).unwrap();
        // The last one is a leap second.
        for micros in [0, 7, 999_999, 1_234_567] {
            let at = day.and_hms_micro_opt(23, 59, 59, micros).unwrap().and_utc();
            let mut sql = String::new();
            write_timestamp(&mut sql, &at);
            assert_eq!(sql, at.format("TIMESTAMP'%Y-%m-%d %H:%M:%S%.6f'").to_string());
        }
    }

    #[test]
    fn a_value_that_a_column_would_change_is_rejected_by_name() {
        let year = |year| NaiveDate::from_ymd_opt(year, 1, 1).unwrap();
        for (value, db_type, named) in [
            (Value::Float(f64::NAN), "double", "NaN"),
            (Value::Float(f64::INFINITY), "double", "inf"),
            (Value::Date(year(999)), "date", "0999-01-01"),
            (Value::Date(year(10_000)), "date", "10000-01-01"),
            (
                Value::Timestamp(year(-1).and_hms_opt(0, 0, 0).unwrap().and_utc()),
                "datetime(6)",
                "-0001",
            ),
            (Value::Text("a ".into()), "char(5)", "\"a \""),
            (Value::Text("abc ".into()), "varchar(3)", "\"abc \""),
            (Value::Text("X".into()), "enum('x')", "does not declare \"X\""),
            (Value::Bytes(vec![1]), "binary(2)", "1 bytes"),
        ] {
            let error = literal(value, db_type).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
        assert!(literal(Value::Text("ab ".into()), "varchar(3)").is_ok());
        for (db_type, most) in [("tinytext", 255), ("text", 65_535), ("mediumtext", 16_777_215)] {
            let text = |bytes: usize| Value::Text(format!("{} ", "x".repeat(bytes - 1)));
            assert!(check(&text(most), &column("c", db_type)).is_ok(), "{db_type}");
            assert!(check(&text(most + 1), &column("c", db_type)).is_err(), "{db_type}");
        }
        assert!(literal(Value::Text("x".into()), "enum('x')").is_ok());
        assert!(literal(Value::Bytes(vec![1, 2]), "binary(2)").is_ok());
    }
}
