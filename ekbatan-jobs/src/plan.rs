//! What is to be done next with a job, from its row and its runs alone.

use chrono::{DateTime, Utc};

use crate::misfire::{Decision, Misfire, Omitted, omit_until};
use crate::options::Overlap;
use crate::rows::{JobRow, JobState, RunKind, RunRow, RunState};
use crate::schedule::Schedule;

/// A job and what is known of its runs. The row of the job was read before the runs: whoever has
/// started a run since then has changed the row.
pub(crate) struct Known<'a> {
    pub(crate) job: &'a JobRow,
    pub(crate) schedule: &'a Schedule,
    pub(crate) misfire: Misfire,
    /// The runs that have not ended.
    pub(crate) active: &'a [&'a RunRow],
    /// The runs that ended last, the last one first.
    pub(crate) last_ended: &'a [&'a RunRow],
    /// The time of the database, read before the rows.
    pub(crate) now: DateTime<Utc>,
}

/// What is to be done next with a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing before this instant; `None`: nothing before the rows change.
    Wait(Option<DateTime<Utc>>),
    /// Slots are decided on. Those that are not run get the state.
    Decide { decision: Decision, state: RunState },
    /// The active run with this index is started.
    Start(usize),
}

impl Known<'_> {
    /// `has_place`: whether this node can start a run at once.
    pub(crate) fn next_step(&self, has_place: bool) -> Step {
        let Self { job, active, now, .. } = *self;
        let is_paused = job.state == JobState::Paused;
        let one_at_a_time = job.overlap != Overlap::Allow;
        let is_running = active.iter().any(|run| run.state == RunState::Running);
        let held_until = job.earliest_start().filter(|earliest| *earliest > now);
        let may_start = |run: &RunRow| {
            run.state == RunState::Waiting && (!is_paused || run.kind == RunKind::Manual)
        };
        let waiting = active.iter().enumerate().filter(|(_, run)| may_start(run));
        let first = waiting.min_by_key(|(_, run)| (run.slot, run.id.uuid()));
        if let Some((at, run)) = first.filter(|_| !(one_at_a_time && is_running)) {
            // One that is begun again does not wait for itself.
            return match held_until.filter(|_| run.started.is_none()) {
                Some(earliest) => Step::Wait(Some(earliest)),
                None => Step::Start(at),
            };
        }
        if is_paused {
            return Step::Wait(None);
        }
        let Some(slot) = job.next_slot else { return self.after_end() };
        if slot > now {
            return Step::Wait(Some(slot));
        }
        if one_at_a_time && !active.is_empty() {
            return Step::Wait(None);
        }
        if let Some(decision) = self.overlapped(slot) {
            return Step::Decide { decision, state: RunState::Skipped };
        }
        if held_until.is_some() {
            return Step::Wait(held_until);
        }
        let decision = self.misfire.decide(self.schedule, slot, now);
        // Until a run can begin, it is not too late to skip it.
        if !has_place && !decision.run.is_empty() && self.misfire.skips_what_is_late() {
            return Step::Wait(None);
        }
        Step::Decide { decision, state: RunState::Missed }
    }

    /// What is decided on the slots that are due when a pause begins. Those that wait are run after the
    /// pause, and those that are not run are listed.
    pub(crate) fn due_at_pause(&self) -> Option<(Decision, RunState)> {
        let Self { job, active, now, .. } = *self;
        let is_active = job.state == JobState::Active;
        let slot = job.next_slot.filter(|slot| is_active && *slot <= now)?;
        if let Some(decision) = self.overlapped(slot) {
            return Some((decision, RunState::Skipped));
        }
        let active_since = active.iter().map(|run| run.slot).min();
        let is_kept_away = active_since.is_some_and(|since| slot > since);
        if is_kept_away && job.overlap == Overlap::Skip {
            return Some((self.omitted_until(slot, now)?, RunState::Skipped));
        }
        Some((self.misfire.decide(self.schedule, slot, now), RunState::Missed))
    }

    /// The slots from the first one on that became due while the last runs waited or went on: none of
    /// them is run.
    fn overlapped(&self, first: DateTime<Utc>) -> Option<Decision> {
        if self.job.overlap != Overlap::Skip {
            return None;
        }
        let (last, earlier) = self.last_ended.split_first()?;
        // When a run was decided on, every earlier slot was decided on, too. Somebody may have asked
        // for a run while one was due: that one was not kept from running by it, unless another run went
        // on at that time.
        let (mut decided, ended) = (last.slot, last.changed);
        for run in earlier {
            if run.changed < decided {
                break;
            }
            decided = decided.min(run.slot);
        }
        if first <= decided || first > ended {
            return None;
        }
        self.omitted_until(first, ended)
    }

    /// None of the slots from the first one on is run that are due until then.
    fn omitted_until(&self, first: DateTime<Utc>, until: DateTime<Utc>) -> Option<Decision> {
        let (omitted, next) = if self.schedule.is_delay() {
            (Omitted { first, last: first, count: 1 }, self.schedule.next_after(until))
        } else {
            let omitted = omit_until(self.schedule, first, until)?;
            (omitted, self.schedule.next_after(omitted.last))
        };
        Some(Decision { run: Vec::new(), omitted: Some(omitted), next })
    }

    /// A delay counts from the end of the last run.
    fn after_end(&self) -> Step {
        let has_scheduled = self.active.iter().any(|run| run.kind == RunKind::Scheduled);
        if !self.schedule.is_delay() || has_scheduled {
            return Step::Wait(None);
        }
        let ended = self.last_ended.first().map_or(self.now, |run| run.changed);
        let next = self.schedule.next_after(ended);
        let decision = Decision { run: Vec::new(), omitted: None, next };
        Step::Decide { decision, state: RunState::Missed }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::options::JobOptions;

    fn at(text: &str) -> DateTime<Utc> {
        format!("2026-05-04T{text}Z").parse().unwrap()
    }

    fn hourly() -> Schedule {
        Schedule::cron("0 * * * *", "UTC").unwrap()
    }

    fn job(options: JobOptions) -> JobRow {
        JobRow::new("report", &hourly(), &options, at("08:30:00"))
    }

    fn step(job: &JobRow, runs: &[&RunRow], last_ended: &[&RunRow], now: &str) -> Step {
        let (schedule, misfire) = (job.schedule.parse().unwrap(), job.misfire.parse().unwrap());
        let (active, now) = (runs, at(now));
        Known { job, schedule: &schedule, misfire, active, last_ended, now }.next_step(true)
    }

    fn run(job: &JobRow, slot: &str, state: RunState) -> RunRow {
        let slot = at(slot);
        RunRow { state, started: Some(slot), ..RunRow::of_slot(job, slot, slot) }
    }

    fn slots(step: Step) -> Vec<DateTime<Utc>> {
        match step {
            Step::Decide { decision, .. } => decision.run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_slot_is_decided_on_when_it_is_due_and_its_run_started_then() {
        let mut job = job(JobOptions::default());
        assert_eq!(step(&job, &[], &[], "08:59:59"), Step::Wait(Some(at("09:00:00"))));
        assert_eq!(slots(step(&job, &[], &[], "09:00:00")), [at("09:00:00")]);
        job.next_slot = Some(at("10:00:00"));
        let waiting = run(&job, "09:00:00", RunState::Waiting);
        assert_eq!(step(&job, &[&waiting], &[], "09:00:00"), Step::Start(0));
        let running = run(&job, "09:00:00", RunState::Running);
        assert_eq!(step(&job, &[&running], &[], "09:00:00"), Step::Wait(Some(at("10:00:00"))));
    }

    #[test]
    fn a_paused_job_runs_only_what_somebody_asks_for() {
        let mut job = job(JobOptions::default());
        job.state = JobState::Paused;
        let taken = run(&job, "09:00:00", RunState::Waiting);
        let manual = RunRow::manual(&job, at("09:30:00"));
        assert_eq!(step(&job, &[], &[], "12:00:00"), Step::Wait(None));
        assert_eq!(step(&job, &[&taken], &[], "12:00:00"), Step::Wait(None));
        assert_eq!(step(&job, &[&taken, &manual], &[], "12:00:00"), Step::Start(1));
    }

    #[test]
    fn overlap_decides_on_slots_that_become_due_during_a_run() {
        for (overlap, during, after) in [
            (Overlap::Skip, Step::Wait(None), None),
            (Overlap::Queue, Step::Wait(None), Some(at("10:00:00"))),
        ] {
            let mut job = job(JobOptions::default().overlap(overlap));
            job.next_slot = Some(at("10:00:00"));
            let running = run(&job, "09:00:00", RunState::Running);
            assert_eq!(step(&job, &[&running], &[], "10:10:00"), during);
            let mut ended = run(&job, "09:00:00", RunState::Done);
            ended.changed = at("10:10:00");
            let step = step(&job, &[], &[&ended], "10:10:01");
            match after {
                Some(slot) => assert_eq!(slots(step), [slot]),
                None => {
                    let only = at("10:00:00");
                    let omitted = Some(Omitted { first: only, last: only, count: 1 });
                    let next = Some(at("11:00:00"));
                    let decision = Decision { run: Vec::new(), omitted, next };
                    assert_eq!(step, Step::Decide { decision, state: RunState::Skipped });
                }
            }
        }
        let mut job = job(JobOptions::default().overlap(Overlap::Allow));
        job.next_slot = Some(at("10:00:00"));
        let running = run(&job, "09:00:00", RunState::Running);
        assert_eq!(slots(step(&job, &[&running], &[], "10:10:00")), [at("10:00:00")]);
        let waiting = run(&job, "10:00:00", RunState::Waiting);
        assert_eq!(step(&job, &[&running, &waiting], &[], "10:10:00"), Step::Start(1));
    }

    #[test]
    fn a_slot_that_was_due_before_a_run_began_is_not_skipped_because_of_it() {
        let mut job = job(JobOptions::default());
        job.next_slot = Some(at("09:00:00"));
        let mut manual = RunRow::manual(&job, at("09:00:01"));
        manual.started = Some(at("09:00:01"));
        (manual.state, manual.changed) = (RunState::Done, at("09:05:00"));
        assert_eq!(slots(step(&job, &[], &[&manual], "09:05:01")), [at("09:00:00")]);
    }

    #[test]
    fn slots_during_a_run_and_one_that_somebody_asked_for_meanwhile_are_skipped() {
        let mut job = job(JobOptions::default());
        job.next_slot = Some(at("10:00:00"));
        let mut first = run(&job, "09:00:00", RunState::Done);
        first.changed = at("10:30:00");
        // After 10:00, which the first run keeps away.
        let mut manual = RunRow::manual(&job, at("10:15:00"));
        (manual.state, manual.changed) = (RunState::Done, at("11:10:00"));
        let omitted = Omitted { first: at("10:00:00"), last: at("11:00:00"), count: 2 };
        let next = Some(at("12:00:00"));
        let decision = Decision { run: Vec::new(), omitted: Some(omitted), next };
        let skipped = Step::Decide { decision, state: RunState::Skipped };
        assert_eq!(step(&job, &[], &[&manual, &first], "11:10:01"), skipped);
        // Between the two, nothing was in the way of 10:00.
        first.changed = at("09:59:00");
        let decided = step(&job, &[], &[&manual, &first], "11:10:01");
        assert_eq!(slots(decided), [at("11:00:00")]);
    }

    #[test]
    fn a_pause_decides_on_what_is_due_when_it_begins() {
        let due = |job: &JobRow, active: &[&RunRow], last_ended: &[&RunRow], now: &str| {
            let (schedule, misfire) = (hourly(), job.misfire.parse().unwrap());
            let now = at(now);
            Known { job, schedule: &schedule, misfire, active, last_ended, now }.due_at_pause()
        };
        let mut queue = job(JobOptions::default().overlap(Overlap::Queue));
        assert_eq!(due(&queue, &[], &[], "08:59:00"), None);
        queue.next_slot = Some(at("10:00:00"));
        let running = run(&queue, "09:00:00", RunState::Running);
        let (decision, state) = due(&queue, &[&running], &[], "10:15:00").unwrap();
        assert_eq!((decision.run, state), (vec![at("10:00:00")], RunState::Missed));
        queue.state = JobState::Paused;
        assert_eq!(due(&queue, &[&running], &[], "10:15:00"), None);

        let mut skip = job(JobOptions::default());
        skip.next_slot = Some(at("10:00:00"));
        let omitted =
            |first, last, count| Some(Omitted { first: at(first), last: at(last), count });
        let (decision, state) = due(&skip, &[&running], &[], "11:15:00").unwrap();
        let expected = (omitted("10:00:00", "11:00:00", 2), Some(at("12:00:00")));
        assert_eq!((decision.omitted, decision.next), expected);
        assert_eq!(state, RunState::Skipped);
        // The run has ended, and no node has looked since.
        let mut ended = run(&skip, "09:00:00", RunState::Done);
        ended.changed = at("10:30:00");
        let (decision, state) = due(&skip, &[], &[&ended], "11:15:00").unwrap();
        let expected = (omitted("10:00:00", "10:00:00", 1), Some(at("11:00:00")));
        assert_eq!((decision.omitted, decision.next), expected);
        assert_eq!(state, RunState::Skipped);
        skip.take(&decision);
        let (decision, state) = due(&skip, &[], &[&ended], "11:15:00").unwrap();
        assert_eq!((decision.run, state), (vec![at("11:00:00")], RunState::Missed));
    }

    #[test]
    fn at_least_holds_every_start() {
        let mut job = job(JobOptions::default().at_least(Duration::from_secs(600)));
        job.last_started = Some(at("08:55:00"));
        assert_eq!(step(&job, &[], &[], "09:00:00"), Step::Wait(Some(at("09:05:00"))));
        let manual = RunRow::manual(&job, at("09:00:00"));
        assert_eq!(step(&job, &[&manual], &[], "09:00:00"), Step::Wait(Some(at("09:05:00"))));
        assert_eq!(step(&job, &[&manual], &[], "09:05:00"), Step::Start(0));
    }

    #[test]
    fn at_least_does_not_hold_a_run_that_is_begun_again() {
        let mut job = job(JobOptions::default().at_least(Duration::from_secs(600)));
        job.last_started = Some(at("09:00:00"));
        job.next_slot = Some(at("10:00:00"));
        let given_back = run(&job, "09:00:00", RunState::Waiting);
        assert_eq!(step(&job, &[&given_back], &[], "09:01:00"), Step::Start(0));
    }

    #[test]
    fn a_grace_goes_on_until_a_node_has_a_place() {
        let step = |misfire, now: &str, has_place| {
            let job = job(JobOptions::default().misfire(misfire));
            let (schedule, now) = (hourly(), at(now));
            let known = Known {
                job: &job,
                schedule: &schedule,
                misfire,
                active: &[],
                last_ended: &[],
                now,
            };
            known.next_step(has_place)
        };
        let skip = Misfire::Skip { grace: Duration::from_secs(300) };
        assert_eq!(slots(step(skip, "09:01:00", true)), [at("09:00:00")]);
        assert_eq!(step(skip, "09:01:00", false), Step::Wait(None));
        assert!(slots(step(skip, "09:10:00", false)).is_empty(), "it is missed anyway");
        assert_eq!(slots(step(Misfire::Coalesce, "09:10:00", false)), [at("09:00:00")]);
    }

    #[test]
    fn runs_that_are_caught_up_come_one_after_another() {
        let job = job(JobOptions::default());
        let second = run(&job, "10:00:00", RunState::Waiting);
        let first = run(&job, "09:00:00", RunState::Waiting);
        assert_eq!(step(&job, &[&second, &first], &[], "11:30:00"), Step::Start(1));
        let first = run(&job, "09:00:00", RunState::Running);
        assert_eq!(step(&job, &[&second, &first], &[], "11:30:00"), Step::Wait(None));
    }

    #[test]
    fn a_delay_is_set_by_the_end_of_its_run() {
        let schedule = Schedule::delay(Duration::from_secs(60)).unwrap();
        let mut job = JobRow::new("sweep", &schedule, &JobOptions::default(), at("09:00:00"));
        assert_eq!(job.next_slot, Some(at("09:01:00")));
        job.next_slot = None;
        let running = run(&job, "09:01:00", RunState::Running);
        assert_eq!(step(&job, &[&running], &[], "09:30:00"), Step::Wait(None));
        let mut ended = run(&job, "09:01:00", RunState::Failed);
        ended.changed = at("09:20:00");
        match step(&job, &[], &[&ended], "09:20:05") {
            Step::Decide { decision, .. } => {
                assert_eq!(decision.next, Some(at("09:21:00")));
                assert!(decision.run.is_empty() && decision.omitted.is_none());
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_change_of_the_schedule_holds_from_now_on_and_repeats_no_slot() {
        let mut job = job(JobOptions::default());
        job.last_slot = Some(at("09:00:00"));
        let options = JobOptions::default().keep(5);
        job.define(&hourly(), &options, at("12:00:00"));
        assert_eq!((job.next_slot, job.kept), (Some(at("09:00:00")), 5), "the same schedule");
        let quarter = Schedule::every(Duration::from_secs(900)).unwrap();
        job.define(&quarter, &options, at("08:59:00"));
        assert_eq!(job.next_slot, Some(at("09:15:00")), "after the last slot");
        job.define(&hourly(), &options, at("12:34:00"));
        assert_eq!(job.next_slot, Some(at("13:00:00")));
    }

    #[test]
    fn a_schedule_in_other_words_drops_no_slot_and_another_one_says_which() {
        let weekdays = |names| Schedule::cron(&format!("0 9 * * {names}"), "UTC").unwrap();
        let options = JobOptions::default();
        let stored = weekdays("mon-fri");
        let mut job = JobRow::new("report", &stored, &options, at("08:00:00"));
        let slot = Some(at("09:00:00"));
        assert_eq!(job.define(&weekdays("MON-FRI"), &options, at("12:00:00")), None);
        assert_eq!((job.next_slot, job.omitted), (slot, 0));
        assert_eq!(job.schedule, "cron 0 9 * * MON-FRI in UTC");
        let dropped = job.define(&hourly(), &options, at("12:00:00"));
        let expected = Omitted { first: at("09:00:00"), last: at("09:00:00"), count: 1 };
        assert_eq!((dropped, job.omitted), (Some(expected), 1));
        assert_eq!((job.next_slot, job.last_slot), (Some(at("13:00:00")), slot));
        // What is due during a pause is not run.
        (job.state, job.next_slot) = (JobState::Paused, Some(at("09:30:00")));
        assert_eq!(job.define(&stored, &options, at("12:00:00")), None);
    }
}
