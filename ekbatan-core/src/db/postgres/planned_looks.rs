//! Which looks into the queues of the framework are planned for each call.
//!
//! A prepared look is planned once, perhaps while its queue was empty, and keeps the plan of a scan
//! while the queue grows, until the server has counted the rows anew. So a look that was slow is planned
//! for each call from then on, for a while, without scans of whole tables.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than a look takes with a good plan.
const SLOW: Duration = Duration::from_millis(5);

/// For how long a look is planned for each call. By then a server has counted the rows anew, if it is
/// left to its defaults.
const PLANNED: Duration = Duration::from_secs(60);

/// More looks than there are.
const MOST: usize = 64;

/// The looks of a session, each with the time until which it is planned for each call.
#[derive(Default)]
pub(super) struct PlannedLooks(HashMap<Arc<str>, Instant>);

impl PlannedLooks {
    /// Whether a look is planned for this call. The first one is: to prepare it takes a round trip more.
    pub(super) fn plan(&mut self, sql: &Arc<str>) -> bool {
        match self.0.get(sql) {
            Some(until) => Instant::now() < *until,
            None => {
                self.plan_for(sql, Duration::ZERO);
                true
            }
        }
    }

    /// Takes note of a look that was prepared, and took so long.
    pub(super) fn note(&mut self, sql: &Arc<str>, took: Duration) {
        if took > SLOW {
            self.plan_for(sql, PLANNED);
        }
    }

    fn plan_for(&mut self, sql: &Arc<str>, time: Duration) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(sql.clone(), Instant::now() + time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_look_is_planned_and_those_after_a_slow_one() {
        let (mut looks, sql) = (PlannedLooks::default(), Arc::from("SELECT"));
        assert!(looks.plan(&sql), "it is the first");
        looks.note(&sql, SLOW);
        assert!(!looks.plan(&sql), "it was quick");
        looks.note(&sql, SLOW * 2);
        assert!(looks.plan(&sql) && looks.plan(&sql));
        for n in 0..2 * MOST {
            looks.plan(&Arc::from(n.to_string()));
        }
        assert!(looks.0.len() <= MOST);
    }
}
