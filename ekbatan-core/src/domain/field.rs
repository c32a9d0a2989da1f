//! The Rust types that can be a column, and their conversion to a [`Value`].

use std::fmt;
use std::ops::{Deref, DerefMut};

use chrono::{DateTime, NaiveDate, Utc};
use rust_decimal::Decimal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::json_text::{check_depth, checked_json};
use super::{Value, ValueType};
use crate::clock::to_micros;

/// A type that can be stored in one column.
///
/// Implemented for booleans, integers, floats, text, bytes, UUIDs, decimals, dates,
/// timestamps, JSON, and options of all of them. Derive it for an enum without data (stored
/// as text) and for a newtype (stored as what it wraps).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored in a column",
    note = "columns hold `String`, `bool`, `i8` to `i64`, `u8` to `u64`, `f32`, `f64`, `Decimal`, `Uuid`, ids, `NaiveDate`, `DateTime<Utc>`, `Vec<u8>`, `serde_json::Value`, and `Option` of these; use `u64` or `i64` for a size",
    note = "derive `State` for the enum of the field `state`, and `Field` for another enum or a newtype; or mark the field `#[column(json)]` to store any serde type as JSON"
)]
pub trait Field: Sized + Send + Sync {
    /// The type of the column.
    const TYPE: ValueType;
    /// Whether the column may be null.
    const NULLABLE: bool = false;

    /// The value to store.
    fn to_value(&self) -> Result<Value, FieldError>;

    /// The field from the stored value.
    fn from_value(value: Value) -> Result<Self, FieldError>;

    /// Changes the field to the value that a database returns after storing it.
    fn normalize(&mut self) {}
}

/// A field that a database can compare. JSON cannot be compared: databases define the equality of
/// documents differently.
#[diagnostic::on_unimplemented(
    message = "a column of `{Self}` cannot be compared in a condition",
    note = "JSON is not compared: give the value that a condition needs a column of its own"
)]
pub trait Comparable: Field {}

/// A field that could not be stored or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", if column.is_empty() { String::new() } else { format!("column `{column}`: ") })]
#[non_exhaustive]
pub struct FieldError {
    /// The column; empty until it is known.
    pub column: String,
    /// The problem, with the value.
    pub reason: String,
}

impl FieldError {
    /// An error about a value. [`FieldError::at`] adds the column.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { column: String::new(), reason: reason.into() }
    }

    /// Sets the column.
    #[must_use]
    pub fn at(mut self, column: &str) -> Self {
        self.column = column.to_owned();
        self
    }

    /// The type of the stored value is not the one that the code expects.
    pub fn mismatch(expected: ValueType, found: &Value) -> Self {
        match found {
            Value::Null => Self::new(format!(
                "the database holds NULL where the code expects {}; make the field an Option or the column NOT NULL",
                expected.name()
            )),
            found => Self::new(format!(
                "the database holds {} where the code expects {}",
                found.kind(),
                expected.name()
            )),
        }
    }
}

macro_rules! field {
    ($($ty:ty => $variant:ident),* $(,)?) => {$(
        impl Field for $ty {
            const TYPE: ValueType = ValueType::$variant;

            fn to_value(&self) -> Result<Value, FieldError> {
                Ok(Value::$variant(self.clone()))
            }

            fn from_value(value: Value) -> Result<Self, FieldError> {
                match value {
                    Value::$variant(value) => Ok(value),
                    other => Err(FieldError::mismatch(Self::TYPE, &other)),
                }
            }
        }
        impl Comparable for $ty {}
    )*};
}

field! {
    bool => Bool,
    String => Text,
    Vec<u8> => Bytes,
    Uuid => Uuid,
    Decimal => Decimal,
    NaiveDate => Date,
    f64 => Float,
}

macro_rules! integer {
    ($($ty:ty),*) => {$(
        impl Field for $ty {
            const TYPE: ValueType = ValueType::Int;

            fn to_value(&self) -> Result<Value, FieldError> {
                i64::try_from(*self).map(Value::Int).map_err(|_| {
                    FieldError::new(format!("{self} exceeds a signed 64-bit integer, the largest that all databases have; use Decimal"))
                })
            }

            fn from_value(value: Value) -> Result<Self, FieldError> {
                match value {
                    Value::Int(value) => Self::try_from(value).map_err(|_| {
                        FieldError::new(format!("the database holds {value}, which does not fit {}", stringify!($ty)))
                    }),
                    other => Err(FieldError::mismatch(Self::TYPE, &other)),
                }
            }
        }
        impl Comparable for $ty {}
    )*};
}

integer!(i8, i16, i32, i64, u8, u16, u32, u64);

impl Field for f32 {
    const TYPE: ValueType = ValueType::Float;

    fn to_value(&self) -> Result<Value, FieldError> {
        Ok(Value::Float(f64::from(*self)))
    }

    fn from_value(value: Value) -> Result<Self, FieldError> {
        match value {
            // Exact for what was stored from an f32. A double that another program wrote is
            // rounded to the nearest f32.
            Value::Float(value) => match value as f32 {
                narrow if narrow.is_infinite() && value.is_finite() => Err(FieldError::new(
                    format!("the database holds {value}, which does not fit f32"),
                )),
                narrow => Ok(narrow),
            },
            other => Err(FieldError::mismatch(Self::TYPE, &other)),
        }
    }
}

impl Comparable for f32 {}

impl Field for DateTime<Utc> {
    const TYPE: ValueType = ValueType::Timestamp;

    fn to_value(&self) -> Result<Value, FieldError> {
        Ok(Value::Timestamp(to_micros(*self)))
    }

    fn from_value(value: Value) -> Result<Self, FieldError> {
        match value {
            Value::Timestamp(value) => Ok(value),
            other => Err(FieldError::mismatch(Self::TYPE, &other)),
        }
    }

    fn normalize(&mut self) {
        *self = to_micros(*self);
    }
}

impl Comparable for DateTime<Utc> {}

impl<F: Field> Field for Option<F> {
    const TYPE: ValueType = F::TYPE;
    /// Both `None` and `Some(None)` of an option in an option would be NULL, and read back as `None`.
    const NULLABLE: bool = {
        assert!(
            !F::NULLABLE,
            "a column has one NULL, but an `Option` of something optional has two kinds of it, `None` and `Some(None)`; remove one `Option`, or mark the field `#[column(json)]`"
        );
        true
    };

    fn to_value(&self) -> Result<Value, FieldError> {
        const { assert!(Self::NULLABLE) };
        self.as_ref().map_or(Ok(Value::Null), F::to_value)
    }

    fn from_value(value: Value) -> Result<Self, FieldError> {
        const { assert!(Self::NULLABLE) }; // also evaluated for what is no column of a table
        match value {
            Value::Null => Ok(None),
            value => F::from_value(value).map(Some),
        }
    }

    fn normalize(&mut self) {
        if let Some(field) = self {
            field.normalize();
        }
    }
}

impl<F: Comparable> Comparable for Option<F> {}

impl Field for serde_json::Value {
    const TYPE: ValueType = ValueType::Json;

    fn to_value(&self) -> Result<Value, FieldError> {
        let text = self.to_string();
        check_depth(&text).map_err(FieldError::new)?;
        Ok(Value::Json(text))
    }

    fn from_value(value: Value) -> Result<Self, FieldError> {
        Json::from_value(value).map(|Json(value)| value)
    }
}

/// Stores any serde type as one JSON column. `#[column(json)]` on a field does the same without
/// changing the type of the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json<T>(pub T);

impl<T> Deref for Json<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Json<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Serialize + DeserializeOwned + Send + Sync> Field for Json<T> {
    const TYPE: ValueType = ValueType::Json;

    fn to_value(&self) -> Result<Value, FieldError> {
        Self::encode(&self.0)
    }

    fn from_value(value: Value) -> Result<Self, FieldError> {
        match value {
            Value::Json(text) => serde_json::from_str(&text)
                .map(Json)
                .map_err(|e| FieldError::new(format!("its JSON does not fit the type: {e}"))),
            other => Err(FieldError::mismatch(Self::TYPE, &other)),
        }
    }
}

impl<T: Serialize + DeserializeOwned> Json<T> {
    /// The JSON of a reference. A `#[column(json)]` field is stored through this, without a clone.
    /// Fails if it is nested too deeply to be read back, or holds a NaN.
    pub fn encode(value: &T) -> Result<Value, FieldError> {
        checked_json(value)
            .map_err(|e| FieldError::new(format!("does not serialize to JSON: {e}")))
            .map(Value::Json)
    }
}

impl<T: fmt::Display> fmt::Display for Json<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_refuse_what_does_not_fit() {
        assert!(u64::MAX.to_value().unwrap_err().reason.contains("18446744073709551615"));
        assert_eq!(i64::MAX.to_value().unwrap(), Value::Int(i64::MAX));
        let error = u8::from_value(Value::Int(256)).unwrap_err().at("age");
        assert_eq!(
            error.to_string(),
            "column `age`: the database holds 256, which does not fit u8"
        );
    }

    #[test]
    fn a_double_is_read_as_the_nearest_f32_unless_it_is_too_large() {
        assert_eq!(f32::from_value(Value::Float(0.1)), Ok(0.1));
        assert_eq!(f32::from_value(Value::Float(f64::INFINITY)), Ok(f32::INFINITY));
        assert!(f32::from_value(Value::Float(f64::NAN)).unwrap().is_nan());
        let reason = f32::from_value(Value::Float(-1e39)).unwrap_err().reason;
        assert!(reason.contains("does not fit f32"), "{reason}");
    }

    #[test]
    fn timestamps_are_truncated_never_rounded() {
        let instant = DateTime::from_timestamp(1, 999_999_999).unwrap();
        let stored = DateTime::from_timestamp(1, 999_999_000).unwrap();
        assert_eq!(instant.to_value().unwrap(), Value::Timestamp(stored));
        let mut normal = instant;
        normal.normalize();
        assert_eq!(normal, stored);
    }

    #[test]
    fn a_leap_second_is_the_second_after_it() {
        let mut instant: DateTime<Utc> = "2016-12-31T23:59:60.5Z".parse().unwrap();
        instant.normalize();
        assert_eq!(instant.to_string(), "2017-01-01 00:00:00.500 UTC");
    }

    #[test]
    fn json_that_could_not_be_read_back_is_refused() {
        let nested =
            |depth| (0..depth).fold(serde_json::json!(null), |inner, _| serde_json::json!([inner]));
        let deepest = nested(127);
        assert_eq!(serde_json::Value::from_value(deepest.to_value().unwrap()), Ok(deepest));
        assert!(nested(128).to_value().unwrap_err().reason.contains("128 deep"));
        assert!(Json(nested(128)).to_value().unwrap_err().reason.contains("128 deep"));
    }

    #[test]
    fn json_without_its_numbers_is_refused() {
        let refused = |value: Result<Value, FieldError>| value.unwrap_err().reason;
        let reason = refused(Json(vec![1.0, f64::NAN]).to_value());
        assert!(reason.contains("could not be read back") && reason.contains("NaN"), "{reason}");
        refused(Json((1, f32::NEG_INFINITY)).to_value());
        for value in [Some(1.5), Some(f64::NAN), None] {
            let stored = Json(vec![value]).to_value().unwrap();
            let expected = value.filter(|value| !value.is_nan());
            assert_eq!(Json::from_value(stored), Ok(Json(vec![expected])));
        }
        assert!(Json(vec!["null".to_owned()]).to_value().is_ok());
        assert!(Json(()).to_value().is_ok());
    }

    #[test]
    fn null_is_only_for_options() {
        assert_eq!(Option::<String>::from_value(Value::Null), Ok(None));
        assert!(String::from_value(Value::Null).unwrap_err().reason.contains("NULL"));
    }

    #[test]
    fn json_holds_any_serde_type() {
        let tags = Json(vec!["a".to_owned(), "ü".to_owned()]);
        let value = tags.to_value().unwrap();
        assert_eq!(value, Value::Json(r#"["a","ü"]"#.into()));
        assert_eq!(Json::<Vec<String>>::from_value(value).unwrap(), tags);
    }
}
