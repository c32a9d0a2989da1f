//! The source of time.

use chrono::{DateTime, Utc};

/// A source of time. The dates of models, ids and actions come from the clock that the framework was
/// given, so that a test can control them. What several processes have to agree on, such as the ends
/// of leases and the slots of jobs, goes by the clock of the database.
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
