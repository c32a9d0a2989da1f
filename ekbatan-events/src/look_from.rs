//! From which date on a node looks for deliveries that are due.
//!
//! A delivery that was claimed leaves an entry in the index behind, and a transaction that was open
//! before keeps the database from removing it. A look that begins at the start of the index would
//! pass all of these entries, more in each round. So a look begins a little before the oldest
//! delivery that the last one found.
//!
//! Nothing relies on these dates: a commit of a process with another clock, one that took long, or a
//! sweep of old events may bring an older delivery. A round that checks looks from the start of the
//! index again.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};

/// How long before the oldest delivery a look begins, unless older ones appeared.
const MARGIN: TimeDelta = TimeDelta::seconds(2);

/// How long before it a look begins at most. What is older belongs to no clock that is late, but to an
/// old event, of which there are no more soon.
const LONGEST_MARGIN: TimeDelta = TimeDelta::seconds(120);

/// A stored name of a handler, and which of the states.
type Question = (String, usize);

/// From which date on a node looks for the deliveries of each name and state.
#[derive(Debug, Clone)]
pub(crate) struct LookFrom {
    /// The oldest delivery that was found the last time, or the time at which there was none.
    oldest: HashMap<Question, DateTime<Utc>>,
    margin: TimeDelta,
}

/// What a look has found for a name and a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Oldest {
    /// Nothing, at this time.
    NoneAt(DateTime<Utc>),
    /// Deliveries, the oldest of which was due at this time.
    Due(DateTime<Utc>),
    /// The oldest one was not read.
    Unknown,
}

impl Default for LookFrom {
    fn default() -> Self {
        Self { oldest: HashMap::new(), margin: MARGIN }
    }
}

impl LookFrom {
    /// The date from which on to look; `None` for all.
    pub(crate) fn date(&self, name: &str, state: usize) -> Option<DateTime<Utc>> {
        let oldest = self.oldest.get(&(name.to_owned(), state))?;
        oldest.checked_sub_signed(self.margin)
    }

    /// Takes note of a look. If an older delivery was found than looks began with, others like it
    /// are found at once from now on.
    pub(crate) fn note(&mut self, name: &str, state: usize, found: Oldest) {
        let oldest = match found {
            Oldest::Unknown => return,
            Oldest::NoneAt(date) | Oldest::Due(date) => date,
        };
        let last = self.oldest.insert((name.to_owned(), state), oldest);
        if let (Some(last), Oldest::Due(_)) = (last, found) {
            let margin = (last - oldest).checked_mul(2).filter(|margin| *margin <= LONGEST_MARGIN);
            self.margin = margin.map_or(self.margin, |margin| margin.max(self.margin));
        }
    }

    /// Lets the next look find all, because older deliveries have appeared.
    pub(crate) fn forget(&mut self) {
        self.oldest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEDGER: &str = "ledger.post";

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_767_323_045 + seconds, 0).unwrap()
    }

    #[test]
    fn a_look_begins_a_little_before_the_oldest_delivery_of_the_last_one() {
        let mut from = LookFrom::default();
        assert_eq!(from.date(LEDGER, 0), None, "the first look finds all");
        from.note(LEDGER, 0, Oldest::Due(at(100)));
        assert_eq!(from.date(LEDGER, 0), Some(at(98)));
        assert_eq!(from.date(LEDGER, 1), None);
        assert_eq!(from.date("mail.send", 0), None);
        from.note(LEDGER, 0, Oldest::Unknown);
        assert_eq!(from.date(LEDGER, 0), Some(at(98)));
        from.note(LEDGER, 0, Oldest::NoneAt(at(200)));
        assert_eq!(from.date(LEDGER, 0), Some(at(198)));
    }

    #[test]
    fn deliveries_of_a_clock_that_is_late_are_expected_from_then_on() {
        let mut from = LookFrom::default();
        from.note(LEDGER, 0, Oldest::NoneAt(at(100)));
        // A round that checks has found it.
        from.note(LEDGER, 0, Oldest::Due(at(70)));
        from.note(LEDGER, 0, Oldest::NoneAt(at(200)));
        assert_eq!(from.date(LEDGER, 0), Some(at(140)));
        // What is later than the last one changes nothing, nor does an old event.
        from.note(LEDGER, 0, Oldest::Due(at(300)));
        assert_eq!(from.date(LEDGER, 0), Some(at(240)));
        from.note(LEDGER, 0, Oldest::Due(at(0)));
        from.note(LEDGER, 0, Oldest::NoneAt(at(400)));
        assert_eq!(from.date(LEDGER, 0), Some(at(340)));
        from.forget();
        assert_eq!(from.date(LEDGER, 0), None);
    }
}
