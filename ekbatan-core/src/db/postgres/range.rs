//! Rejects values that PostgreSQL's types cannot hold, or would change silently. The server
//! rejects some of them too, but without the name of the column.

use chrono::NaiveDate;

use crate::db::eventlog::EVENTS;
use crate::db::{ColumnInfo, DbError, DbErrorKind, RowChange, beginning};
use crate::domain::{Table, Value, find_nul};

/// Rejects values that no column can hold.
pub(super) fn check(value: &Value) -> Result<(), DbError> {
    let in_range = |day: NaiveDate, shown: &dyn std::fmt::Display| match first_day() {
        Some(first) if day < first => {
            Err(refused(format!("{shown} lies before {first}, the first of PostgreSQL's days")))
        }
        _ => Ok(()),
    };
    match value {
        Value::Text(text) if text.contains('\0') => Err(refused(format!(
            "{} holds the character 0, which PostgreSQL's texts do not; remove it",
            beginning(text)
        ))),
        Value::Date(day) => in_range(*day, day),
        Value::Timestamp(at) => in_range(at.date_naive(), at),
        _ => Ok(()),
    }
}

/// Rejects a value of a row that its column cannot hold.
pub(super) fn check_column(row: &RowChange, position: usize) -> Result<(), DbError> {
    let (value, column) = (&row.values[position], &row.table.columns[position]);
    let checked = check(value).and_then(|()| match (value, column.db_type.as_str()) {
        (Value::Json(text), "jsonb") => check_nul(text, row.table.table),
        (Value::Float(float), "float4") if !is_single(*float) => Err(refused(format!(
            "{float} has more digits than a real; declare the column double precision"
        ))),
        (Value::Text(text), "varchar") => fits(text, text, column),
        // Padding is what a char column is for.
        (Value::Text(text), "bpchar") => fits(text.trim_end_matches(' '), text, column),
        _ => Ok(()),
    });
    checked.map_err(|error| match given_by_the_call(row, position) {
        Some(given) => error.at(given),
        None => {
            error.in_column(&column.name).at(format_args!("{} {}", row.table.table.model, row.id))
        }
    })
}

fn check_nul(json: &str, table: &Table) -> Result<(), DbError> {
    let Some(at) = find_nul(json) else { return Ok(()) };
    let before = json[..at].char_indices().rev().take(40).last().map_or(0, |(start, _)| start);
    let way_out = if is_own(table) { "remove it" } else { "declare the column json" };
    Err(refused(format!(
        "a string of it holds the character 0, after `{}`, which PostgreSQL's jsonb does not; {way_out}",
        &json[before..at]
    )))
}

/// Whether a table is one of the framework.
fn is_own(table: &Table) -> bool {
    table.schema == EVENTS.schema
}

/// What the caller or the action gave for a column of the framework's tables: its users do not
/// know these columns.
fn given_by_the_call(row: &RowChange, position: usize) -> Option<String> {
    let given = match &*row.table.columns[position].name {
        _ if !is_own(row.table.table) => return None,
        "payload" => return Some(row.name_of(position)),
        "action_params" => "the parameters of the call",
        "output" => "the output of the call",
        "idempotency_key" => "the idempotency key",
        "consumer" => "the consumer of the message",
        "message_id" => "the id of the message",
        "principal" => "the principal",
        "reason" => "the reason",
        "trace_parent" => "the trace parent",
        _ => return None,
    };
    Some(given.to_owned())
}

fn fits(counted: &str, text: &str, column: &ColumnInfo) -> Result<(), DbError> {
    // A character has at least one byte, so most texts need no count.
    let Some(most) = column.length.filter(|most| counted.len() > *most as usize) else {
        return Ok(());
    };
    let length = counted.chars().count();
    if length <= most as usize {
        return Ok(());
    }
    Err(refused(format!(
        "{} has {length} characters, and the column holds {most}",
        beginning(text)
    )))
}

/// The first day of PostgreSQL's calendar, Julian day 0.
fn first_day() -> Option<NaiveDate> {
    NaiveDate::from_ymd_opt(-4713, 11, 24)
}

fn is_single(float: f64) -> bool {
    f64::from(float as f32).to_bits() == float.to_bits() || float.is_nan()
}

fn refused(why: String) -> DbError {
    DbError::new(DbErrorKind::ValueOutOfRange, why)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::db::{ChangeKind, fixtures};

    fn column(db_type: &str, length: Option<u32>) -> ColumnInfo {
        ColumnInfo { length, ..fixtures::column("c", db_type) }
    }

    /// Checks a value of a row that has no others but the type of an event.
    fn check_in(table: &'static Table, value: Value, column: ColumnInfo) -> Result<(), DbError> {
        let position = table.columns.iter().position(|of| of.name == column.name).unwrap_or(1);
        let mut info = Arc::into_inner(fixtures::table(table, |_| "text")).unwrap();
        info.columns[position] = column;
        let values = table.columns.iter().enumerate().map(|(at, of)| match of.name {
            _ if at == position => value.clone(),
            "event_type" => Value::Text("Opened".to_owned()),
            "action_name" => Value::Text("open".to_owned()),
            _ => Value::Null,
        });
        let values = Arc::new(values.collect());
        let change = fixtures::change(&Arc::new(info), ChangeKind::Insert);
        check_column(&RowChange { values, ..change }, position)
    }

    #[test]
    fn a_framework_column_is_named_by_what_the_call_gave() {
        let check = |name: &str, value| {
            let column = ColumnInfo { length: Some(2), ..fixtures::column(name, "varchar") };
            check_in(&EVENTS, value, column).unwrap_err().to_string()
        };
        let principal = check("principal", Value::Text("abc".to_owned()));
        assert_eq!(principal, r#"the principal: "abc" has 3 characters, and the column holds 2"#);
        let column = fixtures::column("action_params", "jsonb");
        let params = Value::Json(r#"{"a":"\u0000"}"#.to_owned());
        let params = check_in(&EVENTS, params, column).unwrap_err().to_string();
        assert!(params.starts_with("the parameters of the call: "), "{params}");
        assert!(params.ends_with("remove it"), "{params}");
        let payload = Value::Json(format!(r#"{{"{}":"b\u0000"}}"#, "ä".repeat(50)));
        let column = fixtures::column("payload", "jsonb");
        let payload = check_in(&EVENTS, payload, column).unwrap_err().to_string();
        assert!(payload.starts_with("the payload of the event `Opened` of `open`: "), "{payload}");
        assert!(payload.contains(&format!("after `{}\":\"b`", "ä".repeat(36))), "{payload}");
    }

    #[test]
    fn a_value_that_would_change_is_rejected_by_column_name() {
        let text = |text: &str| Value::Text(text.to_owned());
        for (value, db_type, length) in [
            (text("abc  "), "varchar", Some(4)),
            (text("abcde"), "varchar", Some(4)),
            (text("äöüß€"), "bpchar", Some(4)),
            (text("a\0"), "text", None),
            (Value::Float(0.1), "float4", None),
            (Value::Json(r#"["\u0000"]"#.to_owned()), "jsonb", None),
            (Value::Date(NaiveDate::MIN), "date", None),
        ] {
            let error = check_in(&fixtures::WALLETS, value, column(db_type, length)).unwrap_err();
            assert_eq!(error.kind(), DbErrorKind::ValueOutOfRange);
            let error = error.to_string();
            assert!(error.starts_with("Wallet ") && error.contains(": column `c`: "), "{error}");
        }
        for (value, db_type, length) in [
            (text("ab  "), "varchar", Some(4)),
            (text("äöüß"), "varchar", Some(4)),
            (text("ab   "), "bpchar", Some(3)),
            (Value::Float(0.5), "float4", None),
            (Value::Float(f64::NAN), "float4", None),
            (Value::Json(r#"["\u0000"]"#.to_owned()), "json", None),
        ] {
            let checked = check_in(&fixtures::WALLETS, value.clone(), column(db_type, length));
            assert!(checked.is_ok(), "{value:?}");
        }
    }
}
