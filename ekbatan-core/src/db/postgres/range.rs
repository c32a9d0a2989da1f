//! Rejects values that PostgreSQL's types cannot hold, or would change silently. The server
//! rejects some of them too, but without the name of the column.

use chrono::NaiveDate;

use crate::db::{ColumnInfo, DbError, DbErrorKind};
use crate::domain::{Value, holds_nul};

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
            "{:?} holds the character 0, which PostgreSQL's texts do not",
            beginning(text)
        ))),
        Value::Date(day) => in_range(*day, day),
        Value::Timestamp(at) => in_range(at.date_naive(), at),
        _ => Ok(()),
    }
}

/// Rejects values that this column cannot hold.
pub(super) fn check_column(value: &Value, column: &ColumnInfo) -> Result<(), DbError> {
    let checked = check(value).and_then(|()| match (value, column.db_type.as_str()) {
        (Value::Json(text), "jsonb") if holds_nul(text) => Err(refused(
            "a string of it holds the character 0, which jsonb does not; declare the column json"
                .to_owned(),
        )),
        (Value::Float(float), "float4") if !is_single(*float) => Err(refused(format!(
            "{float} has more digits than a real; declare the column double precision"
        ))),
        (Value::Text(text), "varchar") if too_long(text, column) && text.ends_with(' ') => {
            Err(refused(format!("{:?}, which ends with spaces, is too long", beginning(text))))
        }
        _ => Ok(()),
    });
    checked.map_err(|error| error.in_column(&column.name))
}

/// The first day of PostgreSQL's calendar, Julian day 0.
fn first_day() -> Option<NaiveDate> {
    NaiveDate::from_ymd_opt(-4713, 11, 24)
}

fn is_single(float: f64) -> bool {
    f64::from(float as f32).to_bits() == float.to_bits() || float.is_nan()
}

fn too_long(text: &str, column: &ColumnInfo) -> bool {
    column.length.is_some_and(|most| text.chars().count() > most as usize)
}

fn beginning(text: &str) -> String {
    text.chars().take(40).collect()
}

fn refused(why: String) -> DbError {
    DbError::new(DbErrorKind::ValueOutOfRange, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::fixtures;

    fn column(db_type: &str, length: Option<u32>) -> ColumnInfo {
        ColumnInfo { length, ..fixtures::column("c", db_type) }
    }

    #[test]
    fn a_value_that_would_change_is_rejected_by_column_name() {
        let text = |text: &str| Value::Text(text.to_owned());
        for (value, db_type, length) in [
            (text("abc  "), "varchar", Some(4)),
            (text("a\0"), "text", None),
            (Value::Float(0.1), "float4", None),
            (Value::Json(r#"["\u0000"]"#.to_owned()), "jsonb", None),
            (Value::Date(NaiveDate::MIN), "date", None),
        ] {
            let error = check_column(&value, &column(db_type, length)).unwrap_err();
            assert_eq!(error.kind(), DbErrorKind::ValueOutOfRange);
            assert!(error.to_string().starts_with("column `c`: "), "{error}");
        }
        for (value, db_type, length) in [
            (text("ab  "), "varchar", Some(4)),
            // The server rejects this one.
            (text("abcde"), "varchar", Some(4)),
            // Padding is what a char column is for.
            (text("ab"), "bpchar", Some(3)),
            (Value::Float(0.5), "float4", None),
            (Value::Float(f64::NAN), "float4", None),
            (Value::Json(r#"["\u0000"]"#.to_owned()), "json", None),
        ] {
            assert!(check_column(&value, &column(db_type, length)).is_ok(), "{value:?}");
        }
    }
}
