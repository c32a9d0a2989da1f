//! Durations as they are stored: a number and a unit, such as `15m`.

use std::time::Duration;

/// The longest duration of a schedule or a policy: a hundred years.
pub(crate) const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The units, the greatest first, in milliseconds.
const UNITS: [(&str, u128); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Writes a duration in the greatest unit in which it is a whole number. Parts of a millisecond are
/// cut off.
pub(crate) fn write(duration: Duration) -> String {
    let millis = duration.as_millis();
    let fits = |(_, unit): &&(&str, u128)| millis.is_multiple_of(*unit) && millis > 0;
    let (name, unit) = UNITS.iter().find(fits).unwrap_or(&("ms", 1));
    format!("{}{name}", millis / unit)
}

/// Reads what [`write`] writes. `None` for another text, and for more than the longest duration.
pub(crate) fn read(text: &str) -> Option<Duration> {
    let digits = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, name) = text.split_at_checked(digits)?;
    let (_, unit) = UNITS.iter().find(|(unit, _)| *unit == name)?;
    let millis = number.parse::<u64>().ok()?.checked_mul(u64::try_from(*unit).ok()?)?;
    Some(Duration::from_millis(millis)).filter(|duration| *duration <= LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_read_as_it_was_written() {
        for (millis, text) in
            [(0, "0ms"), (1, "1ms"), (1_500, "1500ms"), (90_000, "90s"), (900_000, "15m")]
        {
            let duration = Duration::from_millis(millis);
            assert_eq!(write(duration), text);
            assert_eq!(read(text), Some(duration));
        }
        assert_eq!(write(Duration::from_secs(48 * 3_600)), "48h");
        assert_eq!(read(&write(LONGEST)), Some(LONGEST));
    }

    #[test]
    fn another_text_is_no_duration() {
        for text in ["", "5", "m", "-5m", "5 m", "5d", "1.5h", "99999999999999999999h", "ä", "5ä"]
        {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read("876001h"), None, "more than a hundred years");
    }
}
