//! Conversions of ids, amounts and dates to what a driver stores.

use chrono::NaiveDateTime;
use ekbatan::prelude::*;

pub fn as_is<T>(value: T) -> T {
    value
}

pub fn text(id: Uuid) -> String {
    id.to_string()
}

pub fn decimal_text(money: Decimal) -> String {
    money.to_string()
}

pub fn naive(date: &DateTime<Utc>) -> NaiveDateTime {
    date.naive_utc()
}
