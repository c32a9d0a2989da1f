//! The stored jobs and runs. Each change is guarded by the version of a row, and none of them waits
//! for another process: who comes second reads again.
//!
//! Invariant: a run is started, and slots are decided on, by a commit that changes the row of the job. So
//! of several nodes one does it, and a pause comes before or after it. The commit takes one round trip:
//! a node that stands still keeps no row locked that others need.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use ekbatan_core::domain::{Changed, Id, New, Stored};
use ekbatan_core::repository::{
    Condition, Direction, JointWrite, PageRequest, Repository, WriteError,
};
use ekbatan_core::shard::{Databases, Shard};
use ekbatan_events::__private::failure;
use ekbatan_events::Intervention;
use uuid::Uuid;

use crate::error::JobsError;
use crate::misfire::{Decision, Omitted};
use crate::options::{JobOptions, Overlap};
use crate::rows::{ACTIVE, ENDED, JobRow, NodeRow, RunRow, RunState, job_id};
use crate::schedule::Schedule;

/// How many runs are deleted at a time.
const PAGE: usize = 256;

/// For how long a run keeps its place while earlier ones are deleted.
const LONGEST_PRUNE: Duration = Duration::from_secs(10);

/// How many runs one commit adds at most. So many rows fit in a commit also if its size is limited to a few
/// dozen kilobytes.
pub(crate) const ADDED_TOGETHER: usize = 32;

/// How many runs are looked at for how long they have kept slots away. Each but the first one is one that
/// somebody asked for while another one waited or went on.
const LAST_ENDED: usize = 64;

/// What is stored of the jobs of a node.
#[derive(Default)]
pub(crate) struct FoundJobs {
    pub(crate) jobs: Vec<Stored<JobRow>>,
    /// The runs of these jobs that have not ended.
    pub(crate) active: Vec<Stored<RunRow>>,
    /// Jobs with a row that this release cannot read. They are left out.
    pub(crate) unreadable: Vec<(String, JobsError)>,
}

/// The stored jobs and runs.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) shard: Shard,
    pub(crate) jobs: Repository<JobRow>,
    pub(crate) runs: Repository<RunRow>,
    pub(crate) nodes: Repository<NodeRow>,
    interventions: Repository<Intervention>,
}

impl Store {
    /// The jobs are stored on the default shard.
    pub(crate) fn new(databases: &Databases) -> Self {
        let shard = databases.default_shard();
        let jobs = databases.repository().on_shard(&shard);
        let runs = databases.repository().on_shard(&shard);
        let nodes = databases.repository().on_shard(&shard);
        let interventions = databases.repository().on_shard(&shard);
        Self { shard, jobs, runs, nodes, interventions }
    }

    /// The time of the database.
    pub(crate) async fn now(&self) -> Result<DateTime<Utc>, JobsError> {
        Ok(self.shard.database_time().await?)
    }

    /// Stores a job, or its schedule and options if they are not those of a later revision.
    pub(crate) async fn register(
        &self,
        name: &str,
        schedule: &Schedule,
        options: &JobOptions,
    ) -> Result<(), JobsError> {
        loop {
            let now = self.now().await?;
            let registered = match self.jobs.find(job_id(name)).await? {
                None => {
                    let row = JobRow::new(name, schedule, options, now);
                    self.jobs.add(New::new(row, ())).await.map(drop)
                }
                Some(row) if row.revision > i64::from(options.revision) => {
                    tracing::info!(
                        job = name,
                        stored = row.revision,
                        "a later revision of the job is stored; it stays"
                    );
                    Ok(())
                }
                Some(row) => {
                    let mut dropped = None;
                    let defined =
                        row.clone().apply(|row| dropped = row.define(schedule, options, now));
                    if *defined == *row {
                        Ok(())
                    } else {
                        let rows =
                            dropped.map(|dropped| omitted(&row, dropped, RunState::Missed, now));
                        self.change(defined, rows.into_iter().collect(), None).await.map(drop)
                    }
                }
            };
            match registered.map_err(JobsError::from) {
                Err(error) if error.is_conflict() => tokio::task::yield_now().await,
                registered => return registered,
            }
        }
    }

    /// The jobs with these names that are stored, and then their runs that have not ended.
    pub(crate) async fn look(&self, names: &[&str]) -> Result<FoundJobs, JobsError> {
        let mut found = FoundJobs::default();
        match self.look_at(&mut found, names).await {
            Err(error) if error.is_unreadable() => {}
            looked => return looked.map(|()| found),
        }
        // A newer release has written a row that this one cannot read. The other jobs go on.
        let mut found = FoundJobs::default();
        for name in names {
            match self.look_at(&mut found, &[*name]).await {
                Err(error) if error.is_unreadable() => {
                    found.unreadable.push(((*name).to_owned(), error));
                }
                looked => looked?,
            }
        }
        Ok(found)
    }

    async fn look_at(&self, found: &mut FoundJobs, names: &[&str]) -> Result<(), JobsError> {
        let jobs = self.find(names).await?;
        found.active.extend(self.active(names).await?);
        found.jobs.extend(jobs);
        Ok(())
    }

    /// The jobs with these names that are stored.
    pub(crate) async fn find(&self, names: &[&str]) -> Result<Vec<Stored<JobRow>>, JobsError> {
        let ids: Vec<_> = names.iter().map(|name| job_id(name)).collect();
        Ok(self.jobs.find_by_ids(&ids).await?)
    }

    /// The runs of these jobs that have not ended.
    pub(crate) async fn active(&self, names: &[&str]) -> Result<Vec<Stored<RunRow>>, JobsError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let of_jobs = RunRow::JOB.is_in(names.iter().copied());
        Ok(self.runs.find_where(RunRow::STATE.is_in(ACTIVE) & of_jobs).await?)
    }

    /// The runs of a job that ended last, the last one first.
    pub(crate) async fn last_ended(&self, job: &JobRow) -> Result<Vec<Stored<RunRow>>, JobsError> {
        let ended = RunRow::STATE.is_in([RunState::Done, RunState::Failed]);
        // The others matter only where a run keeps slots away.
        let most = if job.overlap == Overlap::Skip { LAST_ENDED } else { 1 };
        let request = PageRequest::first(most).filter(RunRow::JOB.eq(&job.name) & ended);
        let request = request.order_by(RunRow::CHANGED, Direction::Descending);
        Ok(self.runs.page(request).await?.rows)
    }

    /// Stores what was decided on the slots of a job: the runs wait for nodes then. `false` if the
    /// job is not as it was read.
    ///
    /// Many runs are added by several commits, the earliest ones first. Each of them decides on the slots
    /// up to the next one that is run.
    pub(crate) async fn decide(
        &self,
        job: &Stored<JobRow>,
        decision: Decision,
        state: RunState,
        now: DateTime<Utc>,
    ) -> Result<bool, JobsError> {
        let mut job = job.clone();
        for (at, part) in decision.parts(ADDED_TOGETHER).into_iter().enumerate() {
            loop {
                let rows = self.rows_of(&job, &part, state, now).await?;
                let change = job.clone().apply(|row| row.take(&part));
                let changed = self.change(change, rows, None).await.map_err(JobsError::from);
                if let Some(changed) = unless_conflict(changed)? {
                    job = changed;
                    break;
                }
                // Another node may have started a run that an earlier commit has added. That is no reason to
                // leave the rest undecided: it would be skipped because of the runs before.
                let present = if at > 0 { self.jobs.find(job.id).await? } else { None };
                let is_same_but_for_starts = |present: &Stored<JobRow>| {
                    JobRow { last_started: job.last_started, ..(**present).clone() } == *job
                };
                match present.filter(is_same_but_for_starts) {
                    Some(present) => job = present,
                    None => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    /// The rows that a decision adds.
    pub(crate) async fn rows_of(
        &self,
        job: &JobRow,
        decision: &Decision,
        state: RunState,
        now: DateTime<Utc>,
    ) -> Result<Vec<RunRow>, JobsError> {
        let slots = decision.run.iter();
        let mut rows: Vec<_> = slots.map(|slot| RunRow::of_slot(job, *slot, now)).collect();
        // The clock of the database may have been set back, or somebody has changed the stored slot.
        let ids: Vec<_> = rows.iter().map(|run| run.id).collect();
        if !ids.is_empty() {
            let known = self.runs.find_by_ids(&ids).await?;
            rows.retain(|run| known.iter().all(|known| known.id != run.id));
        }
        rows.extend(decision.omitted.map(|slots| omitted(job, slots, state, now)));
        Ok(rows)
    }

    /// Changes a job, adds runs, and stores who did it. Returns the job as it is then.
    pub(crate) async fn change(
        &self,
        job: Changed<JobRow>,
        runs: Vec<RunRow>,
        log: Option<New<Intervention>>,
    ) -> Result<Stored<JobRow>, WriteError> {
        let mut write = JointWrite::default();
        let job = self.jobs.update_jointly(&mut write, job).await?;
        for run in runs {
            self.runs.add_jointly(&mut write, New::new(run, ())).await?;
        }
        if let Some(log) = log {
            self.interventions.add_jointly(&mut write, log).await?;
        }
        write.commit().await?;
        Ok(job)
    }

    /// Adds a run that somebody asks for.
    pub(crate) async fn add(&self, run: RunRow, log: New<Intervention>) -> Result<(), WriteError> {
        let mut write = JointWrite::default();
        self.runs.add_jointly(&mut write, New::new(run, ())).await?;
        self.interventions.add_jointly(&mut write, log).await?;
        write.commit().await
    }

    /// Whether nobody has taken a node for dead.
    pub(crate) async fn is_member(&self, node: Uuid) -> Result<bool, JobsError> {
        Ok(self.nodes.exists(Id::from_uuid(node)).await?)
    }

    /// Starts a waiting run on a node. `None` if the job or the run is not as it was read.
    pub(crate) async fn start(
        &self,
        job: &Stored<JobRow>,
        run: &Stored<RunRow>,
        node: Uuid,
    ) -> Result<Option<Stored<RunRow>>, JobsError> {
        // After the rows were read: the run starts after the end of what has ended.
        let now = self.now().await?;
        let deadline = TimeDelta::from_std(job.deadline()).ok();
        let deadline = deadline.and_then(|longest| now.checked_add_signed(longest));
        let start = run.clone().apply(|run| {
            (run.state, run.node, run.changed) = (RunState::Running, node, now);
            (run.attempt, run.deadline) = (run.attempt + 1, deadline);
            run.started.get_or_insert(now);
        });
        let change = job.clone().apply(|row| row.last_started = Some(now));
        let mut write = JointWrite::default();
        self.jobs.update_jointly(&mut write, change).await?;
        let started = self.runs.update_jointly(&mut write, start).await?;
        let committed = write.commit().await;
        Ok(unless_conflict(committed.map_err(JobsError::from))?.map(|()| started))
    }

    /// Ends a run. `false` if it is not as it was read.
    pub(crate) async fn end(
        &self,
        run: &Stored<RunRow>,
        state: RunState,
        error: Option<String>,
    ) -> Result<bool, JobsError> {
        let ended = run.ended(state, error, self.now().await?);
        unless_stale(self.runs.update(ended).await)
    }

    /// Lets a run wait for a node again. An attempt that its node has given up in order does not
    /// count. `false` if the run is not as it was read.
    pub(crate) async fn release(
        &self,
        run: &Stored<RunRow>,
        counts: bool,
    ) -> Result<bool, JobsError> {
        let now = self.now().await?;
        let released = run.clone().apply(|run| {
            (run.state, run.node, run.changed) = (RunState::Waiting, Uuid::nil(), now);
            run.deadline = None;
            run.attempt -= i64::from(!counts);
        });
        unless_stale(self.runs.update(released).await)
    }

    /// Lets a run that was cut off wait for a node again, unless that happened too often. `false` if
    /// the run is not as it was read.
    pub(crate) async fn take_over(&self, run: &Stored<RunRow>) -> Result<bool, JobsError> {
        let jobs = self.find(&[&run.job]).await?;
        let most = jobs.first().map_or(1, |job| job.attempts);
        if run.attempt < most {
            let released = self.release(run, true).await?;
            if released {
                tracing::warn!(job = %run.job, run = %run.id, attempt = run.attempt, "a run was cut off with its node; it is begun again");
            }
            return Ok(released);
        }
        let why = format!("its node was lost, for the {}. time", run.attempt);
        tracing::error!(job = %run.job, run = %run.id, why, "a run is given up");
        self.end(run, RunState::Failed, Some(why)).await
    }

    /// Deletes the runs of a job that ended first, if there are more than are kept.
    pub(crate) async fn prune(&self, job: &JobRow) {
        if let Err(error) = failure::within(LONGEST_PRUNE, self.try_prune(job)).await {
            tracing::debug!(job = %job.name, error, "earlier runs could not be deleted; the next run tries again");
        }
    }

    /// Counts before it reads, because usually there is nothing to delete. Counts once more afterwards: another
    /// node may have deleted runs in between, and then some of those that were read are to stay.
    async fn try_prune(&self, job: &JobRow) -> Result<(), JobsError> {
        let ended = || RunRow::JOB.eq(&job.name) & RunRow::STATE.is_in(ENDED);
        let surplus = self.surplus(job, ended()).await?;
        if surplus == 0 {
            return Ok(());
        }
        // As it is now: slots were decided on since the run was started.
        let present = self.jobs.find(job.id).await?;
        let deleted = match present.and_then(|job| job.needs_runs_after()) {
            Some(slot) => ended() & RunRow::CHANGED.lt(slot),
            None => ended(),
        };
        let request = PageRequest::first(surplus.min(PAGE)).filter(deleted);
        let request = request.order_by(RunRow::CHANGED, Direction::Ascending);
        let earliest = self.runs.page(request).await?.rows;
        let surplus = self.surplus(job, ended()).await?;
        for run in earliest.into_iter().take(surplus) {
            // Another node may have deleted it, or keeps it locked.
            if let Err(error) = self.runs.erase(&run).await {
                tracing::debug!(job = %job.name, run = %run.id, %error, "an earlier run could not be deleted; the next run tries again");
            }
        }
        Ok(())
    }

    /// How many more runs of a job have ended than are kept.
    async fn surplus(&self, job: &JobRow, ended: Condition<RunRow>) -> Result<usize, JobsError> {
        let count = self.runs.count_where(ended).await?;
        let kept = job.kept.max(1).unsigned_abs();
        Ok(usize::try_from(count.saturating_sub(kept)).unwrap_or(usize::MAX))
    }

    /// The last runs of a job, also those that have not ended, the last first.
    pub(crate) async fn history(
        &self,
        job: &str,
        most: usize,
    ) -> Result<Vec<Stored<RunRow>>, JobsError> {
        let request = PageRequest::first(most).filter(RunRow::JOB.eq(job));
        let request = request.order_by(RunRow::CHANGED, Direction::Descending);
        Ok(self.runs.page(request).await?.at_most(most))
    }

    pub(crate) async fn run(&self, id: Id<RunRow>) -> Result<Option<Stored<RunRow>>, JobsError> {
        Ok(self.runs.find(id).await?)
    }
}

/// How a run ends.
pub(crate) trait Ending {
    /// The run with its end.
    fn ended(&self, state: RunState, error: Option<String>, now: DateTime<Utc>) -> Changed<RunRow>;
}

impl Ending for Stored<RunRow> {
    fn ended(&self, state: RunState, error: Option<String>, now: DateTime<Utc>) -> Changed<RunRow> {
        self.clone().apply(|run| (run.state, run.error, run.changed) = (state, error, now))
    }
}

/// The row of slots that are not run.
fn omitted(job: &JobRow, slots: Omitted, state: RunState, now: DateTime<Utc>) -> RunRow {
    tracing::warn!(job = %job.name, slots = slots.count, first = %slots.first, last = %slots.last, why = ?state, "slots of a job are not run");
    RunRow::omitted(job, slots, state, now)
}

/// `false` if the row is not as it was read. After any other error the row may be unchanged: try the write again.
fn unless_stale<T>(written: Result<T, WriteError>) -> Result<bool, JobsError> {
    match written {
        Ok(_) => Ok(true),
        Err(WriteError::Stale(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// `None` if another process has changed the rows.
fn unless_conflict<T>(written: Result<T, JobsError>) -> Result<Option<T>, JobsError> {
    match written {
        Ok(written) => Ok(Some(written)),
        Err(error) if error.is_conflict() => Ok(None),
        Err(error) => Err(error),
    }
}
