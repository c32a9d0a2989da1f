//! A clock that a test sets.

use std::sync::Mutex;

use ekbatan::clock::Clock;
use ekbatan::prelude::*;

/// A clock that stands still until a test sets it. It starts at `instant(0)`.
pub struct TestClock(Mutex<DateTime<Utc>>);

impl TestClock {
    /// Moves the clock to an instant.
    pub fn set(&self, instant: DateTime<Utc>) {
        *self.0.lock().unwrap() = instant;
    }
}

impl Default for TestClock {
    fn default() -> Self {
        Self(Mutex::new(instant(0)))
    }
}

impl Clock for TestClock {
    fn now(&self) -> DateTime<Utc> {
        *self.0.lock().unwrap()
    }
}

/// The start of every test plus `seconds`. It has nanoseconds, which databases do not store.
pub fn instant(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_767_323_045 + seconds, 678_901_234).unwrap()
}

/// The same instant as a database stores it: with microseconds.
pub fn stored_instant(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_767_323_045 + seconds, 678_901_000).unwrap()
}
