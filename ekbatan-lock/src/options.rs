//! How long to wait for a lock and how long to hold it.

use std::time::Duration;

/// How long to wait for a lock, how long to hold it at most, and whether its term at the
/// server is shorter than that.
///
/// ```
/// use std::time::Duration;
/// use ekbatan_lock::LockOptions;
///
/// let short = LockOptions::wait(Duration::from_secs(2)).hold(Duration::from_secs(10));
/// let long = LockOptions::default()
///     .hold(Duration::from_secs(3600))
///     .renewed(Duration::from_secs(15)); // a crash frees the key after 15 s, not an hour
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockOptions {
    /// How long to wait at most, everything counted. Default 90 s.
    pub max_wait: Duration,
    /// How long to hold at most: a cap, not a hint. Default 90 s.
    pub max_hold: Duration,
    /// The term at the server, renewed for as long as the holder lives and never beyond
    /// `max_hold`. Default: none, the term is `max_hold`.
    pub term: Option<Duration>,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self { max_wait: Duration::from_secs(90), max_hold: Duration::from_secs(90), term: None }
    }
}

impl LockOptions {
    /// Waits so long at most; zero takes a lock that is free and waits for none.
    pub fn wait(max_wait: Duration) -> Self {
        Self { max_wait, ..Self::default() }
    }

    /// Holds so long at most.
    #[must_use]
    pub fn hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = max_hold;
        self
    }

    /// Holds by a shorter term at the server, which is renewed.
    #[must_use]
    pub fn renewed(mut self, term: Duration) -> Self {
        self.term = Some(term);
        self
    }
}
