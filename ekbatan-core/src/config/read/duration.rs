//! Durations as text: ISO 8601 (`PT10S`, `PT1M30S`, `P7D`), or a number with a unit (`500ms`,
//! `10s`, `5m`, `1h`, `7d`).

use std::time::Duration;

/// The accepted forms, for messages.
pub(super) const FORMS: &str =
    "write it as `500ms`, `10s`, `5m`, `1h` or `7d`, or in ISO 8601 as `PT10S`";

/// Parses a duration; `None` if the text is not one. What no `Duration` can hold becomes the longest
/// one.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let text = text.trim();
    match text.strip_prefix(['P', 'p']) {
        Some(iso) => iso_8601(iso),
        None => {
            let number = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let (number, unit) = text.split_at(number);
            let seconds = match unit.trim_start() {
                "ms" => return scaled(number, 1, 1_000),
                "s" => 1,
                "m" => 60,
                "h" => 3_600,
                "d" => 86_400,
                _ => return None,
            };
            scaled(number, seconds, 1)
        }
    }
}

/// Days, then `T`, then hours, minutes and seconds, each at most once and in this order. Years and
/// months are rejected because their length varies.
fn iso_8601(text: &str) -> Option<Duration> {
    let text = text.to_ascii_uppercase();
    let (days, time) = match text.split_once('T') {
        Some((_, "")) => return None,
        Some((days, time)) => (days, time),
        None => (text.as_str(), ""),
    };
    let mut total = Duration::ZERO;
    let mut any = false;
    for (mut rest, units) in
        [(days, &[('D', 86_400)][..]), (time, &[('H', 3_600), ('M', 60), ('S', 1)][..])]
    {
        for &(unit, seconds) in units {
            if let Some((number, after)) = rest.split_once(unit) {
                total = total.saturating_add(scaled(number, seconds, 1)?);
                rest = after;
                any = true;
            }
        }
        if !rest.is_empty() {
            return None;
        }
    }
    any.then_some(total)
}

/// `number * seconds / divisor`, exactly, to the nanosecond.
fn scaled(number: &str, seconds: u128, divisor: u128) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || number.ends_with('.') {
        return None;
    }
    if fraction.len() > 9 {
        return None;
    }
    // Only digits, so it fails on a number that is too large and on nothing else.
    let nanos = format!("{whole}{fraction:0<9}").parse().unwrap_or(u128::MAX);
    let nanos = nanos.saturating_mul(seconds) / divisor;
    Some(match u64::try_from(nanos / 1_000_000_000) {
        Ok(seconds) => Duration::new(seconds, (nanos % 1_000_000_000) as u32),
        Err(_) => Duration::MAX,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_mean_the_same_durations() {
        for (text, millis) in [
            ("PT10S", 10_000),
            ("PT0.5S", 500),
            ("PT1M30S", 90_000),
            ("PT2H", 7_200_000),
            ("P7D", 604_800_000),
            ("P1DT1S", 86_401_000),
            ("pt10s", 10_000),
            ("10s", 10_000),
            ("500ms", 500),
            ("1.5s", 1_500),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("7d", 604_800_000),
            ("10 s", 10_000),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn huge_numbers_become_the_longest_duration() {
        let digits = "9".repeat(60);
        for text in ["999999999999999999d", "P999999999999999999DT1S", &format!("{digits}ms")] {
            assert_eq!(parse(text), Some(Duration::MAX), "{text}");
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in [
            "", "10", "P", "PT", "P1", "P1Y", "P1M", "PT1D", "PT1S1M", "P1DT", "-5s", "PT-5S", "s",
            "1.s", ".5s", "1.2.3s", "10sec", "1e3s", "٣s",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
