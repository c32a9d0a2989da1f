//! The crates apalis and apalis-postgres: the transaction of a deposit inserts a task, and a worker runs it.
//!
//! `push` of apalis's storage commits on its own: a crash after the deposit's commit would lose the task.
//! The crate has `queries::push_tasks` for the transaction of the caller, and its documentation uses it so.
//! The deposits call it.
//!
//! The worker is configured as in the crate's example `basic`: notifications of the server wake it, it fetches up to
//! 100 tasks at once, runs each in a spawned task, does not mark a task as running before it runs it (a fetch
//! already locks its tasks), and has a heartbeat every second. Two things differ from the example: at most 16 tasks run
//! at once, as with graphile_worker, and the worker also looks without a notification; see [`INTERVAL`].
//!
//! A task that ran stays in the table.

use std::sync::Arc;
use std::time::Duration;

use apalis::prelude::{
    BackendExt, BoxDynError, Data, ParallelizeExt, TaskBuilder, WorkerBuilder, WorkerBuilderExt,
    WorkerError,
};
use apalis_postgres::queries::push_tasks;
use apalis_postgres::{Config, PostgresStorage};
use ekbatan::prelude::{Decimal, Uuid};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::recorder::Recorder;
use super::super::table_queue::{DepositPayload, deposit_pool, update_wallet};
use crate::failure::Failure;

const QUEUE: &str = "note_deposit";

/// How many tasks run at once.
const CONCURRENCY: usize = 16;

/// How many tasks are fetched at once.
const BATCH: usize = 100;

/// How often the worker looks for tasks without a notification, because it misses some:
///
/// - The trigger of apalis-postgres sends none for a task that is due after its transaction began. A task is due at the
///   last whole second of the client's clock, so this happens if a second begins within the transaction.
/// - apalis-core drops a notification that comes while a fetch finds nothing.
///
/// The documentation of the crate looks every 5 or 10 seconds: one miss would be most of a short measurement. An interval that
/// is shorter than a fetch stops for the same reason as a dropped notification; then the next heartbeat wakes the worker.
const INTERVAL: Duration = Duration::from_millis(100);

/// Also the longest time until the worker looks again.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// The number of heartbeats after which a worker counts as dead.
const MISSED_HEARTBEATS: usize = 10;

/// One connection listens, and the worker uses one at a time.
const WORKER_POOL: u32 = 4;

/// What deposits.
#[derive(Clone)]
pub struct ApalisWriter {
    pool: PgPool,
    url: Arc<str>,
}

impl ApalisWriter {
    /// Creates the tables and connects.
    pub async fn open(url: &str, tasks: u32) -> Result<Self, Failure> {
        let pool = deposit_pool(url, tasks).await?;
        PostgresStorage::setup(&pool).await?;
        Ok(Self { pool, url: url.into() })
    }

    pub async fn deposit(&self, wallet: Uuid, amount: Decimal) -> Result<(), Failure> {
        let mut transaction = self.pool.begin().await?;
        let payload = update_wallet(&mut transaction, wallet, amount).await?;
        let task = TaskBuilder::new(serde_json::to_vec(&payload)?).build();
        push_tasks(&mut *transaction, QUEUE, vec![task]).await?;
        Ok(transaction.commit().await?)
    }

    pub async fn close(self) {
        self.pool.close().await;
    }
}

async fn note(payload: DepositPayload, recorder: Data<Arc<Recorder>>) -> Result<(), BoxDynError> {
    recorder.handle(payload.wallet, payload.amount, payload.balance)
}

/// A worker with connections of its own.
pub struct ApalisWorker {
    pool: PgPool,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<(), WorkerError>>,
}

impl ApalisWorker {
    pub async fn start(writer: &ApalisWriter, recorder: Arc<Recorder>) -> Result<Self, Failure> {
        let pool = PgPoolOptions::new().max_connections(WORKER_POOL).connect(&writer.url).await?;
        let config = Config::default()
            .queue(QUEUE)
            .batch_size(BATCH)
            .lock_tasks(false)
            .heartbeat_interval(HEARTBEAT)
            .missed_heartbeats(MISSED_HEARTBEATS);
        let storage = PostgresStorage::<DepositPayload>::new(&pool)
            .with_config(config)
            .with_pubsub()
            .poll_with_interval(INTERVAL);
        // A worker must have a name of its own.
        let worker = WorkerBuilder::new(Uuid::now_v7().to_string())
            .backend(storage)
            .concurrency(CONCURRENCY)
            .parallelize(tokio::spawn)
            .data(recorder)
            .build(note);
        let (stop, stopped) = oneshot::channel();
        let signal = async {
            // A sender that was dropped stops it too.
            _ = stopped.await;
            Ok::<_, WorkerError>(())
        };
        let running = tokio::spawn(worker.run_until(signal));
        Ok(Self { pool, stop, running })
    }

    /// Stops, and returns how many tasks are left.
    pub async fn stop(self) -> Result<u64, Failure> {
        drop(self.stop);
        self.running.await??;
        let (left,): (i64,) =
            sqlx::query_as("SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'")
                .fetch_one(&self.pool)
                .await?;
        self.pool.close().await;
        Ok(u64::try_from(left)?)
    }
}
