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
use ekbatan_core::__private::deliveries::DeliveryState;
use ekbatan_core::action::Priority;

/// How long before the oldest delivery a look begins, unless older ones appeared.
const MARGIN: TimeDelta = TimeDelta::seconds(2);

/// How long before it a look begins at most. What is older belongs to no clock that is late, but to an
/// old event, of which there are no more soon.
const LONGEST_MARGIN: TimeDelta = TimeDelta::seconds(120);

/// What is looked for: the stored name of a handler, a state and a priority.
type Question = (String, DeliveryState, Priority);

/// From which date on a node looks for the deliveries of each name, state and priority.
#[derive(Debug, Clone)]
pub(crate) struct LookFrom {
    /// The oldest delivery that was found the last time, or the time at which there was none.
    oldest: HashMap<Question, DateTime<Utc>>,
    margin: TimeDelta,
}

/// What a look has found for a name, a state and a priority.
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
    pub(crate) fn date(
        &self,
        name: &str,
        state: DeliveryState,
        priority: Priority,
    ) -> Option<DateTime<Utc>> {
        let oldest = self.oldest.get(&(name.to_owned(), state, priority))?;
        oldest.checked_sub_signed(self.margin)
    }

    /// Takes note of a look. If an older delivery was found than looks began with, others like it
    /// are found at once from now on.
    pub(crate) fn note(
        &mut self,
        name: &str,
        state: DeliveryState,
        priority: Priority,
        found: Oldest,
    ) {
        let oldest = match found {
            Oldest::Unknown => return,
            Oldest::NoneAt(date) | Oldest::Due(date) => date,
        };
        let last = self.oldest.insert((name.to_owned(), state, priority), oldest);
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
    const NEW: DeliveryState = DeliveryState::New;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_767_323_045 + seconds, 0).unwrap()
    }

    fn date(from: &LookFrom) -> Option<DateTime<Utc>> {
        from.date(LEDGER, NEW, Priority::Normal)
    }

    fn note(from: &mut LookFrom, found: Oldest) {
        from.note(LEDGER, NEW, Priority::Normal, found);
    }

    #[test]
    fn a_look_begins_a_little_before_the_oldest_delivery_of_the_last_one() {
        let mut from = LookFrom::default();
        assert_eq!(date(&from), None, "the first look finds all");
        note(&mut from, Oldest::Due(at(100)));
        assert_eq!(date(&from), Some(at(98)));
        assert_eq!(from.date(LEDGER, DeliveryState::Waiting, Priority::Normal), None);
        assert_eq!(from.date(LEDGER, NEW, Priority::High), None);
        assert_eq!(from.date("mail.send", NEW, Priority::Normal), None);
        note(&mut from, Oldest::Unknown);
        assert_eq!(date(&from), Some(at(98)));
        note(&mut from, Oldest::NoneAt(at(200)));
        assert_eq!(date(&from), Some(at(198)));
    }

    #[test]
    fn deliveries_of_a_clock_that_is_late_are_expected_from_then_on() {
        let mut from = LookFrom::default();
        note(&mut from, Oldest::NoneAt(at(100)));
        // A round that checks has found it.
        note(&mut from, Oldest::Due(at(70)));
        note(&mut from, Oldest::NoneAt(at(200)));
        assert_eq!(date(&from), Some(at(140)));
        // What is later than the last one changes nothing, nor does an old event.
        note(&mut from, Oldest::Due(at(300)));
        assert_eq!(date(&from), Some(at(240)));
        note(&mut from, Oldest::Due(at(0)));
        note(&mut from, Oldest::NoneAt(at(400)));
        assert_eq!(date(&from), Some(at(340)));
        from.forget();
        assert_eq!(date(&from), None);
    }
}
