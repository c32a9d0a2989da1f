//! Values that are read as they are stored, or refused.
//!
//! A value that was rounded or taken for another one would not be found again by what was read, and the
//! next update of its row would store it.

#[cfg(any(feature = "postgres", feature = "mysql"))]
use rust_decimal::Decimal;

#[cfg(any(feature = "postgres", feature = "mysql"))]
use super::beginning;
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

/// The decimal of a text, with its zeros at the end.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn exact_decimal(text: &str) -> Result<Decimal, String> {
    // A column may have more zeros than a Decimal can hold.
    let (digits, scale) = match text.split_once('.') {
        Some((_, decimals)) => {
            (text.trim_end_matches('0').trim_end_matches('.'), decimals.len() as u32)
        }
        None => (text, 0),
    };
    let mut decimal = Decimal::from_str_exact(digits)
        .map_err(|e| format!("{} is no decimal that fits: {e}", beginning(text)))?;
    // It gets back the zeros that fit. A zero has none: sqlx reads `0.00` as `0`.
    if !decimal.is_zero() {
        decimal.rescale(scale.clamp(decimal.scale(), Decimal::MAX_SCALE));
    }
    Ok(decimal)
}

#[cfg(all(test, any(feature = "postgres", feature = "mysql")))]
mod tests {
    use super::*;

    #[test]
    fn zeros_at_the_end_are_no_reason_to_refuse_a_value() {
        let zeros = "0".repeat(40);
        for (text, read) in [
            (format!("0.{zeros}"), "0".to_owned()),
            (format!("1.5{zeros}"), format!("1.5{}", &zeros[..27])),
            (
                format!("99999999999.123456789012345{zeros}"),
                "99999999999.12345678901234500".to_owned(),
            ),
            (format!("{}.{zeros}", Decimal::MAX), Decimal::MAX.to_string()),
        ] {
            assert_eq!(exact_decimal(&text).unwrap().to_string(), read);
        }
    }

    #[test]
    fn what_would_be_rounded_is_refused_by_its_text() {
        for text in [
            "99999999999.123456789012345678",
            "79228162514264337593543950336",
            "-0.00000000000000000000000000001",
            "NaN",
            "-Infinity",
        ] {
            let error = exact_decimal(text).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
