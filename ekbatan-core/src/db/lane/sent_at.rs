//! When batches were sent, and how long a missing row still says that they did not commit.

use std::time::{Instant, SystemTime};

use crate::db::eventlog::EVENTS_KEPT;

/// When batches were sent, by two clocks: one may stand still while the machine sleeps, the other
/// may be set back.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentAt {
    monotonic: Instant,
    system: SystemTime,
}

impl SentAt {
    pub(super) fn now() -> Self {
        Self { monotonic: Instant::now(), system: SystemTime::now() }
    }

    /// Whether a row that was written since cannot have been deleted. Half of the time is kept
    /// for the server's clock.
    pub(super) fn rows_are_kept(self) -> bool {
        let elapsed = self.system.elapsed().unwrap_or_default().max(self.monotonic.elapsed());
        elapsed < EVENTS_KEPT / 2
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_missing_row_means_not_committed_only_for_half_an_hour() {
        let now = SentAt::now();
        assert!(now.rows_are_kept());
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let earlier = |by| SentAt { system: now.system - by, ..now };
        assert!(earlier(minutes(29)).rows_are_kept());
        assert!(!earlier(minutes(31)).rows_are_kept());
        // The system's clock was set back since.
        let ahead = SentAt { system: now.system + minutes(90), ..now };
        assert!(ahead.rows_are_kept());
    }
}
