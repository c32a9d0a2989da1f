//! How long to wait for a lock, and how long to hold it.

use std::time::Duration;

/// The longest wait and the longest hold. Clocks cannot count to the end of every `Duration`.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 86_400);

/// How long to wait for a lock, the maximum time to hold it, and the term at the server.
///
/// ```
/// use std::time::Duration;
/// use ekbatan_lock::LockOptions;
///
/// let short = LockOptions::wait(Duration::from_secs(2)).hold(Duration::from_secs(10));
/// let long = LockOptions::default()
///     .hold(Duration::from_secs(3600))
///     .renewed(Duration::from_secs(15)); // after a crash the key is free in 15 s, not an hour
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockOptions {
    /// Maximum time to wait, everything included. Default 90 s.
    pub max_wait: Duration,
    /// Maximum time to hold: a cap, not a hint. Default 90 s.
    pub max_hold: Duration,
    /// The term at the server, which is renewed while the holder lives, never beyond
    /// `max_hold`. Default: none, the term is `max_hold`.
    pub term: Option<Duration>,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self { max_wait: Duration::from_secs(90), max_hold: Duration::from_secs(90), term: None }
    }
}

impl LockOptions {
    /// Waits at most this long. Zero takes a free lock and does not wait for a taken one.
    pub fn wait(max_wait: Duration) -> Self {
        Self { max_wait, ..Self::default() }
    }

    /// Holds at most this long.
    #[must_use]
    pub fn hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = max_hold;
        self
    }

    /// Holds the key at the server for a shorter term, which is renewed.
    #[must_use]
    pub fn renewed(mut self, term: Duration) -> Self {
        self.term = Some(term);
        self
    }

    /// The same options, with times that a clock can count.
    pub(crate) fn countable(self) -> Self {
        Self {
            max_wait: countable(self.max_wait),
            max_hold: countable(self.max_hold),
            term: self.term.map(countable),
        }
    }
}

/// The time, or the longest one that a clock can count.
pub(crate) fn countable(time: Duration) -> Duration {
    time.min(LONGEST)
}
