//! One lane: takes batches from the queue and commits them over its own connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::batches::QueuedBatch;
use super::in_flight::{InFlight, Outcome};
use super::limit::{LaneLimit, STEP};
use super::queue::CommitQueue;
use super::tasks::TaskKind;
use crate::db::driver::{Connection, Driver, Route};
use crate::db::{CommitBatch, CommitError, Committed, DbError, DbErrorKind};

/// How many rows one statement carries; further batches wait for the next one.
pub(super) const MAX_ROWS: usize = 2_000;

/// How many round trips of a new connection are measured.
const MEASURED_TRIPS: u32 = 3;

/// How often a batch may lose its connection or its lane. After the first loss it is sent once
/// more, unless it is found to have committed.
const MAX_LOSSES: u32 = 2;

/// What the lanes of one database share.
pub(super) struct Lane {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) queue: Arc<CommitQueue>,
    pub(super) limit: LaneLimit,
    pub(super) fold_limit: usize,
    pub(super) connection_timeout: Duration,
    /// How long a commit waits for a locked row.
    pub(super) lock_timeout: Duration,
    pub(super) commit_timeout: Duration,
    pub(super) settle_timeout: Duration,
    /// Bounds the connections that commit what would delay others; see [`apart`](super::apart). There
    /// may be as many as there have ever been lanes.
    pub(super) side_tasks: Semaphore,
    pub(super) most_lanes: AtomicUsize,
}

impl Lane {
    /// Commits what is in flight; returns the connection for the next commit, if one is usable.
    pub(super) async fn commit(
        lane: &Arc<Self>,
        kind: TaskKind,
        mut connection: Option<Box<dyn Connection>>,
        mut in_flight: InFlight,
    ) -> Option<Box<dyn Connection>> {
        if in_flight.losses() > 0 {
            connection = Self::settle_abandoned(lane, kind, connection, &mut in_flight).await;
        }
        // A connection may have died while it was idle, or lead to a primary that was demoted.
        // Batches that are then known not to have committed are sent once more; a second loss is
        // returned to their callers.
        while !in_flight.is_empty() {
            let open = match connection.take() {
                Some(open) => open,
                None => match Self::connect(lane, kind).await {
                    Ok(open) => open,
                    Err(error) => {
                        in_flight.refuse_all(&error);
                        return None;
                    }
                },
            };
            in_flight.send_over(open.identity());
            let sent = Instant::now();
            let answered = lane.send(kind, open, &mut in_flight).await;
            // Settling takes time of its own.
            let is_late = sent.elapsed() >= lane.commit_timeout;
            match answered {
                Ok(open) => {
                    in_flight.settled();
                    if !in_flight.is_empty() {
                        Self::wait_apart(lane, in_flight);
                    }
                    return Some(open);
                }
                Err(error) => {
                    let batches = in_flight.batches().len();
                    tracing::warn!(%error, batches, "a lane gives up its connection in a commit");
                    in_flight.count_loss();
                    connection = if error.kind() == DbErrorKind::ReadOnly {
                        in_flight.settled(); // nothing was written of what stays
                        None
                    } else {
                        Self::settle(lane, kind, &mut in_flight, &error).await
                    };
                    if in_flight.losses() >= MAX_LOSSES {
                        in_flight.refuse_all(&error.read_only_is_lost());
                    } else if is_late {
                        // One of them may be what takes so long; the others must not be lost with
                        // it a second time.
                        for alone in in_flight.take_apart() {
                            Self::wait_apart(lane, alone);
                        }
                    }
                }
            }
        }
        connection
    }

    /// Finds out which of the batches committed that a lane had taken when it died.
    async fn settle_abandoned(
        lane: &Arc<Self>,
        kind: TaskKind,
        connection: Option<Box<dyn Connection>>,
        in_flight: &mut InFlight,
    ) -> Option<Box<dyn Connection>> {
        let why = "the lane that had taken the commit died: it panicked, or its runtime ended";
        let died = DbError::new(DbErrorKind::Unavailable, why);
        if in_flight.losses() > MAX_LOSSES {
            // Looking for them seems to be what kills the lanes.
            in_flight.answer_each(|queued| {
                Some(Err(CommitError::Unknown(queued.batch.action, died.to_string())))
            });
            return connection;
        }
        let connection = match in_flight.sent_over() {
            Some(_) => Self::settle(lane, kind, in_flight, &died).await,
            None => connection,
        };
        if in_flight.losses() >= MAX_LOSSES {
            in_flight.refuse_all(&died);
        }
        connection
    }

    async fn connect(lane: &Arc<Self>, kind: TaskKind) -> Result<Box<dyn Connection>, DbError> {
        let mut connection = lane.driver.connect(Route::Primary).await?;
        Self::prepare(lane, kind, &mut *connection).await?;
        Ok(connection)
    }

    /// Makes the connection one of a lane.
    pub(super) async fn prepare(
        lane: &Arc<Self>,
        kind: TaskKind,
        connection: &mut dyn Connection,
    ) -> Result<(), DbError> {
        lane.within_timeout(connection.become_lane(lane.lock_timeout)).await?;
        if kind == TaskKind::Lane && lane.limit.is_measured() {
            let round_trip = lane.within_timeout(fastest_trip(connection)).await?;
            lane.limit.set_by(round_trip);
            let lanes = lane.limit.lanes();
            tracing::debug!(?round_trip, lanes, "a lane measured the way to the server");
            let most_before = lane.most_lanes.fetch_max(lanes, Ordering::Relaxed);
            lane.side_tasks.add_permits(lanes.saturating_sub(most_before));
            lane.queue.want_lanes(&lane.limit);
            Self::start_missing(lane, &Handle::current());
        }
        Ok(())
    }

    /// Waits for what belongs to opening a connection, as long as that may take.
    async fn within_timeout<T>(
        &self,
        opening: impl Future<Output = Result<T, DbError>>,
    ) -> Result<T, DbError> {
        tokio::time::timeout(self.connection_timeout, opening).await.unwrap_or_else(|_| {
            let why =
                format!("no answer within {:?} (connection-timeout)", self.connection_timeout);
            Err(DbError::new(DbErrorKind::Unavailable, why))
        })
    }

    /// Sends everything in flight and answers the callers. Batches that wait for a locked row
    /// stay in flight. After an error, those stay whose outcome is not known.
    async fn send(
        &self,
        kind: TaskKind,
        mut connection: Box<dyn Connection>,
        in_flight: &mut InFlight,
    ) -> Result<Box<dyn Connection>, DbError> {
        let taken = Instant::now();
        let trips = connection.round_trips();
        let batches: Vec<&CommitBatch> =
            in_flight.batches().iter().map(|queued| &queued.batch).collect();
        let mut outcomes: Vec<Outcome> = batches.iter().map(|_| None).collect();
        let sent = self.commit_in_parts(kind, &mut *connection, &batches, &mut outcomes).await;
        let round_trips = u32::try_from(connection.round_trips() - trips).unwrap_or(u32::MAX);
        let folded = outcomes.len();
        let mut outcomes = outcomes.into_iter();
        in_flight.answer_each(|queued: &QueuedBatch| {
            let committed = Committed {
                action: queued.batch.action,
                round_trips,
                folded,
                lane_wait: taken.saturating_duration_since(queued.since),
                token: None,
            };
            outcomes.next().flatten().map(|outcome| outcome.map(|()| committed))
        });
        sent.map(|()| connection)
    }

    /// Commits batches by one statement, within the timeout.
    pub(super) async fn commit_once(
        &self,
        connection: &mut dyn Connection,
        batches: &[&CommitBatch],
    ) -> Result<Vec<Result<(), CommitError>>, DbError> {
        let committing = connection.commit(batches);
        if self.driver.capabilities().single_writer {
            return committing.await; // SQLite runs in this process, and always answers
        }
        tokio::time::timeout(self.commit_timeout, committing).await.unwrap_or_else(|_| {
            let why = format!("no answer to a commit within {:?}", self.commit_timeout);
            Err(DbError::new(DbErrorKind::Unavailable, why))
        })
    }
}

/// Measures how long the way to the server and back takes, by statements that do nothing. The
/// fastest counts, because others waited for a processor.
async fn fastest_trip(connection: &mut dyn Connection) -> Result<Duration, DbError> {
    let mut fastest = Duration::MAX;
    for _ in 0..MEASURED_TRIPS {
        let sent = Instant::now();
        connection.script("SELECT 1").await?;
        fastest = fastest.min(sent.elapsed());
        if fastest < STEP {
            break; // nearer than that makes no difference
        }
    }
    Ok(fastest)
}
