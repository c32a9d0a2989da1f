//! What an application gives to its nodes.

use std::sync::Arc;
use std::time::Duration;

use ekbatan_core::action::{ActionExecutor, ErrorKind, ExecuteError};
use ekbatan_core::domain::Stored;
use ekbatan_events::{HandlerOptions, NodeBuilder};

use super::begin_closing::{BeginClosing, DueWindow};
use super::close_windows::{CloseWindows, open_all};
use super::error::WindowError;
use super::finish_closing::RefuseLate;
use super::finish_windows::FinishWindows;
use super::open_window::OpenWindow;
use super::series::WindowSeries;
use super::window::{NewWindow, Window, WindowState};
use crate::node::JobNodeBuilder;
use crate::options::{JobOptions, Overlap};
use crate::schedule::Schedule;
use crate::span;

/// The longest time of one run that batches a window. The next run goes on where it was.
const LONGEST_RUN: Duration = Duration::from_secs(10 * 60);

/// The longest time that such a run waits for open transactions.
const LONGEST_BARRIER: Duration = Duration::from_secs(5 * 60);

/// The windows of a series, for the nodes of a process. Cheap to clone.
///
/// The executor needs the model [`Window`]: `.model::<Window>()`.
///
/// ```
/// # use std::time::Duration;
/// # use ekbatan_core::action::ActionExecutor;
/// # use ekbatan_jobs::windows::{WindowSeries, Windows};
/// use ekbatan_events::Node;
/// use ekbatan_jobs::{JobNode, Schedule};
///
/// # async fn start(executor: &ActionExecutor, settlement: impl WindowSeries) -> Result<(Node, JobNode), Box<dyn std::error::Error>> {
/// let windows = Windows::new(settlement);
/// let node = windows.add_handlers(Node::builder(executor)).start().await?;
/// let schedule = Schedule::cron("0 17 * * MON-FRI", "America/Sao_Paulo")?;
/// let jobs = windows.add_job(JobNode::builder(executor), schedule).start().await?;
/// # Ok((node, jobs)) }
/// ```
pub struct Windows<S> {
    series: Arc<S>,
    job: JobOptions,
    handler: HandlerOptions,
    longest_barrier: Duration,
}

impl<S> Clone for Windows<S> {
    fn clone(&self) -> Self {
        let (series, job, handler) = (self.series.clone(), self.job.clone(), self.handler.clone());
        Self { series, job, handler, longest_barrier: self.longest_barrier }
    }
}

impl<S: WindowSeries> Windows<S> {
    /// The windows of a series.
    pub fn new(series: S) -> Self {
        // A run goes on until there is a later one. At the last slot of a week that is days later.
        let job = JobOptions::default().deadline(span::LONGEST).attempts(u32::MAX);
        Self {
            series: Arc::new(series),
            job: job.overlap(Overlap::Allow),
            handler: HandlerOptions::default().timeout(LONGEST_RUN),
            longest_barrier: LONGEST_BARRIER,
        }
    }

    /// Changes how the job runs, from its defaults: `.job_options(|options| options.keep(1_000))`.
    ///
    /// A run that cannot open or close a window tries again until there is a later one. So by default runs
    /// [overlap](Overlap::Allow), have no deadline, and begin again however often their node is lost. With
    /// another overlap the next slot waits for such a run, or is skipped: set a deadline then.
    #[must_use]
    pub fn job_options(mut self, change: impl FnOnce(JobOptions) -> JobOptions) -> Self {
        self.job = change(self.job);
        self
    }

    /// Changes how the handler runs, from its defaults: `.handler_options(|options| options.concurrency(4))`.
    ///
    /// By default a run has ten minutes for a window; the other defaults are those of [`HandlerOptions`], whatever the
    /// configuration says. A run that is given up goes on at its chunk; only the barrier begins anew. So a node does
    /// not start unless the `timeout` is longer than the [longest barrier](Self::longest_barrier).
    #[must_use]
    pub fn handler_options(
        mut self,
        change: impl FnOnce(HandlerOptions) -> HandlerOptions,
    ) -> Self {
        self.handler = change(self.handler);
        self
    }

    /// Sets how long a run of the handler waits for transactions that began before the closing; five minutes
    /// unless set. After that it fails, names who has them open, and is tried again. Where the login cannot
    /// see the transactions of others, it must be longer than the `commit_timeout`.
    #[must_use]
    pub fn longest_barrier(mut self, longest: Duration) -> Self {
        self.longest_barrier = longest;
        self
    }

    /// Adds the job that opens windows and begins to close those that are due. Give it the schedule of the
    /// cutoffs, or a short rate if windows have cutoffs of their own.
    pub fn add_job(&self, node: JobNodeBuilder, schedule: Schedule) -> JobNodeBuilder {
        node.job_with(schedule, CloseWindows(self.series.clone()), self.job.clone())
    }

    /// Adds the handler that batches and closes the windows, and the action that refuses what is late.
    pub fn add_handlers(&self, node: NodeBuilder) -> NodeBuilder {
        let series = self.series.clone();
        let (timeout, barrier) = (self.handler.timeout, self.longest_barrier);
        let finish = FinishWindows { series, longest_barrier: barrier };
        let options = self.handler.clone().only(["WindowClosing"]);
        let node = node.handler_with(finish, options).action(RefuseLate(self.series.clone()));
        if let Some(after) = self.series.late_check().filter(|after| *after > span::LONGEST) {
            let why = format!("{after:?}; use at most a hundred years, or `None`");
            return node.refuse_option(S::NAME, "late_check", why);
        }
        if timeout > barrier {
            return node;
        }
        let why = format!(
            "{timeout:?} leave no time after a barrier of up to {barrier:?}; use a longer `timeout`, or a shorter `longest_barrier` of `Windows`"
        );
        node.refuse_option(S::NAME, "timeout", why)
    }

    /// Opens the [upcoming](WindowSeries::upcoming) windows that there are not yet, at once. The job does the
    /// same at its slots, so this is for the first windows of all.
    ///
    /// A window that cannot be opened stops no other one. The log names each of them, and the first failure is
    /// returned.
    pub async fn open_upcoming(
        &self,
        executor: &ActionExecutor,
    ) -> Result<(), ExecuteError<WindowError>> {
        let databases = executor.databases();
        let now = databases.default_shard().database_time().await?;
        let upcoming = self.series.upcoming(databases, now).await;
        let upcoming =
            upcoming.map_err(|error| ExecuteError::Domain(WindowError::Upcoming(error)))?;
        open_all(upcoming, |new| self.open_or_log(executor, new)).await
    }

    async fn open_or_log(
        &self,
        executor: &ActionExecutor,
        new: NewWindow,
    ) -> Result<(), ExecuteError<WindowError>> {
        let (participant, window) = (new.participant.clone(), new.key.clone());
        self.open(executor, new).await.map(drop).inspect_err(|error| {
            tracing::warn!(series = S::NAME, %window, %participant, %error, "the window was not opened, or did not begin to close after its cutoff; call `open_upcoming` again, or wait for the next run of the job");
        })
    }

    /// Opens a window, unless it is there; then its cutoff stays as it is. Fails if that one began to close before
    /// this cutoff: a key never comes again.
    ///
    /// A window whose cutoff has come meanwhile begins to close at once. If the process dies before that, the next
    /// run of the job closes it.
    pub async fn open(
        &self,
        executor: &ActionExecutor,
        window: NewWindow,
    ) -> Result<Stored<Window>, ExecuteError<WindowError>> {
        let open = OpenWindow { series: S::NAME };
        let call = || executor.execute(&open, window.clone()).principal(S::NAME);
        let opened = match call().await {
            // Another process has opened it meanwhile.
            Err(error) if error.kind() == ErrorKind::Unique => call().await,
            opened => opened,
        }?;
        if opened.state != WindowState::Open {
            return Ok(opened);
        }
        // After the commit: a run for the cutoff may have looked before, and the next one may be days away.
        let now = executor.databases().shard(window.shard)?.database_time().await?;
        if opened.cutoff > now {
            return Ok(opened);
        }
        let due = DueWindow { window: opened.id, now };
        executor.execute(&BeginClosing, due).principal(S::NAME).await
    }
}

impl<S> std::fmt::Debug for Windows<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Windows")
            .field("job", &self.job)
            .field("handler", &self.handler)
            .finish_non_exhaustive()
    }
}
