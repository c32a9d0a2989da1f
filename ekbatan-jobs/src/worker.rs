//! Looks for what is due, and runs it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use ekbatan_core::domain::{Id, Stored};
use ekbatan_events::__private::{RunTasks, failure};
use ekbatan_events::HandedBack;
use futures_util::{StreamExt, stream};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::JobsError;
use crate::job_run::Runner;
use crate::job_set::JobSet;
use crate::plan::{Known, Step};
use crate::rows::{JobRow, RunRow, RunState};
use crate::schedule::Schedule;
use crate::settings::Settings;
use crate::store::{FoundJobs, Store};

/// The time after which a look is given up.
const LONGEST_LOOK: Duration = Duration::from_secs(30);

/// The time after which a look is given up if the node stops.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// The time after which a run that was cut off is left to the next look: its row may be locked.
const LONGEST_TAKEOVER: Duration = Duration::from_secs(5);

/// The time after which a step with a job is left to the next look: its row may be locked.
const LONGEST_STEP: Duration = Duration::from_secs(5);

/// For how long no further step is tried with a job after one that failed, while others have steps.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(20);

/// How many runs a node that stops gives back side by side.
const RELEASED_TOGETHER: usize = 64;

/// For how long at most a node that stops gives its runs back.
const LONGEST_RELEASE: Duration = Duration::from_secs(20);

/// Until when a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It does not stop.
    No,
    /// It starts nothing more, and waits for its runs until then.
    At(Instant),
}

/// What came of a step with a job.
enum Stepped {
    /// Nothing is to be done before this instant; `None`: before something else changes.
    Waits(Option<DateTime<Utc>>),
    /// The rows have changed, or somebody else has changed them.
    Changed,
}

/// Looks for what is due, and runs it.
pub(crate) struct Worker {
    pub(crate) runner: Runner,
    pub(crate) store: Store,
    pub(crate) jobs: JobSet,
    pub(crate) settings: Settings,
    /// The node's identity; `None` while it is not known to be alive.
    pub(crate) identity: watch::Receiver<Option<Uuid>>,
    pub(crate) stop: watch::Receiver<Stop>,
}

/// What a worker has at hand.
#[derive(Default)]
struct Work {
    runs: RunTasks<Uuid>,
    held: HashMap<Uuid, Stored<RunRow>>,
    /// Runs whose start has got no answer. One that has started all the same was not begun, and is given
    /// back without counting an attempt.
    unanswered: HashSet<Uuid>,
    /// The identity under which runs were started.
    identity: Option<Uuid>,
    /// Jobs whose stored row this release cannot read.
    unreadable: HashSet<String>,
    /// Jobs with which the last step failed, and when it began.
    failing: HashMap<String, Instant>,
}

impl Worker {
    /// Runs until the node stops.
    pub(crate) async fn run(mut self) -> HandedBack {
        let mut work = Work::default();
        loop {
            let identity = *self.identity.borrow_and_update();
            if identity != work.identity {
                work.lose_runs();
                work.identity = identity;
            }
            let stop = *self.stop.borrow_and_update();
            if let Stop::At(at) = stop {
                return self.drain(work, at).await;
            }
            let pause = match identity {
                Some(node) => self.look_in_time(&mut work, node).await,
                None => self.settings.poll,
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Some(ended) = work.runs.join_next() => work.forget(ended.ok()),
                Ok(()) = self.identity.changed() => {}
                Ok(()) = self.stop.changed() => {}
            }
        }
    }

    /// Looks once. Answers after what time to look again.
    async fn look_in_time(&self, work: &mut Work, node: Uuid) -> Duration {
        let mut stop = self.stop.clone();
        let too_late = async {
            tokio::select! {
                () = tokio::time::sleep(LONGEST_LOOK) => {}
                // Not at once: the answer to a start may be on its way.
                Ok(()) = stop.changed() => tokio::time::sleep(LAST_LOOK).await,
            }
        };
        tokio::select! {
            looked = self.look(work, node) => match looked {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!(%error, "jobs could not be looked at; trying again");
                    self.settings.poll
                }
            },
            () = too_late => {
                tracing::warn!("jobs could not be looked at in time; trying again");
                self.settings.poll
            }
            // What it runs must end.
            () = self.lost(Some(node)) => self.settings.poll,
        }
    }

    /// Waits until the node has another identity, or none.
    async fn lost(&self, identity: Option<Uuid>) {
        let mut known = self.identity.clone();
        if known.wait_for(|present| *present != identity).await.is_err() {
            // There is no heart any more that could tell.
            std::future::pending().await
        }
    }

    /// Takes one step with each job. One that fails stops none of the others.
    async fn look(&self, work: &mut Work, node: Uuid) -> Result<Duration, JobsError> {
        while let Some(ended) = work.runs.try_join_next() {
            work.forget(ended.ok());
        }
        let now = self.store.now().await?;
        let read = Instant::now();
        let FoundJobs { mut jobs, active, unreadable } =
            self.store.look(&self.jobs.names()).await?;
        for (job, error) in unreadable {
            if work.unreadable.insert(job.clone()) {
                tracing::warn!(%job, %error, "this release cannot read a row of a job, and leaves the job alone");
            }
        }
        let (mut next, mut has_changed) = (None, false);
        for run in active.iter().filter(|run| work.has_left(run, node)) {
            let taking = async {
                if work.unanswered.contains(&run.id.uuid()) {
                    self.store.release(run, false).await
                } else {
                    self.store.take_over(run).await
                }
            };
            match failure::within(LONGEST_TAKEOVER, taking).await {
                Ok(is_changed) => has_changed |= is_changed,
                Err(error) => {
                    tracing::warn!(job = %run.job, run = %run.id, error, "a run that was cut off could not be taken over; trying again");
                }
            }
        }
        work.unanswered.retain(|id| active.iter().any(|run| run.id.uuid() == *id));
        // Those with which the last step failed come last: a locked row takes time from them only. Before them,
        // those with the most runs: they must not take all places.
        jobs.sort_by_key(|job| {
            let held = work.held.values().filter(|run| run.job == job.name).count();
            (work.failing.contains_key(&job.name), held)
        });
        for job in jobs {
            let of_job: Vec<_> = active.iter().filter(|run| run.job == job.name).collect();
            let failed = work.failing.get(&job.name);
            if has_changed && failed.is_some_and(|at| at.elapsed() < PAUSE_AFTER_FAILURE) {
                continue;
            }
            // Also if this look is given up before the step ends.
            work.failing.insert(job.name.clone(), Instant::now());
            let step = self.take_step(work, &job, &of_job, node, now);
            let stepped = failure::within(LONGEST_STEP, step).await;
            if stepped.is_ok() {
                work.failing.remove(&job.name);
            }
            match stepped {
                Ok(Stepped::Waits(until)) => next = next.into_iter().chain(until).min(),
                Ok(Stepped::Changed) => has_changed = true,
                Err(error) => {
                    tracing::warn!(job = %job.name, error, "a job could not be looked at; trying again");
                }
            }
        }
        if has_changed {
            return Ok(Duration::ZERO);
        }
        // The look itself took time.
        let until_next = next
            .map(|next| (next - now).to_std().unwrap_or_default().saturating_sub(read.elapsed()));
        Ok(until_next.map_or(self.settings.poll, |until| until.min(self.settings.poll)))
    }

    /// Takes the next step with a job.
    async fn take_step(
        &self,
        work: &mut Work,
        job: &Stored<JobRow>,
        runs: &[&Stored<RunRow>],
        node: Uuid,
        now: DateTime<Utc>,
    ) -> Result<Stepped, JobsError> {
        match self.next_step(work, job, runs, now).await? {
            Step::Wait(until) => return Ok(Stepped::Waits(until)),
            Step::Decide { decision, state } => {
                let lists_omitted = decision.omitted.is_some();
                self.store.decide(job, decision, state, now).await?;
                if lists_omitted {
                    // Of a job that never runs in time, no run ends.
                    self.store.prune(job).await;
                }
            }
            // The node has stopped during this look: start nothing more.
            Step::Start(_) if *self.stop.borrow() != Stop::No => {
                return Ok(Stepped::Waits(None));
            }
            // The end of a run wakes the worker.
            Step::Start(_) if work.held.len() >= self.settings.concurrency => {
                return Ok(Stepped::Waits(None));
            }
            // The node has not noticed yet that others have taken over.
            Step::Start(_) if !self.store.is_member(node).await? => {
                return Ok(Stepped::Waits(None));
            }
            Step::Start(at) => {
                let (Some(run), Some(known)) = (runs.get(at), self.jobs.get(&job.name)) else {
                    return Ok(Stepped::Changed);
                };
                let id = run.id.uuid();
                work.unanswered.insert(id);
                let started = self.store.start(job, run, node).await?;
                // Without a run, an earlier start of it may be the one that counts.
                if let Some(run) = started {
                    work.unanswered.remove(&id);
                    work.held.insert(id, run.clone());
                    let running = self.runner.clone().run(known.clone(), job.clone(), run);
                    work.runs.spawn(vec![id], running);
                }
            }
        }
        Ok(Stepped::Changed)
    }

    /// What is to be done next with a job.
    async fn next_step(
        &self,
        work: &mut Work,
        job: &Stored<JobRow>,
        runs: &[&Stored<RunRow>],
        now: DateTime<Utc>,
    ) -> Result<Step, JobsError> {
        let (Ok(schedule), Ok(misfire)) = (job.schedule.parse::<Schedule>(), job.misfire.parse())
        else {
            if work.unreadable.insert(job.name.clone()) {
                tracing::warn!(job = %job.name, schedule = %job.schedule, misfire = %job.misfire, "this release cannot read the stored schedule of a job, and does not run it");
            }
            return Ok(Step::Wait(None));
        };
        // Without a slot, only a delay depends on the end of a run.
        let is_due = job.next_slot.map_or(schedule.is_delay(), |slot| slot <= now);
        // After the runs: one that ended in between is seen by one of both.
        let last_ended = match runs {
            [] if is_due => self.store.last_ended(job).await?,
            _ => Vec::new(),
        };
        let active: Vec<&RunRow> = runs.iter().map(|run| &***run).collect();
        let last_ended: Vec<&RunRow> = last_ended.iter().map(|run| &**run).collect();
        let (active, last_ended) = (&active[..], &last_ended[..]);
        let has_place =
            work.held.len() < self.settings.concurrency && *self.stop.borrow() == Stop::No;
        let known = Known { job, schedule: &schedule, misfire, active, last_ended, now };
        Ok(known.next_step(has_place))
    }

    /// Waits for the runs, cancels those that go on, and gives them back.
    async fn drain(&self, mut work: Work, until: Instant) -> HandedBack {
        while !work.runs.is_empty() {
            tokio::select! {
                Some(ended) = work.runs.join_next() => work.forget(ended.ok()),
                () = self.lost(work.identity) => work.lose_runs(),
                () = tokio::time::sleep_until(until) => break,
            }
        }
        let (ended, blocked) = work.runs.cancel().await;
        for id in ended {
            work.forget(Some(id));
        }
        // Others take over what goes on, and count an attempt.
        for run in work.held.extract_if(|id, _| blocked.contains(id)).map(|(_, run)| run) {
            tracing::warn!(job = %run.job, run = %run.id, "a run blocks its thread and cannot be cancelled; others take it over");
        }
        let mut handed_back = HandedBack::default();
        let until = Instant::now() + LONGEST_RELEASE;
        let held: Vec<_> =
            work.held.values().cloned().chain(self.unanswered(&work, until).await).collect();
        let count = held.len();
        let releases = held.into_iter().map(|run| self.give_back(run));
        let mut releases = stream::iter(releases).buffer_unordered(RELEASED_TOGETHER);
        let mut answered = 0;
        while let Ok(Some(is_given_back)) = tokio::time::timeout_at(until, releases.next()).await {
            answered += 1;
            handed_back.cancelled += usize::from(is_given_back);
        }
        if answered < count {
            tracing::warn!(
                runs = count - answered,
                "cancelled runs could not be given back in time; others take them over"
            );
        }
        handed_back
    }

    /// The runs that have started although their starts have got no answers.
    async fn unanswered(&self, work: &Work, until: Instant) -> Vec<Stored<RunRow>> {
        let ids: Vec<_> = work.unanswered.iter().map(|id| Id::from_uuid(*id)).collect();
        let Some(node) = work.identity.filter(|_| !ids.is_empty()) else { return Vec::new() };
        let found = tokio::time::timeout_at(until, self.store.runs.find_by_ids(&ids)).await;
        let mut runs = found.map(Result::unwrap_or_default).unwrap_or_default();
        runs.retain(|run| work.has_left(run, node));
        runs
    }

    async fn give_back(&self, run: Stored<RunRow>) -> bool {
        match self.store.release(&run, false).await {
            Ok(true) => {
                tracing::info!(job = %run.job, run = %run.id, "a run was cancelled and waits for another node");
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::warn!(job = %run.job, run = %run.id, %error, "a cancelled run could not be given back; others take it over");
                false
            }
        }
    }
}

impl Work {
    /// Drops what the node runs: others have taken it over, or will soon.
    fn lose_runs(&mut self) {
        (self.runs, self.held) = (RunTasks::default(), HashMap::new());
        self.unanswered.clear();
    }

    fn forget(&mut self, ended: Option<Uuid>) {
        if let Some(id) = ended {
            self.held.remove(&id);
        }
    }

    /// Whether a run is this node's and does not run: the answer to its start was lost, or the node
    /// was not known to be alive meanwhile.
    fn has_left(&self, run: &RunRow, node: Uuid) -> bool {
        let is_running = run.state == RunState::Running && run.node == node;
        is_running && !self.held.contains_key(&run.id.uuid())
    }
}
