//! How many statements of one table are in flight at a time.
//!
//! Reads that come while a statement is in flight wait for the next one. If it takes little more
//! time than its work costs, they wait shortly, and fewer statements with more reads are better. If
//! most of its time is the way to the server and back, another statement at once is better.

use std::time::Duration;

/// For each such time that a statement takes, one more may be in flight.
const STEP: Duration = Duration::from_micros(250);

/// How many group tasks a table has at most. They leave connections to others.
const MAX_GROUPS: usize = 8;

/// The time of a fast statement among the recent ones: slow ones wait for a connection or for the
/// processor.
#[derive(Default, Clone, Copy)]
pub(super) struct ReadPace(Option<Duration>);

impl ReadPace {
    pub(super) fn record(&mut self, took: Duration) {
        // Without the growth the time of the fastest statement ever would stay.
        self.0 = Some(self.0.map_or(took, |fast| took.min(fast + fast / 16)));
    }

    /// How many group tasks may run. `age` is how long ago the last statement was sent: if it hangs,
    /// the reads that come do not wait for it.
    pub(super) fn max_groups(self, age: Duration) -> usize {
        let time = self.0.unwrap_or_default().max(age);
        let steps = time.as_nanos() / STEP.as_nanos();
        usize::try_from(steps).unwrap_or(MAX_GROUPS).clamp(1, MAX_GROUPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_AGE: Duration = Duration::ZERO;

    fn pace(micros: &[u64]) -> ReadPace {
        let mut pace = ReadPace::default();
        micros.iter().for_each(|took| pace.record(Duration::from_micros(*took)));
        pace
    }

    #[test]
    fn slow_statements_are_sent_beside_each_other_and_fast_ones_are_not() {
        assert_eq!(ReadPace::default().max_groups(NO_AGE), 1);
        assert_eq!(pace(&[100, 90, 5_000, 400]).max_groups(NO_AGE), 1);
        assert_eq!(pace(&[2_100, 2_300, 9_000]).max_groups(NO_AGE), MAX_GROUPS);
        assert_eq!(pace(&[1_100]).max_groups(NO_AGE), 4);
    }

    #[test]
    fn the_pace_follows_a_server_that_has_become_slower() {
        let slower: Vec<u64> = [100].into_iter().chain([2_000; 100]).collect();
        assert_eq!(pace(&slower).max_groups(NO_AGE), MAX_GROUPS);
    }

    #[test]
    fn a_statement_that_hangs_delays_nobody_else() {
        assert_eq!(pace(&[100]).max_groups(Duration::from_millis(20)), MAX_GROUPS);
    }
}
