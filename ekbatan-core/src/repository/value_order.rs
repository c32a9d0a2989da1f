//! The order of values, by which the rows of several databases are merged.

use std::cmp::Ordering;

use super::page::TextOrder;
use crate::db::SORTED_BYTES;
use crate::domain::Value;

/// Compares two keys of merged pages.
pub(super) fn compare_keys(texts: TextOrder, a: &Value, b: &Value) -> Ordering {
    match (texts, a, b) {
        (TextOrder::FirstBytes, Value::Text(a), Value::Text(b)) => {
            first_bytes(a.as_bytes()).cmp(first_bytes(b.as_bytes()))
        }
        (TextOrder::FirstBytes, Value::Bytes(a), Value::Bytes(b)) => {
            first_bytes(a).cmp(first_bytes(b))
        }
        _ => compare(a, b),
    }
}

fn first_bytes(value: &[u8]) -> &[u8] {
    &value[..value.len().min(SORTED_BYTES)]
}

/// Compares two values of one type. Null comes first. A NaN is greater than all numbers and equal to
/// every NaN, as in PostgreSQL; other databases store none.
pub(super) fn compare(a: &Value, b: &Value) -> Ordering {
    let by_nan = |a: &f64, b: &f64| a.is_nan().cmp(&b.is_nan());
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b).unwrap_or_else(|| by_nan(a, b)),
        (Value::Text(a), Value::Text(b)) | (Value::Json(a), Value::Json(b)) => a.cmp(b),
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        (Value::Uuid(a), Value::Uuid(b)) => a.cmp(b),
        (Value::Decimal(a), Value::Decimal(b)) => a.cmp(b),
        (Value::Date(a), Value::Date(b)) => a.cmp(b),
        (Value::Timestamp(a), Value::Timestamp(b)) => a.cmp(b),
        (a, b) => b.is_null().cmp(&a.is_null()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_of_any_sign_is_greatest_and_equal_to_every_nan() {
        let compare = |a, b| compare(&Value::Float(a), &Value::Float(b));
        for nan in [f64::NAN, -f64::NAN] {
            assert_eq!(compare(nan, f64::INFINITY), Ordering::Greater);
            assert_eq!(compare(f64::NEG_INFINITY, nan), Ordering::Less);
            assert_eq!(compare(nan, f64::NAN), Ordering::Equal);
        }
        assert_eq!(compare(-0.0, 0.0), Ordering::Equal);
    }
}
