//! Which looks into the queues of the framework are planned for each call.
//!
//! A prepared look is planned once, perhaps while its queue was empty, and keeps the plan of a scan
//! while the queue grows, until the server has counted the rows anew. So a look that was slow is planned
//! for each call from then on, for a while, without scans of whole tables. What every look of the session
//! takes, the way to the server, does not count.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than a look takes with a good plan, beside the way to the server.
const SLOW: Duration = Duration::from_millis(5);

/// For how long a look is planned for each call. By then a server has counted the rows anew, if it is
/// left to its defaults.
const PLANNED: Duration = Duration::from_secs(60);

/// By how much the quickest look is taken to be slower with each further one.
const LONGER: f64 = 1.1;

/// How many looks are remembered.
const MOST: usize = 256;

/// The looks of a session.
#[derive(Default)]
pub(super) struct PlannedLooks {
    /// Each with the time until which it is planned for each call.
    until: HashMap<Arc<str>, Instant>,
    /// What the quickest one took, of late.
    quickest: Option<Duration>,
}

impl PlannedLooks {
    /// Whether a look is planned for this call. The first one is: to prepare it takes a round trip more.
    pub(super) fn plan(&mut self, sql: &Arc<str>) -> bool {
        match self.until.get(sql) {
            Some(until) => Instant::now() < *until,
            None => {
                self.plan_for(sql, Duration::ZERO);
                true
            }
        }
    }

    /// Takes note of a look that was planned for its call, and took so long.
    pub(super) fn note_planned(&mut self, took: Duration) {
        // A way that gets longer is known after some looks.
        let quickest = self.quickest.map_or(took, |quickest| quickest.mul_f64(LONGER).min(took));
        self.quickest = Some(quickest);
    }

    /// Takes note of a look that was prepared, and took so long. Perhaps it failed for that.
    pub(super) fn note_prepared(&mut self, sql: &Arc<str>, took: Duration) {
        if took.saturating_sub(self.quickest.unwrap_or_default()) > SLOW {
            self.plan_for(sql, PLANNED);
        }
    }

    fn plan_for(&mut self, sql: &Arc<str>, time: Duration) {
        if self.until.len() >= MOST
            && let Some(oldest) = self.until.iter().min_by_key(|(_, until)| **until)
        {
            let oldest = oldest.0.clone();
            self.until.remove(&oldest);
        }
        self.until.insert(sql.clone(), Instant::now() + time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_look_is_planned_and_those_after_a_slow_one() {
        let (mut looks, sql) = (PlannedLooks::default(), Arc::from("SELECT"));
        assert!(looks.plan(&sql), "it is the first");
        looks.note_prepared(&sql, SLOW);
        assert!(!looks.plan(&sql), "it was quick");
        looks.note_prepared(&sql, SLOW * 2);
        assert!(looks.plan(&sql) && looks.plan(&sql));
    }

    #[test]
    fn the_way_to_the_server_makes_no_look_slow() {
        let (mut looks, sql) = (PlannedLooks::default(), Arc::from("SELECT"));
        assert!(looks.plan(&sql));
        looks.note_planned(SLOW * 10);
        looks.note_prepared(&sql, SLOW * 11);
        assert!(!looks.plan(&sql));
        looks.note_prepared(&sql, SLOW * 12);
        assert!(looks.plan(&sql));
    }

    #[test]
    fn a_slow_look_is_remembered_longer_than_quick_ones() {
        let (mut looks, slow) = (PlannedLooks::default(), Arc::from("SELECT"));
        looks.plan(&slow);
        looks.note_prepared(&slow, SLOW * 2);
        for n in 0..2 * MOST {
            looks.plan(&Arc::from(n.to_string()));
        }
        assert!(looks.plan(&slow));
        assert!(looks.until.len() <= MOST);
    }
}
