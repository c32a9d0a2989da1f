//! Values as SQL literals, for statements that are sent together as one text.
//!
//! Invariant: no part of a value can end its literal, whatever the session's settings are. A text
//! with a backslash is written as an escape string, in which backslashes always escape; any
//! other text reads the same with and without `standard_conforming_strings`.

use std::fmt::Write as _;

use chrono::{Datelike, NaiveDate};

use super::range::{check, check_column};
use super::syntax::{assigned, wire_type};
use crate::db::{Arg, DbError, Query, RowChange};
use crate::domain::Value;

/// The value of a row in one column, in the form in which the column takes it.
pub(super) fn literal(row: &RowChange, position: usize) -> Result<String, DbError> {
    Ok(assigned(&wire_literal(row, position)?, &row.table.columns[position]))
}

/// The value of a row in one column, with the type as which values are sent.
pub(super) fn wire_literal(row: &RowChange, position: usize) -> Result<String, DbError> {
    let value = &row.values[position];
    check_column(row, position)?;
    let ty = wire_type(row.table.table.columns[position].ty);
    Ok(format!("{}::{ty}", untyped(value)?))
}

/// A query as one text, with its arguments as literals.
pub(super) fn inlined(query: &Query) -> Result<String, DbError> {
    let mut text = String::with_capacity(query.sql.len());
    let mut rest = &*query.sql;
    while let Some(at) = rest.find('$') {
        let after = &rest[at + 1..];
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: usize = after[..digits].parse().unwrap_or_default();
        text.push_str(&rest[..at]);
        match number.checked_sub(1).and_then(|at| query.args.get(at)) {
            Some(Arg::One(ty, value)) => {
                let _ = write!(text, "{}::{}", untyped(value)?, wire_type(*ty));
            }
            Some(Arg::Many(ty, values)) => {
                let values: Vec<_> = values.iter().map(untyped).collect::<Result<_, _>>()?;
                let _ = write!(text, "ARRAY[{}]::{}[]", values.join(","), wire_type(*ty));
            }
            None => text.push_str(&rest[at..=at + digits]),
        }
        rest = &after[digits..];
    }
    text.push_str(rest);
    Ok(text)
}

fn untyped(value: &Value) -> Result<String, DbError> {
    // It rejects the character 0, which would end the whole text.
    check(value)?;
    Ok(match value {
        Value::Null => "NULL".to_owned(),
        Value::Bool(value) => quoted(&value.to_string()),
        Value::Int(value) => quoted(&value.to_string()),
        Value::Float(value) => quoted(&value.to_string()),
        Value::Text(text) | Value::Json(text) => quoted(text),
        Value::Bytes(bytes) => {
            let mut hex = String::with_capacity(bytes.len() * 2 + 2);
            hex.push_str("\\x");
            for byte in bytes {
                // Writing to a String cannot fail.
                let _ = write!(hex, "{byte:02x}");
            }
            quoted(&hex)
        }
        Value::Uuid(value) => quoted(&value.to_string()),
        Value::Decimal(value) => quoted(&value.to_string()),
        Value::Date(day) => quoted(&format!("{}{}", date(*day), era(day.year()))),
        Value::Timestamp(at) => {
            let (day, time) = (at.date_naive(), at.format("%H:%M:%S%.6f"));
            quoted(&format!("{} {time}{}", date(day), era(day.year())))
        }
    })
}

/// The year 0 of chrono is the year 1 before Christ.
fn date(day: NaiveDate) -> String {
    let year = if day.year() > 0 { day.year() } else { 1 - day.year() };
    format!("{year:04}-{:02}-{:02}", day.month(), day.day())
}

fn era(year: i32) -> &'static str {
    if year > 0 { "" } else { " BC" }
}

/// A text as a literal without a type.
pub(super) fn quoted(text: &str) -> String {
    let text = text.replace('\'', "''");
    if text.contains('\\') {
        format!("E'{}'", text.replace('\\', "\\\\"))
    } else {
        format!("'{text}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ValueType;

    #[test]
    fn no_text_ends_its_literal() {
        assert_eq!(quoted("it's"), "'it''s'");
        assert_eq!(quoted("\\'; DROP"), "E'\\\\''; DROP'");
    }

    #[test]
    fn arguments_become_literals_in_their_places() {
        let names = vec![Value::Text("it's".to_owned()), Value::Text("$1".to_owned())];
        let mut args = vec![Arg::Many(ValueType::Text, names), Arg::Many(ValueType::Uuid, vec![])];
        args.extend((3..=10).map(|n| Arg::One(ValueType::Int, Value::Int(n))));
        let sql = "SELECT '$' WHERE a = ANY($1) AND b = ANY($2) AND c < $10 + $3".into();
        assert_eq!(
            inlined(&Query { sql, args, columns: Vec::new().into() }).unwrap(),
            "SELECT '$' WHERE a = ANY(ARRAY['it''s','$1']::text[]) AND b = ANY(ARRAY[]::uuid[]) \
             AND c < '10'::int8 + '3'::int8"
        );
    }

    #[test]
    fn years_before_christ_have_their_own_count() {
        let day = NaiveDate::from_ymd_opt(-43, 3, 15).unwrap();
        assert_eq!(format!("{}{}", date(day), era(day.year())), "0044-03-15 BC");
    }
}
