//! The usual loop by hand: one worker reads the oldest rows of the outbox, sends them, waits for the
//! answers, and deletes them. If it dies in between, the rows are sent again.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::prelude::Uuid;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use sqlx::types::Json;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::broker_site::{BrokerSite, Outgoing, Publisher};
use super::recorder::Recorder;
use super::share::Share;
use super::table_queue::{DepositPayload, QueueWriter};
use crate::failure::Failure;

/// How many rows are sent at once, as a relay does.
const BATCH: i64 = 256;

/// The pauses of a worker that finds nothing: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(80));

/// The only worker: with several, the order would be lost.
pub struct PublishLoop {
    pool: PgPool,
    stop: watch::Sender<bool>,
    running: JoinHandle<Result<(), Failure>>,
}

impl PublishLoop {
    pub async fn start(
        writer: &QueueWriter,
        recorder: Arc<Recorder>,
        share: Share,
        site: &BrokerSite,
    ) -> Result<Self, Failure> {
        let pool = PgPoolOptions::new().max_connections(2).connect(writer.url()).await?;
        let (stop, stopping) = watch::channel(false);
        let written = match share {
            Share::Process => writer.written(),
            Share::Database => Arc::default(),
        };
        let publisher = site.publisher().await?;
        let worker = Worker { pool: pool.clone(), publisher, recorder, written, stopping };
        Ok(Self { pool, stop, running: tokio::spawn(worker.run()) })
    }

    /// Stops, and returns how many rows are left.
    pub async fn stop(self) -> Result<u64, Failure> {
        self.stop.send_replace(true);
        self.running.await??;
        let (left,): (i64,) =
            sqlx::query_as("SELECT count(*) FROM queue").fetch_one(&self.pool).await?;
        self.pool.close().await;
        Ok(u64::try_from(left)?)
    }
}

struct Worker {
    pool: PgPool,
    publisher: Publisher,
    recorder: Arc<Recorder>,
    written: Arc<Notify>,
    stopping: watch::Receiver<bool>,
}

impl Worker {
    async fn run(self) -> Result<(), Failure> {
        let (first, longest) = PAUSES;
        let mut pause = first;
        while !*self.stopping.borrow() {
            let sent = self.send().await?;
            let has_work = sent > 0 || timeout(pause, self.written.notified()).await.is_ok();
            pause = if has_work { first } else { (pause * 2).min(longest) };
        }
        Ok(())
    }

    async fn send(&self) -> Result<usize, Failure> {
        let rows: Vec<(i64, Json<DepositPayload>)> =
            sqlx::query_as("SELECT id, payload FROM queue ORDER BY id LIMIT $1")
                .bind(BATCH)
                .fetch_all(&self.pool)
                .await?;
        if rows.is_empty() {
            return Ok(0);
        }
        let event = |(id, Json(payload)): &(i64, Json<DepositPayload>)| {
            Ok::<_, Failure>(Outgoing {
                id: Uuid::from_u128(u128::try_from(*id)?),
                key: payload.wallet.to_string(),
                payload: serde_json::to_vec(payload)?,
            })
        };
        let events = rows.iter().map(event).collect::<Result<_, _>>()?;
        self.publisher.publish(events).await?;
        for (_, Json(payload)) in &rows {
            self.recorder.handle(payload.wallet, payload.amount, payload.balance)?;
        }
        let ids: Vec<i64> = rows.iter().map(|(id, _)| *id).collect();
        let delete = sqlx::query("DELETE FROM queue WHERE id = ANY($1)").bind(&ids);
        delete.execute(&self.pool).await?;
        Ok(ids.len())
    }
}
