//! Where time comes from.

use chrono::{DateTime, Utc};

/// A source of time. Everything that the framework dates, it dates by the clock that it
/// was given, so that a test can hold time still.
pub trait Clock: Send + Sync + 'static {
    /// The present instant.
    fn now(&self) -> DateTime<Utc>;
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> DateTime<Utc> {
        Utc::now()
    }
}

/// Databases keep microseconds: what is more precise would not come back as it was written.
///
/// A leap second, of which databases know nothing, is counted as they count it: as part of the
/// second after it.
pub(crate) fn to_micros(instant: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(instant.timestamp_micros()).unwrap_or(instant)
}
