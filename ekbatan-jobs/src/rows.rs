//! The rows of jobs and of their runs.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use ekbatan_core::domain::Id;
use ekbatan_macros::{Entity, State};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::misfire::{Decision, Omitted, omit_until};
use crate::options::{JobOptions, Overlap};
use crate::schedule::Schedule;

/// A job. Its version guards each decision on its slots and each start of a run.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "eventlog.jobs")]
pub(crate) struct JobRow {
    pub(crate) id: Id<JobRow>,
    pub(crate) name: String,
    pub(crate) schedule: String,
    pub(crate) misfire: String,
    pub(crate) overlap: Overlap,
    /// In milliseconds, as `longest`.
    pub(crate) at_least: i64,
    /// The longest time of a run.
    pub(crate) longest: i64,
    pub(crate) attempts: i64,
    pub(crate) kept: i64,
    pub(crate) revision: i64,
    /// The first slot that is not decided on. `None`: there is none, or it depends on the end of a
    /// run.
    pub(crate) next_slot: Option<DateTime<Utc>>,
    /// The last slot that is decided on.
    pub(crate) last_slot: Option<DateTime<Utc>>,
    pub(crate) last_started: Option<DateTime<Utc>>,
    /// How many slots were not run.
    pub(crate) omitted: i64,
    pub(crate) state: JobState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
pub(crate) enum JobState {
    Active,
    Paused,
}

/// A run of a job, or slots that are not run. Its version guards what the run commits: it is the same
/// from the start of a run to its end.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "eventlog.job_runs")]
pub(crate) struct RunRow {
    pub(crate) id: Id<RunRow>,
    pub(crate) job: String,
    pub(crate) kind: RunKind,
    pub(crate) slot: DateTime<Utc>,
    /// The last one of the slots, if there are several.
    pub(crate) last_slot: DateTime<Utc>,
    pub(crate) slots: i64,
    pub(crate) node: Uuid,
    pub(crate) attempt: i64,
    /// When the first attempt began.
    pub(crate) started: Option<DateTime<Utc>>,
    pub(crate) deadline: Option<DateTime<Utc>>,
    /// When the state became what it is.
    pub(crate) changed: DateTime<Utc>,
    pub(crate) error: Option<String>,
    pub(crate) state: RunState,
}

/// A process that runs jobs, from its start to its end.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "eventlog.job_nodes")]
pub(crate) struct NodeRow {
    pub(crate) id: Id<NodeRow>,
    pub(crate) name: String,
    /// In milliseconds.
    pub(crate) lease: i64,
    pub(crate) started: DateTime<Utc>,
    pub(crate) state: NodeState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
pub(crate) enum NodeState {
    Live,
}

/// Why there is a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
#[non_exhaustive]
pub enum RunKind {
    /// By the schedule.
    Scheduled,
    /// Somebody asked for it.
    Manual,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
#[non_exhaustive]
pub enum RunState {
    /// It waits for a node.
    Waiting,
    /// A node runs it.
    Running,
    /// It has ended.
    Done,
    /// It has failed.
    Failed,
    /// It is no run, but slots that were not run in time.
    Missed,
    /// It is no run, but slots that were not run because another run went on.
    Skipped,
}

/// The states of a run that has not ended.
pub(crate) const ACTIVE: [RunState; 2] = [RunState::Waiting, RunState::Running];

/// The states of what stays for the history.
pub(crate) const ENDED: [RunState; 4] =
    [RunState::Done, RunState::Failed, RunState::Missed, RunState::Skipped];

impl JobRow {
    /// A job that nobody has registered yet.
    pub(crate) fn new(
        name: &str,
        schedule: &Schedule,
        options: &JobOptions,
        now: DateTime<Utc>,
    ) -> Self {
        let mut row = Self {
            id: job_id(name),
            name: name.to_owned(),
            schedule: String::new(),
            misfire: String::new(),
            overlap: Overlap::Skip,
            at_least: 0,
            longest: 0,
            attempts: 0,
            kept: 0,
            revision: 0,
            next_slot: None,
            last_slot: None,
            last_started: None,
            omitted: 0,
            state: JobState::Active,
        };
        row.define(schedule, options, now);
        row
    }

    /// Takes over a schedule and options. If the schedule is another one, it holds from now on. Returns
    /// the slots of the former one that are due and are not run.
    pub(crate) fn define(
        &mut self,
        schedule: &Schedule,
        options: &JobOptions,
        now: DateTime<Utc>,
    ) -> Option<Omitted> {
        let former = self.schedule.parse::<Schedule>().ok();
        let mut dropped = None;
        if former.as_ref().is_none_or(|former| !former.is_same(schedule)) {
            dropped = former.and_then(|former| self.undecided(&former, now));
            if let Some(dropped) = dropped {
                self.note_omitted(dropped);
            }
            let after = self.last_slot.map_or(now, |last| last.max(now));
            self.next_slot = schedule.next_after(after);
        }
        self.schedule = schedule.to_string();
        self.misfire = options.misfire.to_string();
        self.overlap = options.overlap;
        self.at_least = millis(options.at_least);
        self.longest = millis(options.deadline);
        self.attempts = options.attempts.into();
        self.kept = options.keep.into();
        self.revision = options.revision.into();
        dropped
    }

    /// The slots that are due and not decided on.
    fn undecided(&self, schedule: &Schedule, now: DateTime<Utc>) -> Option<Omitted> {
        let is_active = self.state == JobState::Active;
        let first = self.next_slot.filter(|slot| is_active && *slot <= now)?;
        if schedule.is_delay() {
            return Some(Omitted { first, last: first, count: 1 });
        }
        omit_until(schedule, first, now)
    }

    /// Takes over what was decided on its slots.
    pub(crate) fn take(&mut self, Decision { run, omitted, next }: &Decision) {
        self.next_slot = *next;
        self.last_slot = self.last_slot.max(run.last().copied());
        if let Some(omitted) = omitted {
            self.note_omitted(*omitted);
        }
    }

    fn note_omitted(&mut self, Omitted { last, count, .. }: Omitted) {
        self.last_slot = self.last_slot.max(Some(last));
        self.omitted = self.omitted.saturating_add(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The slot that may be skipped because of a run that has ended since. Such runs stay until it is decided on.
    pub(crate) fn needs_runs_after(&self) -> Option<DateTime<Utc>> {
        let may_skip = self.overlap == Overlap::Skip && self.state == JobState::Active;
        self.next_slot.filter(|_| may_skip)
    }

    /// The instant before which no run may start.
    pub(crate) fn earliest_start(&self) -> Option<DateTime<Utc>> {
        self.last_started?.checked_add_signed(TimeDelta::try_milliseconds(self.at_least)?)
    }

    /// The longest time of a run.
    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_millis(self.longest.max(1).unsigned_abs())
    }
}

impl RunRow {
    /// A run of a slot, which waits for a node.
    pub(crate) fn of_slot(job: &JobRow, slot: DateTime<Utc>, now: DateTime<Utc>) -> Self {
        let mut hash = Sha256::new_with_prefix(job.id.uuid());
        hash.update(slot.timestamp_micros().to_be_bytes());
        let run = Self::waiting(job, RunKind::Scheduled, slot, now);
        Self { id: Id::from_uuid(uuid_of(hash)), ..run }
    }

    /// A run that somebody asks for.
    pub(crate) fn manual(job: &JobRow, now: DateTime<Utc>) -> Self {
        Self::waiting(job, RunKind::Manual, now, now)
    }

    /// Slots that are not run.
    pub(crate) fn omitted(
        job: &JobRow,
        Omitted { first, last, count }: Omitted,
        state: RunState,
        now: DateTime<Utc>,
    ) -> Self {
        let slots = i64::try_from(count).unwrap_or(i64::MAX);
        let run = Self::waiting(job, RunKind::Scheduled, first, now);
        Self { last_slot: last, slots, state, ..run }
    }

    fn waiting(job: &JobRow, kind: RunKind, slot: DateTime<Utc>, now: DateTime<Utc>) -> Self {
        Self {
            id: Id::from_uuid(Uuid::now_v7()),
            job: job.name.clone(),
            kind,
            slot,
            last_slot: slot,
            slots: 1,
            node: Uuid::nil(),
            attempt: 0,
            started: None,
            deadline: None,
            changed: now,
            error: None,
            state: RunState::Waiting,
        }
    }
}

/// The id of a job follows from its name, so that there is one row for each name.
pub(crate) fn job_id(name: &str) -> Id<JobRow> {
    Id::from_uuid(uuid_of(Sha256::new_with_prefix(name)))
}

/// Of version 5: MariaDB refuses half of those of version 8.
fn uuid_of(hash: Sha256) -> Uuid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    uuid::Builder::from_sha1_bytes(bytes).into_uuid()
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
