//! The source of time.

use chrono::{DateTime, Utc};

/// A source of time. The framework takes every date from the clock it was given, so that a test
/// can control time.
pub trait Clock: Send + Sync + 'static {
    /// The current instant.
    fn now(&self) -> DateTime<Utc>;
}

/// The system clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> DateTime<Utc> {
        Utc::now()
    }
}

/// Truncates to microseconds, the precision of the databases.
///
/// Databases have no leap seconds. A leap second becomes part of the second after it.
pub(crate) fn to_micros(instant: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(instant.timestamp_micros()).unwrap_or(instant)
}
