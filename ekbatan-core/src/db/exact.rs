//! Values that are read as they are stored, or refused.
//!
//! A value that was rounded or taken for another one would not be found again by what was read, and the
//! next update of its row would store it.

#[cfg(any(feature = "mysql", feature = "sqlite"))]
use crate::domain::Value;

/// The boolean of a number. Conditions and pages compare the number, so no other one stands for `true`.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn boolean(number: i64) -> Result<Value, String> {
    match number {
        0 => Ok(Value::Bool(false)),
        1 => Ok(Value::Bool(true)),
        other => Err(format!(
            "the database holds {other}, and a boolean is 0 or 1; update the rows that have another number"
        )),
    }
}
