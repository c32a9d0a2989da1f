//! What operators do with jobs.

use chrono::{DateTime, Utc};
use ekbatan_core::domain::{Id, Stored};
use ekbatan_core::shard::Databases;
use ekbatan_events::__private::Operator;
use ekbatan_events::{EventsError, InterventionKind};
use uuid::Uuid;

use crate::error::JobsError;
use crate::plan::Known;
use crate::rows::{JobRow, JobState, RunKind, RunRow, RunState};
use crate::schedule::Schedule;
use crate::store::{ADDED_TOGETHER, Store};

/// Shows jobs and their runs, and changes how they go on. It needs no node in this process.
///
/// Who changes something, and why, is stored in `eventlog.interventions`.
///
/// ```
/// # use ekbatan_core::shard::Databases;
/// # use ekbatan_jobs::{JobOperations, JobsError};
/// # async fn run(databases: &Databases) -> Result<(), JobsError> {
/// let jobs = JobOperations::new(databases);
/// jobs.pause("settlement.close_windows", "alice", "the bank is closed today").await?;
/// for run in jobs.history("settlement.close_windows", 10).await? {
///     println!("{} {:?} {}", run.slot, run.state, run.error.unwrap_or_default());
/// }
/// # Ok(()) }
/// ```
pub struct JobOperations {
    store: Store,
}

/// A job, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobStatus {
    /// The name.
    pub name: String,
    /// The schedule, as text. [`Schedule`] reads it, unless it is that of a newer release.
    pub schedule: String,
    /// Whether an operator has paused it.
    pub is_paused: bool,
    /// The first slot that is not run yet. `None`: there is none, or it depends on the end of a run.
    pub next_slot: Option<DateTime<Utc>>,
    /// When the last run began.
    pub last_started: Option<DateTime<Utc>>,
    /// How many slots were not run, by its policies, since it was registered.
    pub omitted: u64,
    /// How many runs wait for a node.
    pub waiting: usize,
    /// How many runs go on.
    pub running: usize,
}

/// A run of a job, or slots that were not run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunRecord {
    /// The identity.
    pub id: Uuid,
    /// The job.
    pub job: String,
    /// Why there is a run.
    pub kind: RunKind,
    /// How far it is.
    pub state: RunState,
    /// The instant for which it runs; the first one of slots that were not run.
    pub slot: DateTime<Utc>,
    /// The last one of slots that were not run; otherwise the slot.
    pub last_slot: DateTime<Utc>,
    /// How many slots were not run; otherwise 1. No more than 10,000 are counted at a time.
    pub slots: u64,
    /// The node that runs it or ran it last; `None` if there was none.
    pub node: Option<Uuid>,
    /// How often it was begun.
    pub attempts: u32,
    /// When it was begun first.
    pub started: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended: Option<DateTime<Utc>>,
    /// Why it failed.
    pub error: Option<String>,
}

impl JobOperations {
    /// The jobs that are stored on the default shard.
    pub fn new(databases: &Databases) -> Self {
        Self { store: Store::new(databases) }
    }

    /// All jobs, by name, also those that no node knows any more.
    pub async fn jobs(&self) -> Result<Vec<JobStatus>, JobsError> {
        let mut jobs = self.store.jobs.find_all().await?;
        jobs.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<_> = jobs.iter().map(|job| job.name.as_str()).collect();
        let active = self.store.active(&names).await?;
        Ok(jobs.iter().map(|job| status(job, &active)).collect())
    }

    /// A job.
    pub async fn job(&self, name: &str) -> Result<JobStatus, JobsError> {
        let job = self.find(name).await?;
        let active = self.store.active(&[name]).await?;
        Ok(status(&job, &active))
    }

    /// The last runs of a job and the slots that were not run, the last first, at most `most`.
    pub async fn history(&self, name: &str, most: usize) -> Result<Vec<RunRecord>, JobsError> {
        self.find(name).await?;
        Ok(self.store.history(name, most).await?.into_iter().map(record).collect())
    }

    /// The run with this id; `None` if it is not there any more.
    pub async fn run(&self, id: Uuid) -> Result<Option<RunRecord>, JobsError> {
        Ok(self.store.run(Id::from_uuid(id)).await?.map(record))
    }

    /// Lets no scheduled run of a job start on any node until it is [resumed](Self::resume). When this
    /// returns, it holds. A run that goes on goes on. A slot that was due before and waits is run after the
    /// pause.
    pub async fn pause(&self, name: &str, who: &str, why: &str) -> Result<(), JobsError> {
        let operator = operator(who, why)?;
        loop {
            // The time before the rows, and the job before its runs, as a node reads them.
            let now = self.store.now().await?;
            let job = self.find(name).await?;
            let (mut row, mut decisions) = (job.clone().into_value(), Vec::new());
            if let (Ok(schedule), Ok(misfire)) = (job.schedule.parse(), job.misfire.parse()) {
                let active = self.store.active(&[name]).await?;
                let last_ended = match active[..] {
                    [] => self.store.last_ended(&job).await?,
                    _ => Vec::new(),
                };
                let active: Vec<&RunRow> = active.iter().map(|run| &**run).collect();
                let last_ended: Vec<&RunRow> = last_ended.iter().map(|run| &**run).collect();
                let (active, last_ended) = (&active[..], &last_ended[..]);
                let due = |job: &JobRow| {
                    Known { job, schedule: &schedule, misfire, active, last_ended, now }
                        .due_at_pause()
                };
                while let Some((decision, state)) = due(&row) {
                    row.take(&decision);
                    decisions.push((decision, state));
                }
            }
            let count: usize = decisions.iter().map(|(decision, _)| decision.run.len()).sum();
            if count > ADDED_TOGETHER {
                // More than one commit may hold. A node decides on them in the same way.
                let (decision, state) = decisions.swap_remove(0);
                self.store.decide(&job, decision, state, now).await?;
                continue;
            }
            let mut runs = Vec::new();
            for (decision, state) in decisions {
                runs.extend(self.store.rows_of(&row, &decision, state, now).await?);
            }
            row.state = JobState::Paused;
            let log = operator.did(InterventionKind::Pause, name, "the job".to_owned(), now);
            let paused = self.store.change(job.apply(|job| *job = row), runs, Some(log)).await;
            match paused.map_err(JobsError::from) {
                // A node has started a run, or decided on slots, at the same moment.
                Err(error) if error.is_conflict() => tokio::task::yield_now().await,
                paused => return paused.map(drop),
            }
        }
    }

    /// Ends a pause. The job goes on with its next slot: what was due during the pause is not run.
    pub async fn resume(&self, name: &str, who: &str, why: &str) -> Result<(), JobsError> {
        let operator = operator(who, why)?;
        loop {
            // The job before its runs, as a node reads them.
            let job = self.find(name).await?;
            let active = self.store.active(&[name]).await?;
            let now = self.store.now().await?;
            let log = operator.did(InterventionKind::Resume, name, "the job".to_owned(), now);
            // The slot of a delay follows from the end of its run. If the run has ended, the slot may have
            // been due during the pause.
            let has_ended = active.iter().all(|run| run.kind != RunKind::Scheduled);
            let resumed = job.change(|job| {
                let may_be_past = match job.next_slot {
                    Some(slot) => slot <= now,
                    None => {
                        has_ended && job.schedule.parse().is_ok_and(|it: Schedule| it.is_delay())
                    }
                };
                if job.state == JobState::Paused && may_be_past {
                    job.next_slot = schedule(job)?.next_after(now);
                }
                job.state = JobState::Active;
                Ok::<_, JobsError>(())
            })?;
            let resumed = self.store.change(resumed, Vec::new(), Some(log)).await;
            match resumed.map_err(JobsError::from) {
                // A node has started a run at the same moment.
                Err(error) if error.is_conflict() => tokio::task::yield_now().await,
                resumed => return resumed.map(drop),
            }
        }
    }

    /// Lets a job run once more, as soon as a node that knows it has looked, also if it is paused.
    /// Returns the id of the run. It waits for the end of another run, unless runs may overlap.
    pub async fn run_now(&self, name: &str, who: &str, why: &str) -> Result<Uuid, JobsError> {
        let operator = operator(who, why)?;
        let job = self.find(name).await?;
        let now = self.store.now().await?;
        let run = RunRow::manual(&job, now);
        let id = run.id.uuid();
        let log = operator.did(InterventionKind::Run, name, id.to_string(), now);
        self.store.add(run, log).await?;
        Ok(id)
    }

    async fn find(&self, name: &str) -> Result<Stored<JobRow>, JobsError> {
        if let Some(job) = self.store.find(&[name]).await?.pop() {
            return Ok(job);
        }
        let known = self.store.jobs.find_all().await?;
        let mut known: Vec<_> = known.iter().map(|job| format!("`{}`", job.name)).collect();
        known.sort_unstable();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(JobsError::UnknownJob { job: name.to_owned(), known })
    }
}

fn operator<'o>(who: &'o str, why: &'o str) -> Result<Operator<'o>, JobsError> {
    Operator::new(who, why).map_err(|error| match error {
        EventsError::Unfit { what, why, .. } => JobsError::Unfit { what, why },
        other => JobsError::Unfit { what: "who", why: other.to_string() },
    })
}

fn schedule(job: &JobRow) -> Result<Schedule, JobsError> {
    let unreadable =
        |_| JobsError::Schedule { job: job.name.clone(), schedule: job.schedule.clone() };
    job.schedule.parse().map_err(unreadable)
}

fn status(job: &JobRow, active: &[Stored<RunRow>]) -> JobStatus {
    let count = |state: RunState| {
        active.iter().filter(|run| run.job == job.name && run.state == state).count()
    };
    JobStatus {
        name: job.name.clone(),
        schedule: job.schedule.clone(),
        is_paused: job.state == JobState::Paused,
        next_slot: job.next_slot,
        last_started: job.last_started,
        omitted: job.omitted.unsigned_abs(),
        waiting: count(RunState::Waiting),
        running: count(RunState::Running),
    }
}

fn record(row: Stored<RunRow>) -> RunRecord {
    let run = row.into_value();
    let has_ended = matches!(run.state, RunState::Done | RunState::Failed);
    RunRecord {
        id: run.id.uuid(),
        job: run.job,
        kind: run.kind,
        state: run.state,
        slot: run.slot,
        last_slot: run.last_slot,
        slots: run.slots.unsigned_abs(),
        node: Some(run.node).filter(|node| !node.is_nil()),
        attempts: u32::try_from(run.attempt).unwrap_or_default(),
        started: run.started,
        ended: has_ended.then_some(run.changed),
        error: run.error,
    }
}

impl std::fmt::Debug for JobOperations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobOperations").finish_non_exhaustive()
    }
}
