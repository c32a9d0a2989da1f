//! Which of the slots that are due are run.
//!
//! Several may be due at once: no node ran, or a run took longer than the time between two slots.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::schedule::Schedule;
use crate::span;

/// The most slots of a decision that are counted.
const MOST_COUNTED: u64 = 10_000;

/// The most runs that are caught up.
const MOST_CAUGHT_UP: u32 = 1_000;

/// The shortest grace. A node needs a few statements to decide on a slot.
const SHORTEST_GRACE: Duration = Duration::from_millis(100);

/// What happens to slots that could not be run in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Misfire {
    /// One run, for the last one of them.
    #[default]
    Coalesce,
    /// A run for each of the last ones, at most this many, the oldest first. At most 1,000.
    CatchUp(u32),
    /// One run, for the last one of them, unless it has been due for longer than this.
    Skip {
        /// How late a run may begin; at least 100 ms. Once a node has taken it, it is run, also if another one has to
        /// begin it again.
        grace: Duration,
    },
}

/// Slots that are not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Omitted {
    pub(crate) first: DateTime<Utc>,
    pub(crate) last: DateTime<Utc>,
    /// How many there are, or [`MOST_COUNTED`] if there are more.
    pub(crate) count: u64,
}

/// What is decided on the slots that are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The slots that are run, the oldest first.
    pub(crate) run: Vec<DateTime<Utc>>,
    /// Those that are not.
    pub(crate) omitted: Option<Omitted>,
    /// The next slot that is not decided on.
    pub(crate) next: Option<DateTime<Utc>>,
}

impl Decision {
    /// The same in parts that add at most so many runs each, the earliest ones first. Each decides on the
    /// slots before those of the next part.
    pub(crate) fn parts(self, most: usize) -> Vec<Self> {
        let (mut parts, mut rest) = (Vec::new(), self);
        while rest.run.len() > most {
            let later = rest.run.split_off(most);
            let first = later.first().copied();
            let later = Decision { run: later, omitted: None, next: rest.next };
            parts.push(Decision { next: first, ..rest });
            rest = later;
        }
        parts.push(rest);
        parts
    }
}

impl Misfire {
    /// Decides on the slots from the first one that is undecided up to now. That one is due.
    pub(crate) fn decide(
        self,
        schedule: &Schedule,
        first: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Decision {
        if schedule.is_delay() {
            let run = if self.may_begin(first, now) { vec![first] } else { Vec::new() };
            let omitted = run.is_empty().then_some(Omitted { first, last: first, count: 1 });
            // If it runs, its end decides.
            let next = if run.is_empty() { schedule.next_after(now) } else { None };
            return Decision { run, omitted, next };
        }
        let most = match self {
            Misfire::CatchUp(most) => most as usize,
            Misfire::Coalesce | Misfire::Skip { .. } => 1,
        };
        let mut run = last_slots(schedule, first, now, most);
        run.retain(|slot| self.may_begin(*slot, now));
        let omitted = omit(schedule, first, run.first().copied(), now);
        Decision { run, omitted, next: schedule.next_after(now) }
    }

    /// Whether a slot is not run once it has been due for too long.
    pub(crate) fn skips_what_is_late(self) -> bool {
        matches!(self, Misfire::Skip { .. })
    }

    fn may_begin(self, slot: DateTime<Utc>, now: DateTime<Utc>) -> bool {
        match self {
            Misfire::Skip { grace } => (now - slot).to_std().unwrap_or_default() <= grace,
            Misfire::Coalesce | Misfire::CatchUp(_) => true,
        }
    }

    /// What is wrong with it.
    pub(crate) fn fault(self) -> Option<String> {
        match self {
            Misfire::CatchUp(most) if most == 0 || most > MOST_CAUGHT_UP => {
                Some(format!("{most} runs cannot be caught up; use 1 to {MOST_CAUGHT_UP}"))
            }
            Misfire::Skip { grace } if grace > span::LONGEST => {
                Some(format!("{grace:?} is too long; use at most a hundred years"))
            }
            Misfire::Skip { grace } if grace < SHORTEST_GRACE => Some(format!(
                "no node is sure to begin a run within {grace:?}; use at least {SHORTEST_GRACE:?}"
            )),
            _ => None,
        }
    }
}

/// The slots that are due and not later than an instant, of which a run was active.
pub(crate) fn omit_until(
    schedule: &Schedule,
    first: DateTime<Utc>,
    until: DateTime<Utc>,
) -> Option<Omitted> {
    omit(schedule, first, None, until)
}

/// The slots from the first one on which come before another one, and not after `now`.
fn omit(
    schedule: &Schedule,
    first: DateTime<Utc>,
    before: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Option<Omitted> {
    let is_omitted =
        |slot: &DateTime<Utc>| *slot <= now && before.is_none_or(|before| *slot < before);
    let mut slots = std::iter::successors(Some(first), |slot| schedule.next_after(*slot));
    let count = slots.by_ref().take_while(is_omitted).take(MOST_COUNTED as usize).count() as u64;
    let until = before.map_or(now, |before| before - TimeDelta::milliseconds(1));
    let last = last_slots(schedule, first, until, 1).pop()?;
    Some(Omitted { first, last, count }).filter(|omitted| omitted.count > 0)
}

/// The last slots from the first one up to an instant, the oldest first.
fn last_slots(
    schedule: &Schedule,
    first: DateTime<Utc>,
    until: DateTime<Utc>,
    most: usize,
) -> Vec<DateTime<Utc>> {
    let after = |instant| {
        std::iter::successors(schedule.next_after(instant), |slot| schedule.next_after(*slot))
            .take_while(|slot| *slot <= until)
            .take(most)
            .collect::<Vec<_>>()
    };
    if first > until || most == 0 {
        return Vec::new();
    }
    let has_all = |instant| after(instant).len() == most;
    if !has_all(first) {
        let mut slots = after(first);
        slots.insert(0, first);
        return slots;
    }
    // After `low` there are as many slots as wanted, after `high` there are not. So the search takes
    // as many steps as a number of milliseconds has digits, however many slots there are.
    let (mut low, mut high) = (first, until);
    while high - low > TimeDelta::milliseconds(1) {
        let middle = low + (high - low) / 2;
        if has_all(middle) { low = middle } else { high = middle }
    }
    after(low)
}

impl fmt::Display for Misfire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfire::Coalesce => f.write_str("coalesce"),
            Misfire::CatchUp(most) => write!(f, "catch up {most}"),
            Misfire::Skip { grace } => write!(f, "skip {}", span::write(*grace)),
        }
    }
}

impl FromStr for Misfire {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "coalesce" {
            return Ok(Misfire::Coalesce);
        }
        if let Some(most) = text.strip_prefix("catch up ") {
            return most.parse().map(Misfire::CatchUp).map_err(drop);
        }
        let grace = text.strip_prefix("skip ").and_then(span::read).ok_or(())?;
        Ok(Misfire::Skip { grace })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn hourly() -> Schedule {
        Schedule::cron("0 * * * *", "UTC").unwrap()
    }

    fn decide(policy: Misfire, first: &str, now: &str) -> Decision {
        policy.decide(&hourly(), at(first), at(now))
    }

    const FIRST: &str = "2026-05-04T09:00:00Z";

    #[test]
    fn a_slot_in_time_is_run_by_every_policy() {
        let grace = Duration::from_secs(60);
        for policy in [Misfire::Coalesce, Misfire::CatchUp(5), Misfire::Skip { grace }] {
            let decision = decide(policy, FIRST, "2026-05-04T09:00:00.250Z");
            let run = vec![at(FIRST)];
            let next = Some(at("2026-05-04T10:00:00Z"));
            assert_eq!(decision, Decision { run, omitted: None, next }, "{policy}");
        }
    }

    #[test]
    fn coalescing_runs_the_last_slot_and_omits_the_others() {
        let decision = decide(Misfire::Coalesce, FIRST, "2026-05-04T12:30:00Z");
        assert_eq!(decision.run, [at("2026-05-04T12:00:00Z")]);
        let last = at("2026-05-04T11:00:00Z");
        assert_eq!(decision.omitted, Some(Omitted { first: at(FIRST), last, count: 3 }));
        assert_eq!(decision.next, Some(at("2026-05-04T13:00:00Z")));
    }

    #[test]
    fn catching_up_runs_the_last_slots_the_oldest_first() {
        let decision = decide(Misfire::CatchUp(2), FIRST, "2026-05-04T12:00:00Z");
        assert_eq!(decision.run, [at("2026-05-04T11:00:00Z"), at("2026-05-04T12:00:00Z")]);
        let last = at("2026-05-04T10:00:00Z");
        assert_eq!(decision.omitted, Some(Omitted { first: at(FIRST), last, count: 2 }));
        let all = decide(Misfire::CatchUp(4), FIRST, "2026-05-04T12:00:00Z");
        assert_eq!((all.run.len(), all.run[0], all.omitted), (4, at(FIRST), None));
        let more = decide(Misfire::CatchUp(9), FIRST, "2026-05-04T12:00:00Z");
        assert_eq!((more.run.len(), more.omitted), (4, None));
    }

    #[test]
    fn the_parts_of_a_decision_are_the_whole() {
        let whole = decide(Misfire::CatchUp(3), FIRST, "2026-05-04T12:00:00Z");
        let parts = whole.clone().parts(2);
        let of_hours = |hours: &[u32]| -> Vec<DateTime<Utc>> {
            hours.iter().map(|hour| at(&format!("2026-05-04T{hour}:00:00Z"))).collect()
        };
        let runs: Vec<_> = parts.iter().map(|part| part.run.clone()).collect();
        assert_eq!(runs, [of_hours(&[10, 11]), of_hours(&[12])]);
        assert_eq!((parts[0].omitted, parts[1].omitted), (whole.omitted, None));
        assert_eq!((parts[0].next, parts[1].next), (Some(parts[1].run[0]), whole.next));
        assert_eq!(whole.clone().parts(3), [whole]);
    }

    #[test]
    fn skipping_runs_the_last_slot_only_within_the_grace() {
        let policy = Misfire::Skip { grace: Duration::from_secs(600) };
        let late = decide(policy, FIRST, "2026-05-04T12:10:00.001Z");
        assert!(late.run.is_empty());
        let last = at("2026-05-04T12:00:00Z");
        assert_eq!(late.omitted, Some(Omitted { first: at(FIRST), last, count: 4 }));
        assert_eq!(late.next, Some(at("2026-05-04T13:00:00Z")));
        let in_time = decide(policy, FIRST, "2026-05-04T12:10:00Z");
        assert_eq!((in_time.run, in_time.omitted.unwrap().count), (vec![last], 3));
    }

    #[test]
    fn a_slot_that_the_schedule_does_not_name_is_a_slot() {
        // As after a change of the schedule, or of the stored row.
        let decision = decide(Misfire::CatchUp(9), "2026-05-04T09:20:00Z", "2026-05-04T11:00:00Z");
        let expected = ["2026-05-04T09:20:00Z", "2026-05-04T10:00:00Z", "2026-05-04T11:00:00Z"];
        assert_eq!(decision.run, expected.map(at));
    }

    #[test]
    fn a_long_time_without_nodes_is_decided_on_at_once() {
        let schedule = Schedule::every(Duration::from_millis(10)).unwrap();
        let now = at("2026-05-04T12:00:00.005Z");
        let decision = Misfire::CatchUp(3).decide(&schedule, at("1996-05-04T12:00:00Z"), now);
        let expected =
            ["2026-05-04T11:59:59.980Z", "2026-05-04T11:59:59.990Z", "2026-05-04T12:00:00Z"];
        assert_eq!(decision.run, expected.map(at));
        let omitted = decision.omitted.unwrap();
        assert_eq!((omitted.count, omitted.last), (MOST_COUNTED, at("2026-05-04T11:59:59.970Z")));
    }

    #[test]
    fn the_end_of_a_run_decides_on_a_delay() {
        let schedule = Schedule::delay(Duration::from_secs(60)).unwrap();
        let now = at("2026-05-04T12:00:00Z");
        let decision = Misfire::Coalesce.decide(&schedule, at(FIRST), now);
        assert_eq!(decision, Decision { run: vec![at(FIRST)], omitted: None, next: None });
        let policy = Misfire::Skip { grace: Duration::from_secs(5) };
        let skipped = policy.decide(&schedule, at(FIRST), now);
        assert!(skipped.run.is_empty());
        assert_eq!(skipped.next, Some(at("2026-05-04T12:01:00Z")));
    }

    #[test]
    fn slots_during_a_run_are_counted_up_to_its_end() {
        let omitted = omit_until(&hourly(), at(FIRST), at("2026-05-04T11:00:00Z")).unwrap();
        assert_eq!((omitted.count, omitted.last), (3, at("2026-05-04T11:00:00Z")));
        assert_eq!(omit_until(&hourly(), at(FIRST), at("2026-05-04T08:59:59Z")), None);
    }

    #[test]
    fn a_policy_is_read_as_it_was_written() {
        let grace = Duration::from_secs(90);
        for policy in [Misfire::Coalesce, Misfire::CatchUp(7), Misfire::Skip { grace }] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!("later".parse::<Misfire>(), Err(()));
        assert!(Misfire::CatchUp(0).fault().is_some());
        assert!(Misfire::CatchUp(1_001).fault().is_some());
    }
}
