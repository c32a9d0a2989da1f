//! How many lanes may commit at the same time.
//!
//! Batches that come while the lanes commit wait, and share the next statement. If most of a
//! commit's time is work of the server, few lanes with fuller statements are better. If most of it
//! is the way to the server and back, another statement at once is better. So the longer that way
//! takes, the more lanes may commit, unless the configuration gives a number.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How many lanes may commit if the server is near.
const LEAST: usize = 2;

/// How many lanes may commit if the server is far.
const MOST: usize = 8;

/// For each such time that a round trip takes, one more lane may commit.
const STEP: Duration = Duration::from_micros(500);

pub(super) struct LaneLimit {
    most: usize,
    now: AtomicUsize,
    /// Whether the number depends on the way to the server.
    is_measured: bool,
}

impl LaneLimit {
    /// `configured` is the number in the configuration, `of_dialect` the most that the dialect
    /// allows.
    pub(super) fn new(configured: Option<usize>, of_dialect: Option<usize>) -> Self {
        let of_dialect = of_dialect.unwrap_or(usize::MAX);
        let most = configured.unwrap_or(MOST).min(of_dialect);
        let now = configured.unwrap_or(LEAST).min(of_dialect);
        Self { most, now: AtomicUsize::new(now), is_measured: now < most }
    }

    /// How many lanes there are.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// How many of them may commit now.
    pub(super) fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// Whether the number depends on the way to the server.
    pub(super) fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// Sets the number by the time of a round trip.
    pub(super) fn set_by(&self, trip: Duration) {
        let steps = usize::try_from(trip.as_nanos() / STEP.as_nanos()).unwrap_or(MOST);
        self.now.store(LEAST.saturating_add(steps).min(self.most), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_trips_of(micros: u64) -> usize {
        let limit = LaneLimit::new(None, None);
        limit.set_by(Duration::from_micros(micros));
        limit.now()
    }

    #[test]
    fn the_longer_the_way_the_more_lanes_commit() {
        assert_eq!(LaneLimit::new(None, None).now(), LEAST);
        assert_eq!([100, 499, 500, 1_200, 60_000_000].map(with_trips_of), [2, 2, 3, 4, MOST]);
    }

    #[test]
    fn a_server_that_moves_nearer_is_sent_fuller_statements_again() {
        let limit = LaneLimit::new(None, None);
        limit.set_by(Duration::MAX);
        limit.set_by(Duration::ZERO);
        assert_eq!((limit.now(), limit.most()), (LEAST, MOST));
    }

    #[test]
    fn a_number_in_the_configuration_holds_wherever_the_server_is() {
        for number in [1, 2, 3, 100] {
            let limit = LaneLimit::new(Some(number), None);
            assert_eq!((limit.now(), limit.most(), limit.is_measured()), (number, number, false));
        }
    }

    #[test]
    fn a_dialect_with_one_lane_has_one() {
        for configured in [None, Some(4)] {
            let limit = LaneLimit::new(configured, Some(1));
            assert_eq!((limit.now(), limit.most(), limit.is_measured()), (1, 1, false));
        }
    }
}
