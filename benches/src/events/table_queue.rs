//! Queues that are a table, by hand: the transaction of a deposit inserts a row, and workers take
//! rows that nobody else has locked. None has an order between the rows of one wallet, because two
//! workers may have one each.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::prelude::{Decimal, Uuid};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use sqlx::types::Json;
use sqlx::{PgConnection, PgPool};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::recorder::Recorder;
use super::share::Share;
use crate::failure::Failure;

/// The most connections of the pool of the deposits.
const MAX_POOL: u32 = 64;

const UPDATE: &str = "UPDATE wallets SET balance = balance + $2, version = version + 1, \
                      updated_date = now() AT TIME ZONE 'UTC' WHERE id = $1 RETURNING balance";

/// What a job or a row of a queue contains.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DepositPayload {
    pub wallet: Uuid,
    pub amount: Decimal,
    pub balance: Decimal,
}

/// How rows are taken, and what becomes of those that are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableQueue {
    /// As one would write it: one transaction takes rows, handles them and deletes them.
    Outbox,
    /// The same rows, which one worker sends to a broker.
    Published,
    /// The statements and the defaults of the crate hexeract-outbox-sql 0.6: one transaction takes
    /// rows and lends them out, and each row is marked as delivered in a transaction of its own.
    Hexeract,
    /// The statements of the functions of pgmq, without the extension: one statement takes rows and
    /// lends them out, and one deletes them.
    Pgmq,
}

/// A row that a worker has taken.
type Taken = (i64, Uuid, Json<DepositPayload>);

impl TableQueue {
    const fn table(self) -> &'static str {
        match self {
            Self::Outbox | Self::Published => {
                "CREATE TABLE queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
                 event_type text NOT NULL, payload jsonb NOT NULL, created timestamptz NOT NULL DEFAULT now())"
            }
            Self::Hexeract => {
                "CREATE TABLE queue (id bigserial PRIMARY KEY, event_id uuid NOT NULL UNIQUE, \
                 event_type varchar(64) NOT NULL, payload jsonb NOT NULL, subject_id uuid, \
                 created_at timestamptz NOT NULL DEFAULT now(), attempts integer NOT NULL DEFAULT 0, \
                 last_error text, next_retry_at timestamptz, delivered_at timestamptz); \
                 CREATE INDEX queue_pending ON queue (created_at) WHERE delivered_at IS NULL; \
                 CREATE INDEX queue_subject ON queue (subject_id, id) WHERE subject_id IS NOT NULL"
            }
            Self::Pgmq => {
                "CREATE TABLE queue (msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
                 read_ct integer NOT NULL DEFAULT 0, enqueued_at timestamptz NOT NULL DEFAULT now(), \
                 vt timestamptz NOT NULL, message jsonb, headers jsonb); \
                 CREATE INDEX queue_vt ON queue (vt)"
            }
        }
    }

    /// The parameters: the id of an event, and the payload.
    const fn insert(self) -> &'static str {
        match self {
            Self::Outbox | Self::Published => {
                "INSERT INTO queue (event_type, payload) SELECT 'WalletMoneyDeposited', $2 \
                 WHERE $1::uuid IS NOT NULL"
            }
            Self::Hexeract => {
                "INSERT INTO queue (event_id, event_type, payload, subject_id) \
                 VALUES ($1, 'WalletMoneyDeposited', $2, NULL)"
            }
            Self::Pgmq => {
                "INSERT INTO queue (vt, message, headers) SELECT clock_timestamp(), $2, NULL \
                 WHERE $1::uuid IS NOT NULL"
            }
        }
    }

    /// The parameter: the number of rows.
    const fn take(self) -> &'static str {
        match self {
            Self::Outbox | Self::Published => {
                "SELECT id, '00000000-0000-0000-0000-000000000000'::uuid, payload FROM queue \
                 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED"
            }
            Self::Hexeract => {
                "SELECT id, event_id, payload FROM queue WHERE delivered_at IS NULL AND attempts < 5 \
                 AND (next_retry_at IS NULL OR next_retry_at <= now()) \
                 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED"
            }
            Self::Pgmq => {
                "WITH taken AS (SELECT msg_id FROM queue WHERE vt <= clock_timestamp() \
                 ORDER BY msg_id LIMIT $1 FOR UPDATE SKIP LOCKED) \
                 UPDATE queue SET vt = clock_timestamp() + interval '30 s', read_ct = read_ct + 1 \
                 FROM taken WHERE queue.msg_id = taken.msg_id \
                 RETURNING queue.msg_id, '00000000-0000-0000-0000-000000000000'::uuid, queue.message"
            }
        }
    }

    const fn left(self) -> &'static str {
        match self {
            Self::Outbox | Self::Published | Self::Pgmq => "SELECT count(*) FROM queue",
            Self::Hexeract => "SELECT count(*) FROM queue WHERE delivered_at IS NULL",
        }
    }

    /// The number of workers. Hexeract handles one event after another in each worker.
    const fn workers(self) -> u32 {
        match self {
            Self::Outbox | Self::Published | Self::Pgmq => 4,
            Self::Hexeract => 16,
        }
    }

    /// How many rows a worker takes at once.
    const fn batch(self) -> i64 {
        match self {
            Self::Outbox | Self::Published | Self::Pgmq => 100,
            Self::Hexeract => 10,
        }
    }

    /// The pauses of a worker that finds nothing: the first, and the longest.
    const fn pauses(self) -> (Duration, Duration) {
        match self {
            Self::Outbox | Self::Published | Self::Pgmq => {
                (Duration::from_millis(5), Duration::from_millis(80))
            }
            Self::Hexeract => (Duration::from_millis(100), Duration::from_millis(100)),
        }
    }
}

/// What deposits.
#[derive(Clone)]
pub struct QueueWriter {
    queue: TableQueue,
    pool: PgPool,
    url: Arc<str>,
    written: Arc<Notify>,
}

impl QueueWriter {
    /// Creates the table and connects.
    pub async fn open(queue: TableQueue, url: &str, tasks: u32) -> Result<Self, Failure> {
        let pool = deposit_pool(url, tasks).await?;
        sqlx::raw_sql(queue.table()).execute(&pool).await?;
        Ok(Self { queue, pool, url: url.into(), written: Arc::default() })
    }

    pub async fn deposit(&self, wallet: Uuid, amount: Decimal) -> Result<(), Failure> {
        let mut transaction = self.pool.begin().await?;
        let payload = update_wallet(&mut transaction, wallet, amount).await?;
        sqlx::query(self.queue.insert())
            .bind(Uuid::now_v7())
            .bind(Json(payload))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        self.written.notify_one();
        Ok(())
    }

    pub async fn close(self) {
        self.pool.close().await;
    }

    /// Whether rows are sent to a broker.
    pub fn is_published(&self) -> bool {
        self.queue == TableQueue::Published
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// What is notified after each deposit.
    pub fn written(&self) -> Arc<Notify> {
        self.written.clone()
    }
}

/// One connection for each task, up to a limit.
pub async fn deposit_pool(url: &str, tasks: u32) -> Result<PgPool, Failure> {
    Ok(PgPoolOptions::new().max_connections(tasks.min(MAX_POOL)).connect(url).await?)
}

/// Updates a wallet in the transaction of a deposit, and returns what its event contains.
pub async fn update_wallet(
    connection: &mut PgConnection,
    wallet: Uuid,
    amount: Decimal,
) -> Result<DepositPayload, Failure> {
    let (balance,) = sqlx::query_as(UPDATE).bind(wallet).bind(amount).fetch_one(connection).await?;
    Ok(DepositPayload { wallet, amount, balance })
}

/// Workers with connections of their own.
pub struct QueueWorkers {
    queue: TableQueue,
    pool: PgPool,
    stop: watch::Sender<bool>,
    workers: JoinSet<Result<(), Failure>>,
}

impl QueueWorkers {
    pub async fn start(
        writer: &QueueWriter,
        recorder: Arc<Recorder>,
        share: Share,
    ) -> Result<Self, Failure> {
        let queue = writer.queue;
        let pool = PgPoolOptions::new().max_connections(queue.workers());
        let pool = pool.connect(&writer.url).await?;
        let (stop, stopping) = watch::channel(false);
        let mut workers = JoinSet::new();
        for _ in 0..queue.workers() {
            let worker = QueueWorker {
                queue,
                pool: pool.clone(),
                recorder: recorder.clone(),
                written: match (queue, share) {
                    (TableQueue::Outbox, Share::Process) => writer.written.clone(),
                    // They have no way to hear of deposits but to look.
                    _ => Arc::default(),
                },
                stopping: stopping.clone(),
            };
            workers.spawn(worker.run());
        }
        Ok(Self { queue, pool, stop, workers })
    }

    /// Stops, and returns how many rows are left.
    pub async fn stop(mut self) -> Result<u64, Failure> {
        self.stop.send_replace(true);
        while let Some(ended) = self.workers.join_next().await {
            ended??;
        }
        let (left,): (i64,) = sqlx::query_as(self.queue.left()).fetch_one(&self.pool).await?;
        self.pool.close().await;
        Ok(u64::try_from(left)?)
    }
}

struct QueueWorker {
    queue: TableQueue,
    pool: PgPool,
    recorder: Arc<Recorder>,
    written: Arc<Notify>,
    stopping: watch::Receiver<bool>,
}

impl QueueWorker {
    async fn run(self) -> Result<(), Failure> {
        let (first, longest) = self.queue.pauses();
        let mut pause = first;
        while !*self.stopping.borrow() {
            let handled = match self.queue {
                TableQueue::Outbox | TableQueue::Published => self.handle_and_delete().await?,
                TableQueue::Hexeract => self.lend_and_mark().await?,
                TableQueue::Pgmq => self.lend_and_delete().await?,
            };
            let has_work = handled > 0 || timeout(pause, self.written.notified()).await.is_ok();
            pause = if has_work { first } else { (pause * 2).min(longest) };
        }
        Ok(())
    }

    async fn handle_and_delete(&self) -> Result<usize, Failure> {
        let mut transaction = self.pool.begin().await?;
        let rows = self.take(&mut transaction).await?;
        let ids = self.handle(&rows)?;
        if ids.is_empty() {
            transaction.rollback().await?;
        } else {
            let delete = sqlx::query("DELETE FROM queue WHERE id = ANY($1)").bind(&ids);
            delete.execute(&mut *transaction).await?;
            transaction.commit().await?;
        }
        Ok(ids.len())
    }

    async fn lend_and_mark(&self) -> Result<usize, Failure> {
        let mut transaction = self.pool.begin().await?;
        let rows = self.take(&mut transaction).await?;
        if !rows.is_empty() {
            let ids: Vec<Uuid> = rows.iter().map(|(_, event, _)| *event).collect();
            sqlx::query(
                "UPDATE queue SET next_retry_at = now() + $1::float8 * interval '1 second', \
                 attempts = attempts + 1 WHERE event_id = ANY($2)",
            )
            .bind(30.0 * ids.len() as f64)
            .bind(&ids)
            .execute(&mut *transaction)
            .await?;
        }
        transaction.commit().await?;
        for row in &rows {
            self.handle(std::slice::from_ref(row))?;
            let mut transaction = self.pool.begin().await?;
            sqlx::query("UPDATE queue SET delivered_at = now() WHERE event_id = $1")
                .bind(row.1)
                .execute(&mut *transaction)
                .await?;
            transaction.commit().await?;
        }
        if !rows.is_empty() {
            // Its shortest pause between two batches.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(rows.len())
    }

    async fn lend_and_delete(&self) -> Result<usize, Failure> {
        let mut connection = self.pool.acquire().await?;
        let rows = self.take(&mut connection).await?;
        let ids = self.handle(&rows)?;
        if !ids.is_empty() {
            sqlx::query("DELETE FROM queue WHERE msg_id = ANY($1) RETURNING msg_id")
                .bind(&ids)
                .fetch_all(&mut *connection)
                .await?;
        }
        Ok(ids.len())
    }

    async fn take(&self, connection: &mut PgConnection) -> Result<Vec<Taken>, Failure> {
        let take = sqlx::query_as(self.queue.take()).bind(self.queue.batch());
        Ok(take.fetch_all(connection).await?)
    }

    fn handle(&self, rows: &[Taken]) -> Result<Vec<i64>, Failure> {
        let handle = |(id, _, Json(payload)): &Taken| {
            self.recorder.handle(payload.wallet, payload.amount, payload.balance)?;
            Ok(*id)
        };
        rows.iter().map(handle).collect()
    }
}
