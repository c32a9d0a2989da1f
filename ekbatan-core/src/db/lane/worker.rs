//! One lane: takes batches from the queue and commits them over its own connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::queue::{CommitQueue, InFlight, QueuedBatch};
use super::settle::SentAt;
use crate::db::driver::{Connection, Driver, Route};
use crate::db::{CommitBatch, CommitError, Committed, DbError, DbErrorKind};

/// How many rows one statement carries; further batches wait for the next one.
const MAX_ROWS: usize = 2_000;

pub(super) struct Lane {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) queue: Arc<CommitQueue>,
    pub(super) fold_limit: usize,
    pub(super) lock_timeout: Duration,
    pub(super) commit_timeout: Duration,
    pub(super) settle_timeout: Duration,
}

impl Lane {
    pub(super) async fn run(self) {
        let mut connection = None;
        while let Some(in_flight) = CommitQueue::next(&self.queue, self.fold_limit, MAX_ROWS).await
        {
            connection = self.commit(connection, in_flight).await;
        }
        if let Some(connection) = connection {
            let _ = tokio::time::timeout(self.lock_timeout, connection.close()).await;
        }
    }

    /// Commits what is in flight; returns the connection for the next commit, if one is usable.
    async fn commit(
        &self,
        mut connection: Option<Box<dyn Connection>>,
        mut in_flight: InFlight,
    ) -> Option<Box<dyn Connection>> {
        // A connection may have died while it was idle, or lead to a primary that was demoted.
        // Batches that are then known not to have committed are sent once more; a second loss is
        // returned to their callers.
        for is_last in [false, true] {
            let open = match connection {
                Some(open) => open,
                None => match self.connect().await {
                    Ok(open) => open,
                    Err(error) => {
                        in_flight.refuse_all(&error);
                        return None;
                    }
                },
            };
            let sent = SentAt::now();
            match self.send(open, &mut in_flight).await {
                Ok(open) => return Some(open),
                Err((identity, error)) => {
                    let batches = in_flight.batches().len();
                    tracing::warn!(%error, batches, "a lane lost its connection in a commit");
                    connection = if error.kind() == DbErrorKind::ReadOnly {
                        None // nothing was written, and there is nothing to settle
                    } else {
                        self.settle(identity.as_deref(), &mut in_flight, &error, sent).await
                    };
                    if is_last {
                        in_flight.refuse_all(&error.read_only_is_lost());
                    }
                    if in_flight.is_empty() {
                        return connection;
                    }
                }
            }
        }
        connection
    }

    async fn connect(&self) -> Result<Box<dyn Connection>, DbError> {
        let mut connection = self.driver.connect(Route::Primary).await?;
        self.prepare(&mut *connection).await?;
        Ok(connection)
    }

    /// Makes the connection one of a lane, within the time that a connection may take.
    pub(super) async fn prepare(&self, connection: &mut dyn Connection) -> Result<(), DbError> {
        let preparing = connection.become_lane(self.lock_timeout);
        tokio::time::timeout(self.lock_timeout, preparing).await.unwrap_or_else(|_| {
            let why = format!("no answer within {:?} (connection-timeout)", self.lock_timeout);
            Err(DbError::new(DbErrorKind::Unavailable, why))
        })
    }

    /// Sends everything in flight and answers the callers. If the connection is lost, nobody was
    /// answered, and the error comes with the identity of the lost connection.
    async fn send(
        &self,
        mut connection: Box<dyn Connection>,
        in_flight: &mut InFlight,
    ) -> Result<Box<dyn Connection>, (Option<String>, DbError)> {
        let taken = Instant::now();
        let trips = connection.round_trips();
        let outcomes = {
            let batches: Vec<&CommitBatch> =
                in_flight.batches().iter().map(|queued| &queued.batch).collect();
            let single_writer = self.driver.capabilities().single_writer;
            let committing = commit_in_parts(&mut *connection, &batches, single_writer);
            if single_writer {
                committing.await // SQLite runs in this process, and always answers
            } else {
                tokio::time::timeout(self.commit_timeout, committing).await.unwrap_or_else(|_| {
                    let why = format!("no answer to a commit within {:?}", self.commit_timeout);
                    Err(DbError::new(DbErrorKind::Unavailable, why))
                })
            }
        };
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => return Err((connection.identity().map(str::to_owned), error)),
        };
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
            outcomes.next().map(|outcome| outcome.map(|()| committed))
        });
        Ok(connection)
    }
}

/// Commits batches in the parts that suit the connection. The outcomes are in their order.
async fn commit_in_parts(
    connection: &mut dyn Connection,
    batches: &[&CommitBatch],
    single_writer: bool,
) -> Result<Vec<Result<(), CommitError>>, DbError> {
    let parts = connection.part(batches);
    let last = parts.iter().copied().max().unwrap_or_default();
    let mut outcomes: Vec<(usize, Result<(), CommitError>)> = Vec::with_capacity(batches.len());
    for part in 0..=last {
        let of_part = |at: &usize| parts[*at] == part;
        let positions: Vec<usize> = (0..batches.len()).filter(of_part).collect();
        if !positions.is_empty() {
            let batches: Vec<&CommitBatch> = positions.iter().map(|at| batches[*at]).collect();
            let answers = commit_together_or_apart(connection, &batches, single_writer).await?;
            outcomes.extend(positions.into_iter().zip(answers));
        }
    }
    outcomes.sort_by_key(|(at, _)| *at);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

/// Commits batches together. If the commit fails as a whole, commits each batch by itself, so
/// that only the batch that causes the error fails.
async fn commit_together_or_apart(
    connection: &mut dyn Connection,
    batches: &[&CommitBatch],
    single_writer: bool,
) -> Result<Vec<Result<(), CommitError>>, DbError> {
    match connection.commit(batches).await {
        Err(error) if error.is_connection_lost() => Err(error),
        // A server that was the primary and is none any more: another connection may lead to the
        // new one.
        Err(error) if error.kind() == DbErrorKind::ReadOnly && !single_writer => Err(error),
        Err(error) if batches.len() == 1 => Ok(vec![Err(CommitError::Refused(error))]),
        // The writer lock was not available in time: each batch would wait as long again.
        Err(error) if single_writer && error.kind() == DbErrorKind::LockTimeout => {
            let refused = || CommitError::Refused(DbError::new(error.kind(), error.to_string()));
            Ok(batches.iter().map(|_| Err(refused())).collect())
        }
        Err(_) => {
            let mut outcomes = Vec::with_capacity(batches.len());
            for batch in batches {
                match connection.commit(&[batch]).await {
                    Ok(alone) => outcomes.extend(alone),
                    Err(error) if error.is_connection_lost() => return Err(error),
                    Err(error) => outcomes.push(Err(CommitError::Refused(error))),
                }
            }
            Ok(outcomes)
        }
        outcomes => outcomes,
    }
}
