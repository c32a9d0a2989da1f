//! A node: runs jobs in this process.

use std::io;
use std::time::Duration;

use ekbatan_core::action::ActionExecutor;
use ekbatan_events::__private::told_to_end;
use ekbatan_events::HandedBack;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::error::JobNodeStartError;
use crate::heart::Heart;
use crate::job::Job;
use crate::job_run::Runner;
use crate::job_set::{JobSet, KnownJob};
use crate::options::JobOptions;
use crate::schedule::Schedule;
use crate::settings::Settings;
use crate::store::Store;
use crate::worker::{Stop, Worker};

/// For how long at most a node that is drained deletes its row.
const LONGEST_LEAVE: Duration = Duration::from_secs(10);

/// Runs jobs until it is drained or dropped.
///
/// Any number of nodes share the jobs, also nodes with different ones: a slot is run once, by one of
/// the nodes that know its job. None of them leads. The clock of the database decides what is due. A
/// node whose process dies is noticed after its lease, and its runs are begun again elsewhere.
///
/// If it is dropped, its runs are cancelled, and others begin them again after its lease. Call
/// [`drain`](Self::drain) to end in order.
#[must_use = "a node that is dropped stops"]
pub struct JobNode {
    stop: watch::Sender<Stop>,
    workers: JoinSet<HandedBack>,
    /// The heartbeat; it ends when this is dropped.
    hearts: JoinSet<()>,
    leaving: watch::Sender<bool>,
}

/// Configures a [`JobNode`].
#[must_use = "a node runs nothing until it is started"]
pub struct JobNodeBuilder {
    executor: ActionExecutor,
    jobs: Vec<KnownJob>,
    settings: Settings,
}

impl JobNodeBuilder {
    /// Adds a job with the default options.
    pub fn job<J: Job>(self, schedule: Schedule, job: J) -> Self {
        self.job_with(schedule, job, JobOptions::default())
    }

    /// Adds a job.
    pub fn job_with<J: Job>(mut self, schedule: Schedule, job: J, options: JobOptions) -> Self {
        self.jobs.push(KnownJob::new(schedule, job, options));
        self
    }

    /// Sets a name for logs. It need not be unique.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Sets the time after which a node that is not heard of loses its runs; 15 s unless set, at
    /// least 1 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Sets the longest pause between two looks at the jobs; 1 s unless set. A slot is found at its
    /// time. What operators do, and runs that others give back, are found after this pause.
    pub fn poll(mut self, longest: Duration) -> Self {
        self.settings.poll = longest;
        self
    }

    /// Sets how many runs the node has at a time; 64 unless set. What is due beyond that is left to
    /// other nodes, or waits.
    pub fn concurrency(mut self, runs: usize) -> Self {
        self.settings.concurrency = runs;
        self
    }

    /// Stores the jobs that are not stored yet, and starts. Jobs that this node does not know stay as
    /// they are.
    pub async fn start(self) -> Result<JobNode, JobNodeStartError> {
        let Self { executor, jobs, settings } = self;
        settings.check()?;
        let jobs = JobSet::new(jobs)?;
        let store = Store::new(executor.databases());
        for job in jobs.iter() {
            store.register(job.name, &job.schedule, &job.options).await?;
        }
        let (stop, stopping) = watch::channel(Stop::No);
        let (leaving, left) = watch::channel(false);
        let (identity, known) = watch::channel(None);
        let heart = Heart {
            store: store.clone(),
            jobs: jobs.clone(),
            settings: settings.clone(),
            identity,
            leaving: left,
        };
        let joining = Instant::now();
        let membership = heart.join().await?;
        heart.identity.send_replace(Some(membership.id()));
        let runner = Runner { executor, store: store.clone() };
        let worker = Worker { runner, store, jobs, settings, identity: known, stop: stopping };
        let (mut workers, mut hearts) = (JoinSet::new(), JoinSet::new());
        workers.spawn(worker.run());
        hearts.spawn(heart.beat(membership, joining));
        Ok(JobNode { stop, workers, hearts, leaving })
    }
}

impl JobNode {
    /// A node whose jobs execute actions by an executor. The jobs are stored on its default shard.
    /// Its settings start from `ekbatan.jobs` of the configuration.
    pub fn builder(executor: &ActionExecutor) -> JobNodeBuilder {
        let settings = Settings::new(executor.databases().jobs_config());
        JobNodeBuilder { executor: executor.clone(), jobs: Vec::new(), settings }
    }

    /// Starts nothing more, waits for the runs, for at most `grace`, cancels those that still run,
    /// and gives them back without counting an attempt. If the database does not answer, this ends up to 40 s
    /// after the grace, and others take the runs over.
    ///
    /// A job that blocks its thread cannot be cancelled. This does not wait for it, and others take its run over;
    /// once they have, its actions are refused. The end of tokio's runtime does wait for it, unless it is
    /// shut down by `Runtime::shutdown_timeout`.
    pub async fn drain(mut self, grace: Duration) -> HandedBack {
        let now = Instant::now();
        // A century, if there is no such time.
        let at = now.checked_add(grace).unwrap_or(now + Duration::from_secs(3_155_760_000));
        self.stop.send_replace(Stop::At(at));
        let mut all = HandedBack::default();
        while let Some(ended) = self.workers.join_next().await {
            all = all.and(ended.unwrap_or_default());
        }
        self.leaving.send_replace(true);
        let leaving = async { while self.hearts.join_next().await.is_some() {} };
        if tokio::time::timeout(LONGEST_LEAVE, leaving).await.is_err() {
            tracing::warn!("a node of jobs left its row behind; others delete it");
        }
        all
    }

    /// Runs until the process is told to end, by SIGTERM or Ctrl-C, and then [drains](Self::drain). A
    /// process with both kinds of nodes joins them:
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(node: ekbatan_events::Node, jobs: ekbatan_jobs::JobNode) -> std::io::Result<()> {
    /// let grace = Duration::from_secs(30);
    /// tokio::try_join!(node.run_until_signal(grace), jobs.run_until_signal(grace))?;
    /// # Ok(()) }
    /// ```
    pub async fn run_until_signal(self, grace: Duration) -> io::Result<HandedBack> {
        told_to_end().await?;
        Ok(self.drain(grace).await)
    }
}

impl std::fmt::Debug for JobNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobNode").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for JobNodeBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobNodeBuilder")
            .field("jobs", &self.jobs.len())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
