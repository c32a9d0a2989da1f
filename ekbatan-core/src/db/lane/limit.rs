//! How many lanes a database has.
//!
//! Batches that come while the lanes commit wait, and share the next statement. If most of a
//! commit's time is work of the server, few lanes with fuller statements are better. If most of it
//! is the way to the server and back, another statement at once is better. So the longer that way
//! takes, the more lanes there are, unless the configuration gives a number.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many lanes there are if the server is near.
const LEAST: usize = 2;

/// How many there are if it is far.
const MOST: usize = 8;

/// For each such time that a round trip takes, there is one lane more.
pub(super) const STEP: Duration = Duration::from_micros(500);

pub(super) struct LaneLimit {
    least: usize,
    most: usize,
    measured: Mutex<Measured>,
}

struct Measured {
    last_trip: Duration,
    lanes: usize,
}

impl LaneLimit {
    /// `configured` is the number in the configuration, `of_dialect` the most that the dialect
    /// allows.
    pub(super) fn new(configured: Option<usize>, of_dialect: Option<usize>) -> Self {
        let of_dialect = of_dialect.unwrap_or(usize::MAX);
        let least = configured.unwrap_or(LEAST).min(of_dialect);
        let most = configured.unwrap_or(MOST).min(of_dialect);
        let measured = Measured { last_trip: Duration::ZERO, lanes: least };
        Self { least, most, measured: Mutex::new(measured) }
    }

    /// How many lanes there should be.
    pub(super) fn lanes(&self) -> usize {
        self.measured().lanes
    }

    /// Whether the number depends on the way to the server.
    pub(super) fn is_measured(&self) -> bool {
        self.least < self.most
    }

    /// Sets the number after a round trip has taken so long. The shorter one of the last two counts: a
    /// busy machine makes a trip longer, and nothing makes it shorter.
    pub(super) fn set_by(&self, trip: Duration) {
        let mut measured = self.measured();
        let shorter = trip.min(measured.last_trip);
        let steps = usize::try_from(shorter.as_nanos() / STEP.as_nanos()).unwrap_or(MOST);
        measured.last_trip = trip;
        measured.lanes = self.least.saturating_add(steps).min(self.most);
    }

    fn measured(&self) -> MutexGuard<'_, Measured> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(limit: &LaneLimit, trip: Duration) -> usize {
        limit.set_by(trip);
        limit.lanes()
    }

    fn with_trips_of(micros: u64) -> usize {
        let limit = LaneLimit::new(None, None);
        limit.set_by(Duration::from_micros(micros));
        after(&limit, Duration::from_micros(micros))
    }

    #[test]
    fn the_longer_the_way_the_more_lanes() {
        assert_eq!(LaneLimit::new(None, None).lanes(), LEAST);
        assert_eq!([100, 499, 500, 1_200, 60_000_000].map(with_trips_of), [2, 2, 3, 4, MOST]);
    }

    #[test]
    fn a_single_slow_trip_makes_no_lane() {
        let limit = LaneLimit::new(None, None);
        let (near, slow) = (Duration::from_micros(100), Duration::from_millis(5));
        assert_eq!([slow, near, slow, near].map(|trip| after(&limit, trip)), [LEAST; 4]);
        assert_eq!([slow, slow, near].map(|trip| after(&limit, trip)), [LEAST, MOST, LEAST]);
    }

    #[test]
    fn the_longest_trip_is_counted() {
        let limit = LaneLimit::new(None, None);
        assert_eq!([Duration::MAX; 2].map(|trip| after(&limit, trip)), [LEAST, MOST]);
    }

    #[test]
    fn a_number_in_the_configuration_holds_wherever_the_server_is() {
        for number in [1, 2, 3, 100] {
            let limit = LaneLimit::new(Some(number), None);
            assert_eq!((limit.lanes(), limit.is_measured()), (number, false));
        }
    }

    #[test]
    fn a_dialect_with_one_lane_has_one() {
        for configured in [None, Some(4)] {
            let limit = LaneLimit::new(configured, Some(1));
            assert_eq!((limit.lanes(), limit.is_measured()), (1, false));
        }
    }
}
