//! The crate graphile_worker: the transaction of a deposit adds a job, and a worker runs it. If the jobs
//! of one wallet are in a queue of its own, they run one after another.

use std::fmt;
use std::sync::Arc;

use ekbatan::prelude::{Decimal, Uuid};
use graphile_worker::{
    IntoTaskHandlerResult, LocalQueueConfig, TaskHandler, Worker, WorkerContext, WorkerOptions,
};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use sqlx::types::Json;
use tokio::task::JoinHandle;

use super::super::recorder::Recorder;
use super::super::table_queue::{DepositPayload, deposit_pool, update_wallet};
use crate::failure::Failure;

/// How many jobs run at once.
const CONCURRENCY: usize = 16;

const ADD_JOB: &str =
    "SELECT 1 FROM graphile_worker.add_job($1, payload => $2::json, queue_name => $3)";

/// What deposits.
#[derive(Clone)]
pub struct JobWriter {
    pool: PgPool,
    url: Arc<str>,
    has_queues: bool,
}

impl JobWriter {
    /// Creates the tables and connects.
    pub async fn open(url: &str, tasks: u32, has_queues: bool) -> Result<Self, Failure> {
        let pool = deposit_pool(url, tasks).await?;
        let worker = WorkerOptions::default()
            .pg_pool(pool.clone())
            .listen_os_shutdown_signals(false)
            .init()
            .await?;
        drop(worker);
        Ok(Self { pool, url: url.into(), has_queues })
    }

    pub async fn deposit(&self, wallet: Uuid, amount: Decimal) -> Result<(), Failure> {
        let mut transaction = self.pool.begin().await?;
        let payload = update_wallet(&mut transaction, wallet, amount).await?;
        sqlx::query(ADD_JOB)
            .bind(DepositPayload::IDENTIFIER)
            .bind(Json(payload))
            .bind(self.has_queues.then(|| wallet.to_string()))
            .execute(&mut *transaction)
            .await?;
        Ok(transaction.commit().await?)
    }

    pub async fn close(self) {
        self.pool.close().await;
    }
}

impl TaskHandler for DepositPayload {
    const IDENTIFIER: &'static str = "note_deposit";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let Some(Noting(recorder)) = context.get_ext::<Noting>() else {
            return Err("there is no recorder".to_owned());
        };
        recorder.handle(self.wallet, self.amount, self.balance).map_err(|error| error.to_string())
    }
}

#[derive(Clone)]
struct Noting(Arc<Recorder>);

impl fmt::Debug for Noting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Noting").finish_non_exhaustive()
    }
}

/// A worker with connections of its own.
pub struct JobWorker {
    pool: PgPool,
    worker: Arc<Worker>,
    running: JoinHandle<Result<(), Failure>>,
}

impl JobWorker {
    pub async fn start(writer: &JobWriter, recorder: Arc<Recorder>) -> Result<Self, Failure> {
        // One more for each job at a time, and some to fetch and to listen.
        let pool = PgPoolOptions::new().max_connections(CONCURRENCY as u32 + 4);
        let pool = pool.connect(&writer.url).await?;
        let worker = WorkerOptions::default()
            .pg_pool(pool.clone())
            .concurrency(CONCURRENCY)
            .local_queue(LocalQueueConfig::default())
            .listen_os_shutdown_signals(false)
            .add_extension(Noting(recorder))
            .define_job::<DepositPayload>()
            .init()
            .await?;
        let worker = Arc::new(worker);
        let own = worker.clone();
        let running = tokio::spawn(async move { Ok(own.run().await?) });
        Ok(Self { pool, worker, running })
    }

    /// Stops, and returns how many jobs are left.
    pub async fn stop(self) -> Result<u64, Failure> {
        self.worker.request_shutdown();
        self.running.await??;
        let (left,): (i64,) = sqlx::query_as("SELECT count(*) FROM graphile_worker.jobs")
            .fetch_one(&self.pool)
            .await?;
        self.pool.close().await;
        Ok(u64::try_from(left)?)
    }
}
