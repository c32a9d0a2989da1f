//! Dates that only some databases hold.

use chrono::NaiveDate;

use crate::domain::Value;

/// The first or the last date of the years 0 to 9999, if the value is a date that lies outside of them.
pub(crate) fn nearest_date(value: &Value) -> Option<Value> {
    let first = NaiveDate::from_ymd_opt(0, 1, 1)?;
    let last = NaiveDate::from_ymd_opt(9999, 12, 31)?;
    let nearest = match value {
        Value::Date(day) => Value::Date(*day.clamp(&first, &last)),
        Value::Timestamp(at) => {
            let first = first.and_hms_opt(0, 0, 0)?.and_utc();
            let last = last.and_hms_micro_opt(23, 59, 59, 999_999)?.and_utc();
            Value::Timestamp(*at.clamp(&first, &last))
        }
        _ => return None,
    };
    (nearest != *value).then_some(nearest)
}
