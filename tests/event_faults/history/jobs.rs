//! The slots of jobs, and the effects of their runs.
//!
//! Invariant: every slot between the first one and the next one is in one row, as a run or among those
//! that were not run. A run that ends with its effect notes how many came before it.

use std::collections::HashMap;
use std::fmt;

use ekbatan::jobs::{Misfire, Overlap, RunState};

/// A job that is due again and again after the same time.
#[derive(Debug, Clone)]
pub struct Job {
    pub name: &'static str,
    /// The time between two slots, in milliseconds.
    pub period: i64,
    pub misfire: Misfire,
    pub overlap: Overlap,
    /// Whether the commit of the effect ends the run. Otherwise it is a step.
    pub ends_with_effect: bool,
}

/// A run, or slots that were not run. Instants are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq)]
pub struct Slots {
    pub run: String,
    pub first: i64,
    pub last: i64,
    pub count: i64,
    pub state: RunState,
    pub started: Option<i64>,
    pub ended: Option<i64>,
}

/// The effect of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunEffect {
    pub run: String,
    pub slot: i64,
    /// Among the effects of the job, from 1.
    pub position: i64,
}

#[derive(Debug, Clone)]
pub struct JobHistory {
    pub job: Job,
    pub slots: Vec<Slots>,
    pub effects: Vec<RunEffect>,
    /// The first slot that is not decided on.
    pub next_slot: i64,
    /// How many slots the job says were not run.
    pub omitted: i64,
}

/// Why correct nodes cannot have produced the slots of a job.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum BrokenJob {
    #[error("the slot {slot} is in two rows, the second of which is {row:?}")]
    SlotTwice { slot: i64, row: Slots },
    #[error("no row has the slots from {first} to before {next}")]
    SlotsLost { first: i64, next: i64 },
    #[error("{row:?} has {count} slots")]
    Miscounted { row: Slots, count: i64 },
    #[error("{counted} slots are counted as not run, and {listed} are listed")]
    MiscountedInAll { counted: i64, listed: i64 },
    #[error("the policy does not let these be missed or skipped: {row:?}")]
    AgainstPolicy { row: Slots },
    #[error("started before its slot: {row:?}")]
    TooEarly { row: Slots },
    #[error("an effect of the run {run} of the slot {slot}, which is not stored")]
    Invented { run: String, slot: i64 },
    #[error("{times} effects of {row:?}")]
    Effects { row: Slots, times: usize },
    #[error("the run {row:?} is at position {position} instead of {expected}")]
    SideBySide { row: Slots, position: i64, expected: i64 },
}

impl Slots {
    fn is_run(&self) -> bool {
        !matches!(self.state, RunState::Missed | RunState::Skipped)
    }
}

impl fmt::Display for JobHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = [RunState::Done, RunState::Failed, RunState::Missed, RunState::Skipped];
        let counts = states.map(|state| format!("{} {state:?}", self.count(state)));
        write!(f, "the slots of `{}`: {}", self.job.name, counts.join(", "))
    }
}

impl JobHistory {
    /// The first error, if there is one.
    pub(super) fn check(&self) -> Result<(), BrokenJob> {
        let mut rows: Vec<&Slots> = self.slots.iter().collect();
        rows.sort_by_key(|row| (row.first, row.last));
        self.check_slots(&rows)?;
        self.check_policy(&rows)?;
        self.check_effects(&rows)
    }

    /// How many slots have a state.
    pub fn count(&self, state: RunState) -> i64 {
        self.slots.iter().filter(|row| row.state == state).map(|row| row.count).sum()
    }

    /// Each slot is in one row.
    fn check_slots(&self, rows: &[&Slots]) -> Result<(), BrokenJob> {
        let mut expected = rows.first().map_or(self.next_slot, |row| row.first);
        for row in rows {
            if row.first < expected {
                return Err(BrokenJob::SlotTwice { slot: row.first, row: (*row).clone() });
            }
            if row.first > expected {
                return Err(BrokenJob::SlotsLost { first: expected, next: row.first });
            }
            let count = (row.last - row.first) / self.job.period + 1;
            if count != row.count || (row.is_run() && count != 1) {
                return Err(BrokenJob::Miscounted { row: (*row).clone(), count });
            }
            expected = row.last + self.job.period;
        }
        if expected != self.next_slot {
            return Err(BrokenJob::SlotsLost { first: expected, next: self.next_slot });
        }
        let listed = self.count(RunState::Missed) + self.count(RunState::Skipped);
        if listed != self.omitted {
            return Err(BrokenJob::MiscountedInAll { counted: self.omitted, listed });
        }
        Ok(())
    }

    /// What is not run may be left out by the policies of the job.
    fn check_policy(&self, rows: &[&Slots]) -> Result<(), BrokenJob> {
        for (at, row) in rows.iter().enumerate() {
            let is_allowed = match row.state {
                RunState::Missed => {
                    let behind = rows[at + 1..].iter().take(self.run_behind_missed());
                    behind.filter(|row| row.is_run()).count() == self.run_behind_missed()
                }
                // They became due while the run before them went on.
                RunState::Skipped => {
                    let before = at.checked_sub(1).map(|before| rows[before]);
                    self.job.overlap == Overlap::Skip
                        && before.is_some_and(|run| {
                            run.is_run() && run.ended.is_some_and(|ended| row.last <= ended)
                        })
                }
                _ => true,
            };
            if !is_allowed {
                return Err(BrokenJob::AgainstPolicy { row: (*row).clone() });
            }
            if row.started.is_some_and(|started| started < row.first) {
                return Err(BrokenJob::TooEarly { row: (*row).clone() });
            }
        }
        Ok(())
    }

    /// How many slots are run of those that are due together.
    fn run_behind_missed(&self) -> usize {
        match self.job.misfire {
            Misfire::Coalesce => 1,
            Misfire::CatchUp(most) => most as usize,
            _ => 0,
        }
    }

    /// A run that is done has one effect. Runs of a job that may not overlap had theirs in the order of
    /// the slots.
    fn check_effects(&self, rows: &[&Slots]) -> Result<(), BrokenJob> {
        let mut effects: HashMap<(&str, i64), Vec<&RunEffect>> = HashMap::new();
        for effect in &self.effects {
            effects.entry((&effect.run, effect.slot)).or_default().push(effect);
        }
        let mut expected = 1;
        for row in rows {
            let of_run = effects.remove(&(&*row.run, row.first)).unwrap_or_default();
            let times = of_run.len();
            let may_have_effect = !self.job.ends_with_effect && row.is_run();
            let is_right = match row.state {
                RunState::Done => times == 1,
                // The step was committed, and what came after it failed or was cut off.
                _ if may_have_effect => times <= 1,
                _ => times == 0,
            };
            if !is_right {
                return Err(BrokenJob::Effects { row: (*row).clone(), times });
            }
            let is_alone = self.job.ends_with_effect && self.job.overlap != Overlap::Allow;
            for effect in of_run.iter().filter(|_| is_alone) {
                if effect.position != expected {
                    let (row, position) = ((*row).clone(), effect.position);
                    return Err(BrokenJob::SideBySide { row, position, expected });
                }
                expected += 1;
            }
        }
        match effects.into_keys().min() {
            Some((run, slot)) => Err(BrokenJob::Invented { run: run.to_owned(), slot }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: i64, state: RunState) -> Slots {
        let has_ended = matches!(state, RunState::Done | RunState::Failed);
        Slots {
            run: format!("run {first}"),
            first,
            last: first,
            count: 1,
            state,
            started: has_ended.then_some(first + 1),
            ended: has_ended.then_some(first + 25),
        }
    }

    fn omitted(first: i64, last: i64, state: RunState) -> Slots {
        let count = (last - first) / 10 + 1;
        Slots { last, count, started: None, ended: None, ..run(first, state) }
    }

    fn effect(slot: i64, position: i64) -> RunEffect {
        RunEffect { run: format!("run {slot}"), slot, position }
    }

    /// A job every 10 milliseconds. Some slots are skipped during the first run, some are missed
    /// afterwards. A run has failed, and the last one waits.
    fn sound() -> JobHistory {
        JobHistory {
            job: Job {
                name: "job",
                period: 10,
                misfire: Misfire::Coalesce,
                overlap: Overlap::Skip,
                ends_with_effect: true,
            },
            slots: vec![
                run(160, RunState::Waiting),
                run(100, RunState::Done),
                omitted(110, 120, RunState::Skipped),
                omitted(130, 130, RunState::Missed),
                run(140, RunState::Failed),
                run(150, RunState::Done),
            ],
            effects: vec![effect(150, 2), effect(100, 1)],
            next_slot: 170,
            omitted: 3,
        }
    }

    fn broken_by(break_it: impl FnOnce(&mut JobHistory)) -> BrokenJob {
        let mut history = sound();
        break_it(&mut history);
        history.check().unwrap_err()
    }

    fn row(first: i64) -> Slots {
        sound().slots.into_iter().find(|row| row.first == first).unwrap()
    }

    #[test]
    fn sound_slots_are_accepted() {
        sound().check().unwrap();
        assert_eq!(sound().count(RunState::Skipped), 2);
        let nothing = JobHistory { slots: Vec::new(), effects: Vec::new(), omitted: 0, ..sound() };
        nothing.check().unwrap();
    }

    #[test]
    fn a_slot_that_has_two_runs_is_detected() {
        let mut second = run(150, RunState::Done);
        second.run = "another run".to_owned();
        let broken = broken_by(|history| history.slots.push(second.clone()));
        assert_eq!(broken, BrokenJob::SlotTwice { slot: 150, row: second });
        // A slot that is listed as missed has run.
        let run = run(130, RunState::Done);
        let broken = broken_by(|history| history.slots.insert(0, run));
        assert!(matches!(broken, BrokenJob::SlotTwice { slot: 130, .. }), "{broken}");
    }

    #[test]
    fn a_slot_that_is_nowhere_is_detected() {
        let broken = broken_by(|history| drop(history.slots.remove(3)));
        assert_eq!(broken, BrokenJob::SlotsLost { first: 130, next: 140 });
        let broken = broken_by(|history| history.next_slot = 180);
        assert_eq!(broken, BrokenJob::SlotsLost { first: 170, next: 180 });
    }

    #[test]
    fn slots_that_are_counted_wrongly_are_detected() {
        let broken = broken_by(|history| history.slots[2].count = 3);
        let row = Slots { count: 3, ..row(110) };
        assert_eq!(broken, BrokenJob::Miscounted { row, count: 2 });
        let broken = broken_by(|history| history.omitted = 2);
        assert_eq!(broken, BrokenJob::MiscountedInAll { counted: 2, listed: 3 });
    }

    #[test]
    fn slots_that_the_policy_would_have_run_are_detected() {
        let against = |first| BrokenJob::AgainstPolicy { row: row(first) };
        // The last one of the slots that are due together runs.
        let broken = broken_by(|history| {
            history.slots[4] = omitted(140, 140, RunState::Missed);
            history.omitted = 4;
        });
        assert_eq!(broken, against(130));
        let broken = broken_by(|history| history.job.misfire = Misfire::CatchUp(4));
        assert_eq!(broken, against(130));
        let broken = broken_by(|history| history.job.overlap = Overlap::Queue);
        assert_eq!(broken, against(110));
        // The run had ended before the slot.
        let broken = broken_by(|history| history.slots[1].ended = Some(119));
        assert_eq!(broken, against(110));
        let mut skipping = sound();
        skipping.job.misfire = Misfire::Skip { grace: std::time::Duration::ZERO };
        skipping.slots[4] = omitted(140, 140, RunState::Missed);
        skipping.omitted = 4;
        skipping.check().unwrap();
    }

    #[test]
    fn a_run_before_its_slot_is_detected() {
        let broken = broken_by(|history| history.slots[5].started = Some(149));
        let row = Slots { started: Some(149), ..row(150) };
        assert_eq!(broken, BrokenJob::TooEarly { row });
    }

    #[test]
    fn a_doubled_effect_is_detected() {
        let broken = broken_by(|history| history.effects.push(effect(150, 3)));
        assert_eq!(broken, BrokenJob::Effects { row: row(150), times: 2 });
    }

    #[test]
    fn a_lost_effect_is_detected() {
        let broken = broken_by(|history| drop(history.effects.remove(0)));
        assert_eq!(broken, BrokenJob::Effects { row: row(150), times: 0 });
    }

    #[test]
    fn an_effect_of_what_has_not_run_is_detected() {
        for slot in [110, 130, 140, 160] {
            let broken = broken_by(|history| history.effects.push(effect(slot, 3)));
            assert_eq!(broken, BrokenJob::Effects { row: row(slot), times: 1 });
        }
        let broken = broken_by(|history| history.effects.push(effect(120, 3)));
        assert_eq!(broken, BrokenJob::Invented { run: "run 120".to_owned(), slot: 120 });
        // The effect of a step stays if its run fails, but there is never a second one.
        let mut by_step = sound();
        by_step.job.ends_with_effect = false;
        by_step.effects.push(effect(140, 3));
        by_step.check().unwrap();
        by_step.effects.push(effect(140, 4));
        by_step.check().unwrap_err();
    }

    #[test]
    fn runs_side_by_side_are_detected() {
        // The second one had not found the effect of the first one.
        let broken = broken_by(|history| history.effects[0].position = 1);
        let (position, expected) = (1, 2);
        assert_eq!(broken, BrokenJob::SideBySide { row: row(150), position, expected });
        let mut overlapping = sound();
        overlapping.job.overlap = Overlap::Allow;
        overlapping.slots[2].state = RunState::Missed;
        overlapping.slots[2].last = 130;
        overlapping.slots[2].count = 3;
        overlapping.slots.remove(3);
        overlapping.effects[0].position = 1;
        overlapping.check().unwrap();
    }
}
