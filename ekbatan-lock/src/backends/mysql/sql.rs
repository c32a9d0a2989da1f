//! Values and times as SQL literals, for texts of several statements.
//!
//! Invariants: no value can end its literal. Times are UTC by the server's clock at the start
//! of the statement, whatever the time zone of the server or session.

use std::fmt::Write as _;
use std::time::Duration;

use uuid::Uuid;

/// A time before all others.
pub(super) const NEVER: &str = "TIMESTAMP'1970-01-01 00:00:00'";

/// Milliseconds since 1970: the minimum of tokens, so that they grow even if the table is
/// lost.
pub(super) const MILLIS: &str =
    "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000";

/// The time in microseconds since 1970.
pub(super) const MICROS: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The longest term that keeps a date within its range.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(super) fn text(value: &str) -> String {
    format!("_utf8mb4 {}", bytes(value.as_bytes()))
}

/// A list of texts.
pub(super) fn texts<T: AsRef<str>>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| text(value.as_ref())).collect::<Vec<_>>().join(", ")
}

/// The condition that a key begins with one of the prefixes.
pub(super) fn begins_with(prefixes: &[String]) -> String {
    let begins =
        |prefix: &String| format!("LEFT(lock_key, {}) = {}", prefix.chars().count(), text(prefix));
    format!("({})", prefixes.iter().map(begins).collect::<Vec<_>>().join(" OR "))
}

pub(super) fn uuid(value: Uuid) -> String {
    bytes(value.as_bytes())
}

fn bytes(value: &[u8]) -> String {
    let mut literal = String::with_capacity(value.len() * 2 + 3);
    literal.push_str("x'");
    for byte in value {
        // Writing to a String does not fail.
        let _ = write!(literal, "{byte:02x}");
    }
    literal.push('\'');
    literal
}

/// The name of a database or table.
pub(super) fn name(value: &str) -> String {
    format!("`{}`", value.replace('`', "``"))
}

/// In microseconds, rounded up: the server must not free a key earlier than its holder expects.
pub(super) fn micros(term: Duration) -> u128 {
    term.min(LONGEST).as_micros() + 1
}

/// The moment after this time.
pub(super) fn in_time(term: Duration) -> String {
    format!("UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND", micros(term))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_ends_its_literal() {
        assert_eq!(text("a'ż"), "_utf8mb4 x'6127c5bc'");
        assert_eq!(text(""), "_utf8mb4 x''");
        assert_eq!(name("a`b"), "`a``b`");
    }

    #[test]
    fn terms_stay_within_the_range_of_dates() {
        assert_eq!(micros(Duration::from_nanos(1_500)), 2);
        assert_eq!(micros(Duration::MAX), 3_153_600_000_000_001);
    }
}
