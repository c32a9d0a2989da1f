//! One run of a job, from its start to its stored end.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use ekbatan_core::action::ActionExecutor;
use ekbatan_core::domain::Stored;
use ekbatan_events::__private::failure;
use futures_util::FutureExt;
use tracing::{Instrument, field};
use uuid::Uuid;

use crate::error::JobsError;
use crate::job::RunContext;
use crate::job_set::KnownJob;
use crate::rows::{JobRow, RunRow, RunState};
use crate::store::Store;

/// The pause before the end of a run is stored again.
const PAUSE: Duration = Duration::from_secs(1);

/// How a run ended.
#[derive(Debug, Clone)]
enum End {
    Done,
    /// An action has ended the run with its commit, and this may have failed afterwards.
    DoneBefore(Option<String>),
    Failed(String),
    /// The run is not this node's any more.
    Lost,
}

/// What every run needs.
#[derive(Clone)]
pub(crate) struct Runner {
    pub(crate) executor: ActionExecutor,
    pub(crate) store: Store,
}

impl Runner {
    /// Runs a job, and stores its end. Answers the id of the run.
    pub(crate) async fn run(
        self,
        job: Arc<KnownJob>,
        row: Stored<JobRow>,
        run: Stored<RunRow>,
    ) -> Uuid {
        let span = tracing::info_span!(
            "ekbatan.job.run",
            ekbatan.job.name = job.name,
            ekbatan.job.run = %run.id,
            ekbatan.job.slot = %run.slot,
            ekbatan.job.attempt = run.attempt,
            ekbatan.job.outcome = field::Empty,
        );
        let work = async {
            let end = self.run_once(&job, row.deadline(), &run).await;
            let outcome = match &end {
                End::Done | End::DoneBefore(_) => "done",
                End::Failed(_) => "failed",
                End::Lost => "lost",
            };
            span.record("ekbatan.job.outcome", outcome);
            self.end(&row, &run, end).await;
        };
        // The error of a job, and what its context holds, may panic when they are dropped.
        let work = AssertUnwindSafe(work.instrument(span.clone()));
        if let Err(panic) = work.catch_unwind().await {
            let error = failure::of_panic(&*panic);
            tracing::error!(job = job.name, run = %run.id, %error, "what a run of a job left behind could not be dropped; the run is begun again");
        }
        run.id.uuid()
    }

    async fn run_once(&self, job: &KnownJob, longest: Duration, run: &Stored<RunRow>) -> End {
        let ctx = RunContext::new(&self.executor, &self.store.shard, run, job.name);
        let mut ctx = match ctx {
            Ok(ctx) => ctx,
            Err(error) => return End::Failed(error.to_string()),
        };
        // A panic is caught also where the deadline drops what the job holds.
        let running = async { tokio::time::timeout(longest, job.run(&mut ctx)).await };
        let failure = match AssertUnwindSafe(running).catch_unwind().await {
            Ok(Ok(Ok(()))) => None,
            Ok(Ok(Err(error))) => Some(failure::of_error(&*error)),
            Ok(Err(_)) => Some(format!("did not end within {longest:?}")),
            Err(panic) => Some(failure::of_panic(&*panic)),
        };
        match failure {
            failure if ctx.is_ended() => End::DoneBefore(failure),
            _ if ctx.is_lost() => End::Lost,
            Some(failure) => End::Failed(failure),
            None => End::Done,
        }
    }

    /// Stores the end of a run, until the database takes it. The node ends this if it is lost.
    async fn end(&self, job: &Stored<JobRow>, run: &Stored<RunRow>, end: End) {
        let name = &job.name;
        let (state, error) = match end {
            End::Lost => {
                tracing::warn!(job = %name, run = %run.id, "a run was taken over by another node, or ended by somebody");
                return;
            }
            End::DoneBefore(error) => {
                if let Some(error) = error {
                    tracing::warn!(job = %name, run = %run.id, %error, "a job failed after an action had ended its run; the run is done");
                }
                return self.store.prune(job).await;
            }
            End::Done => (RunState::Done, None),
            End::Failed(error) => {
                tracing::error!(job = %name, run = %run.id, slot = %run.slot, %error, "a run of a job failed");
                (RunState::Failed, Some(error))
            }
        };
        while let Err(error) = self.store_end(job, run, state, error.clone()).await {
            tracing::warn!(job = %name, run = %run.id, %error, "the end of a run could not be stored; trying again");
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn store_end(
        &self,
        job: &Stored<JobRow>,
        run: &Stored<RunRow>,
        state: RunState,
        error: Option<String>,
    ) -> Result<(), JobsError> {
        // It is not as it was read if an earlier answer was lost, perhaps that of the last action.
        self.store.end(run, state, error).await?;
        self.store.prune(job).await;
        Ok(())
    }
}
