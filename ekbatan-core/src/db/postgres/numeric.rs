//! Reads a `numeric` exactly. sqlx rounds a value that has more digits than a `Decimal` holds, and
//! the next update of the row would store the rounded value.

use std::fmt::Write;

use rust_decimal::Decimal;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Postgres, Type};

use crate::db::exact_decimal;

/// The signs that the server sends.
const POSITIVE: u16 = 0;
const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;

pub(super) struct ExactDecimal(pub(super) Decimal);

impl Type<Postgres> for ExactDecimal {
    fn type_info() -> PgTypeInfo {
        <Decimal as Type<Postgres>>::type_info()
    }
}

impl Decode<'_, Postgres> for ExactDecimal {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        let decimal = match value.format() {
            PgValueFormat::Text => exact_decimal(value.as_str()?),
            PgValueFormat::Binary => {
                exact_decimal(&text(value.as_bytes()?).ok_or("the server sent no numeric")?)
            }
        };
        Ok(Self(decimal?))
    }
}

/// The text that the server would have sent instead of these bytes. They are a header of four words and
/// then groups of four digits. The value of the first group is multiplied by `10000^weight`.
fn text(bytes: &[u8]) -> Option<String> {
    let (words, []) = bytes.as_chunks::<2>() else { return None };
    let words: Vec<u16> = words.iter().map(|word| u16::from_be_bytes(*word)).collect();
    let [count, weight, sign, scale, groups @ ..] = &words[..] else { return None };
    if usize::from(*count) != groups.len() {
        return None;
    }
    let mut text = match *sign {
        POSITIVE => String::new(),
        NEGATIVE => "-".to_owned(),
        NAN => return Some("NaN".to_owned()),
        INFINITY => return Some("Infinity".to_owned()),
        NEGATIVE_INFINITY => return Some("-Infinity".to_owned()),
        _ => return None,
    };
    let weight = i32::from(weight.cast_signed());
    // Groups of zeros at either end are not sent.
    let group = |power: i32| {
        let at = usize::try_from(weight - power).ok();
        at.and_then(|at| groups.get(at)).copied().unwrap_or_default()
    };
    let first = weight.max(0);
    let _ = write!(text, "{}", group(first));
    for power in (0..first).rev() {
        let _ = write!(text, "{:04}", group(power));
    }
    let last = (weight + 1 - i32::from(*count)).min(-i32::from(scale.div_ceil(4)));
    if last < 0 {
        let shown = text.len() + 1 + usize::from(*scale);
        text.push('.');
        for power in (last..0).rev() {
            let _ = write!(text, "{:04}", group(power));
        }
        text.truncate(text.trim_end_matches('0').len().max(shown));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use sqlx::Encode;
    use sqlx::postgres::PgArgumentBuffer;

    use super::*;

    fn sent(weight: i16, sign: u16, scale: u16, groups: &[u16]) -> Vec<u8> {
        let header = [groups.len() as u16, weight.cast_unsigned(), sign, scale];
        header.iter().chain(groups).flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn bytes_have_the_text_that_the_server_writes() {
        for (weight, sign, scale, groups, expected) in [
            (0, POSITIVE, 0, &[][..], "0"),
            (0, POSITIVE, 2, &[], "0.00"),
            (0, POSITIVE, 2, &[1, 5000], "1.50"),
            (0, NEGATIVE, 10, &[1, 5000], "-1.5000000000"),
            (1, POSITIVE, 0, &[1], "10000"),
            (2, NEGATIVE, 1, &[12, 34], "-1200340000.0"),
            (-1, POSITIVE, 5, &[12, 3000], "0.00123"),
            (-3, POSITIVE, 12, &[1], "0.000000000001"),
            (1, POSITIVE, 4, &[1, 2, 3], "10002.0003"),
            (0, NAN, 0, &[], "NaN"),
            (0, INFINITY, 0, &[], "Infinity"),
            (0, NEGATIVE_INFINITY, 0, &[], "-Infinity"),
        ] {
            let bytes = sent(weight, sign, scale, groups);
            assert_eq!(text(&bytes).as_deref(), Some(expected));
            for cut in 0..bytes.len() {
                assert_eq!(text(&bytes[..cut]), None, "{expected}, cut at {cut}");
            }
        }
        assert_eq!(text(&sent(0, 0x1000, 0, &[1])), None);
    }

    /// With as many decimals as it had.
    #[test]
    fn every_decimal_is_read_as_it_was_sent() {
        let most = Decimal::MAX.mantissa();
        let mantissas = [1, 7, 10, 1_234, 9_999, 10_000, 500_000, 99_990_001, most / 10, most];
        for mantissa in mantissas.iter().flat_map(|mantissa| [*mantissa, -mantissa]) {
            for scale in 0..=Decimal::MAX_SCALE {
                let decimal = Decimal::from_i128_with_scale(mantissa, scale);
                let mut bytes = PgArgumentBuffer::default();
                let _ = Encode::<Postgres>::encode_by_ref(&decimal, &mut bytes).unwrap();
                let text = text(&bytes).unwrap();
                assert_eq!(text, decimal.to_string());
                let read = exact_decimal(&text).unwrap();
                assert_eq!((read.mantissa(), read.scale()), (mantissa, scale));
            }
        }
    }
}
