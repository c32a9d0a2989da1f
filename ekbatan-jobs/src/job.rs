//! What an application writes: a job.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};

use chrono::{DateTime, Utc};
use ekbatan_core::__private::{Mark, job_step_key};
use ekbatan_core::action::{Action, ActionExecutor, ErrorKind, ExecuteError, Execution};
use ekbatan_core::db::{DbError, DbErrorKind};
use ekbatan_core::domain::{FieldError, Stored};
use ekbatan_core::repository::ReadError;
use ekbatan_core::shard::Shard;
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::rows::{JobRow, JobState, RunKind, RunRow, RunState};
use crate::store::Ending;

/// Something that runs by a schedule.
///
/// ```
/// # use ekbatan_core::action::{Action, ActionContext, ExecuteError};
/// # use ekbatan_jobs::{Job, RunContext};
/// # use chrono::{DateTime, Utc};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Debug, Serialize, Deserialize)] pub struct Window { cutoff: DateTime<Utc> }
/// # pub struct CloseWindow;
/// # impl Action for CloseWindow {
/// #     const NAME: &'static str = "settlement.close_window";
/// #     type Params = Window; type Output = (); type Error = std::convert::Infallible;
/// #     async fn perform(&self, _: &mut ActionContext<'_>, _: &Window) -> Result<(), Self::Error> { Ok(()) }
/// # }
/// pub struct CloseWindows;
///
/// impl Job for CloseWindows {
///     const NAME: &'static str = "settlement.close_windows";
///     type Error = ExecuteError<std::convert::Infallible>;
///
///     async fn run(&self, ctx: &mut RunContext<'_>) -> Result<(), Self::Error> {
///         // The commit of the action ends the run: the window is closed exactly once.
///         ctx.finish(&CloseWindow, Window { cutoff: ctx.slot() }).await
///     }
/// }
/// ```
pub trait Job: Send + Sync + 'static {
    /// The stored name. It must never change: another name is another job.
    const NAME: &'static str;
    /// Why a run failed. It is stored with the run.
    type Error: Into<Box<dyn Error + Send + Sync>>;

    /// Runs the job once. `Ok` means that the run is done.
    ///
    /// A run whose node is lost is begun again on another one. What is committed by
    /// [`RunContext::execute`] may then be committed twice; what is committed by
    /// [`step`](RunContext::step) and [`finish`](RunContext::finish) is there once.
    fn run(&self, ctx: &mut RunContext<'_>)
    -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// A run of a job: what it is for, and how it executes actions.
///
/// Once another node has taken the run over, its actions are refused with
/// [`RunLost`](ExecuteError::RunLost), and after [`finish`](Self::finish) with
/// [`Finished`](ExecuteError::Finished). Nothing of them is committed. The row of the run is on the
/// default shard. An action that writes to another shard is checked right before its commit; a
/// run that is taken over at that moment still commits there. So let it check what it changes.
pub struct RunContext<'c> {
    executor: &'c ActionExecutor,
    shard: &'c Shard,
    run: &'c Stored<RunRow>,
    job: &'static str,
    mark: Mark,
    /// Whether an action has ended the run.
    is_ended: bool,
    is_lost: AtomicBool,
}

impl<'c> RunContext<'c> {
    pub(crate) fn new(
        executor: &'c ActionExecutor,
        shard: &'c Shard,
        run: &'c Stored<RunRow>,
        job: &'static str,
    ) -> Result<Self, FieldError> {
        let mark = shard.mark_of_run(run, job)?;
        let is_lost = AtomicBool::new(false);
        Ok(Self { executor, shard, run, job, mark, is_ended: false, is_lost })
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether an action was refused because the run is not this node's any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Whether a run for a later slot has begun, or waits for a place of a node, such as this run's.
    /// While the job is paused, only one that somebody asked for gets a place.
    pub(crate) async fn is_overtaken(&self) -> Result<bool, ReadError> {
        let runs = self.executor.databases().repository::<RunRow>().on_shard(self.shard);
        // One that has failed leaves the work to this one.
        let begun = RunRow::STATE.is_in([RunState::Running, RunState::Done]);
        let jobs = self.executor.databases().repository::<JobRow>().on_shard(self.shard);
        let paused = JobRow::NAME.eq(self.job) & JobRow::STATE.eq(JobState::Paused);
        let mut waits = RunRow::STATE.eq(RunState::Waiting);
        if jobs.exists_where(paused).await? {
            waits = waits & RunRow::KIND.eq(RunKind::Manual);
        }
        let later = RunRow::JOB.eq(self.job) & RunRow::SLOT.gt(self.run.slot);
        runs.exists_where(later & (begun | waits)).await
    }

    /// The instant for which the job runs. For a run that somebody asked for, it is the time of the
    /// request.
    pub fn slot(&self) -> DateTime<Utc> {
        self.run.slot
    }

    /// The identity of the run. It stays the same if the run is begun again.
    pub fn id(&self) -> Uuid {
        self.run.id.uuid()
    }

    /// Why there is a run.
    pub fn kind(&self) -> RunKind {
        self.run.kind
    }

    /// How often the run was begun, from 1.
    pub fn attempt(&self) -> u32 {
        u32::try_from(self.run.attempt).unwrap_or(u32::MAX)
    }

    /// When the run is cancelled, by the clock of the database; `None` if that is too far away.
    pub fn deadline(&self) -> Option<DateTime<Utc>> {
        self.run.deadline
    }

    /// The executor, for reads: `ctx.executor().databases().repository::<Wallet>()`. What is
    /// executed by it directly is not tied to the run, and is committed also if the run is lost.
    pub fn executor(&self) -> &ActionExecutor {
        self.executor
    }

    /// Executes an action that commits only while this run is this node's. Further ones may follow.
    /// If the run is begun again, it is executed again.
    pub async fn execute<A: Action>(
        &self,
        action: &A,
        params: A::Params,
    ) -> Result<A::Output, ExecuteError<A::Error>> {
        self.check_open::<A::Error>()?;
        let answer = self.call(action, params).marking(self.mark.clone()).await;
        self.note(&answer);
        answer
    }

    /// Executes an action as [`execute`](Self::execute) does, once for this name and this run: if
    /// the run is begun again, the stored output is returned.
    pub async fn step<A: Action>(
        &self,
        name: &str,
        action: &A,
        params: A::Params,
    ) -> Result<A::Output, ExecuteError<A::Error>>
    where
        A::Output: Serialize + DeserializeOwned,
    {
        self.check_open::<A::Error>()?;
        let key = job_step_key(self.id(), name);
        // Beside the run: a shard that is added must not become the home of the key.
        let call = self.call(action, params).key_on(self.shard.identifier());
        let answer = call.marking(self.mark.clone()).idempotency_key(key).await;
        self.note(&answer);
        answer
    }

    /// Executes an action whose commit ends the run: either both are in the database or neither is.
    /// So it is committed once, however often the run is begun. No action of the run can follow.
    ///
    /// The run ends at the time of this call, not at the commit: a slot that becomes due in between does not
    /// count as during the run. Do slow work before this call.
    ///
    /// The action must write to the default shard. For another shard use [`step`](Self::step).
    pub async fn finish<A: Action>(
        &mut self,
        action: &A,
        params: A::Params,
    ) -> Result<A::Output, ExecuteError<A::Error>> {
        self.check_open::<A::Error>()?;
        let now = self.shard.database_time().await?;
        let ended = self.run.ended(RunState::Done, None, now);
        let mark = self.shard.mark_of_ended_run(ended, self.job);
        let mark = mark.map_err(|error| DbError::new(DbErrorKind::Decode, error.to_string()))?;
        let answer = self.call(action, params).marking(mark).await;
        self.is_ended |= answer.is_ok();
        self.note(&answer);
        answer
    }

    /// Fails after the last action.
    fn check_open<E>(&self) -> Result<(), ExecuteError<E>> {
        if self.is_ended { Err(ExecuteError::finished(self.job)) } else { Ok(()) }
    }

    fn call<'a, A: Action>(&'a self, action: &'a A, params: A::Params) -> Execution<'a, A> {
        self.executor.execute(action, params).principal(self.job)
    }

    fn note<T, E>(&self, answer: &Result<T, ExecuteError<E>>) {
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::RunLost) {
            self.is_lost.store(true, Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for RunContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunContext")
            .field("job", &self.job)
            .field("run", &self.run.id)
            .finish_non_exhaustive()
    }
}
