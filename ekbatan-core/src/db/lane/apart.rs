//! What a lane does when a commit of several batches fails as a whole.
//!
//! Only the batch that causes the error may fail, so the batches are committed apart. A row that
//! another transaction keeps locked must not delay the commits of other rows for longer than one
//! lock timeout. So the lane asks which batches update a locked row, commits the others at once,
//! and leaves those to a *side task*, which has a connection of its own. The side task tries once
//! more for a whole lock timeout, then asks again, and those whose row is still locked are refused.
//!
//! A commit that exceeds its timeout is lost with its connection, and nothing tells which of its
//! batches takes so long. So side tasks send each of them by itself.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::in_flight::{InFlight, Outcome};
use super::lifecycle::TaskGuard;
use super::tasks::TaskKind;
use super::worker::Lane;
use crate::db::driver::Connection;
use crate::db::{CommitBatch, CommitError, DbError, DbErrorKind};

/// A commit that failed as a whole.
struct SplitCommit<'a> {
    lane: &'a Lane,
    connection: &'a mut dyn Connection,
    batches: &'a [&'a CommitBatch],
    outcomes: &'a mut [Outcome],
}

impl SplitCommit<'_> {
    /// The batches without an outcome.
    fn open(&self) -> Vec<usize> {
        (0..self.batches.len()).filter(|at| self.outcomes[*at].is_none()).collect()
    }

    fn refuse(&mut self, at: usize, error: DbError) {
        self.outcomes[at] = Some(Err(CommitError::Refused(error)));
    }

    /// Splits the open batches: those that update a locked row, and the others. If the database does
    /// not say which rows are locked, none counts as locked.
    async fn split_locked(&mut self) -> Result<(Vec<usize>, Vec<usize>), DbError> {
        let open = self.open();
        let batches: Vec<&CommitBatch> = open.iter().map(|at| self.batches[*at]).collect();
        let asking = self.connection.locked(&batches);
        let locked = tokio::time::timeout(self.lane.commit_timeout, asking);
        let locked = locked.await.unwrap_or_else(|_| {
            let why = format!("no answer within {:?}", self.lane.commit_timeout);
            Err(DbError::new(DbErrorKind::Unavailable, why))
        });
        let locked = match locked {
            Err(error) if !self.lane.must_reconnect(&error) => {
                tracing::debug!(%error, "asking which rows are locked failed");
                vec![false; open.len()]
            }
            locked => locked?,
        };
        let (locked, free): (Vec<_>, Vec<_>) =
            open.into_iter().zip(locked).partition(|(_, locked)| *locked);
        let positions = |of: Vec<(usize, bool)>| of.into_iter().map(|(at, _)| at).collect();
        Ok((positions(locked), positions(free)))
    }

    /// Commits the batches whose rows are not locked. If what they wait for is not a row that
    /// they update, for example a unique key of another transaction's insert, all stay open.
    async fn without_locked(&mut self) -> Result<(), DbError> {
        let (locked, free) = self.split_locked().await?;
        if locked.is_empty() || free.is_empty() {
            return Ok(());
        }
        let batches: Vec<&CommitBatch> = free.iter().map(|at| self.batches[*at]).collect();
        match self.lane.commit_once(self.connection, &batches).await {
            Ok(outcomes) => {
                for (at, outcome) in free.into_iter().zip(outcomes) {
                    self.outcomes[at] = Some(outcome);
                }
                Ok(())
            }
            Err(error) if self.lane.must_reconnect(&error) => Err(error),
            Err(error) if self.lane.may_have_waited(&error) => Ok(()),
            Err(_) => self.each(TaskKind::Lane, free).await,
        }
    }

    /// Refuses the batches whose rows are still locked.
    async fn refuse_locked(&mut self) -> Result<(), DbError> {
        let (locked, _) = self.split_locked().await?;
        for at in locked {
            let why = "another transaction keeps a row of the commit locked";
            self.refuse(at, DbError::new(DbErrorKind::LockTimeout, why));
        }
        Ok(())
    }

    async fn one_by_one(&mut self, kind: TaskKind) -> Result<(), DbError> {
        self.each(kind, self.open()).await
    }

    /// Commits each of these batches by itself. A lane waits for a lock once, and leaves the
    /// others open.
    async fn each(&mut self, kind: TaskKind, positions: Vec<usize>) -> Result<(), DbError> {
        for at in positions {
            if self.outcomes[at].is_some() {
                continue;
            }
            match self.lane.commit_once(self.connection, &[self.batches[at]]).await {
                Ok(mut alone) => self.outcomes[at] = alone.pop(),
                Err(error) if self.lane.must_reconnect(&error) => return Err(error),
                Err(error) => {
                    let waited = self.lane.may_have_waited(&error);
                    if waited && kind == TaskKind::Side {
                        self.refuse_locked().await?;
                    }
                    if self.outcomes[at].is_none() {
                        self.refuse(at, error);
                    }
                    if waited && kind == TaskKind::Lane {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

impl Lane {
    /// Whether another connection is needed: this one is lost, or its server was the primary and
    /// is none any more. On a single writer nothing else would be reached.
    fn must_reconnect(&self, error: &DbError) -> bool {
        let demoted = error.kind() == DbErrorKind::ReadOnly;
        error.is_connection_lost() || (demoted && !self.driver.capabilities().single_writer)
    }

    /// Whether a failed commit may have waited for a row lock. A statement timeout can end such a
    /// wait, too: the waits of one statement add up, and the server may allow no lock timeout that
    /// is shorter. On a single writer no row is locked by itself.
    fn may_have_waited(&self, error: &DbError) -> bool {
        let ends_waits =
            matches!(error.kind(), DbErrorKind::LockTimeout | DbErrorKind::StatementTimeout);
        ends_waits && !self.driver.capabilities().single_writer
    }

    /// Commits batches in the parts that suit the connection. Each outcome that is known stands at
    /// the position of its batch, also after an error: parts before it may have committed. Without
    /// an error, a batch without an outcome waits for a locked row, and a side task commits it.
    pub(super) async fn commit_in_parts(
        &self,
        kind: TaskKind,
        connection: &mut dyn Connection,
        batches: &[&CommitBatch],
        outcomes: &mut [Outcome],
    ) -> Result<(), DbError> {
        let parts = connection.part(batches);
        let last = parts.iter().copied().max().unwrap_or_default();
        for part in 0..=last {
            let of_part = |at: &usize| parts[*at] == part;
            let positions: Vec<usize> = (0..batches.len()).filter(of_part).collect();
            if !positions.is_empty() {
                let batches: Vec<&CommitBatch> = positions.iter().map(|at| batches[*at]).collect();
                let mut answers: Vec<Outcome> = batches.iter().map(|_| None).collect();
                let sent =
                    self.commit_together_or_apart(kind, connection, &batches, &mut answers).await;
                for (at, answer) in positions.into_iter().zip(answers) {
                    outcomes[at] = answer;
                }
                sent?;
            }
        }
        Ok(())
    }

    /// Commits batches together. If the commit fails as a whole, commits them apart. A side task
    /// leaves no batch without an outcome.
    async fn commit_together_or_apart(
        &self,
        kind: TaskKind,
        connection: &mut dyn Connection,
        batches: &[&CommitBatch],
        outcomes: &mut [Outcome],
    ) -> Result<(), DbError> {
        let error = match self.commit_once(connection, batches).await {
            Ok(answers) => {
                for (outcome, answer) in outcomes.iter_mut().zip(answers) {
                    *outcome = Some(answer);
                }
                return Ok(());
            }
            Err(error) if self.must_reconnect(&error) => return Err(error),
            Err(error) => error,
        };
        let mut commit = SplitCommit { lane: self, connection, batches, outcomes };
        let waited = self.may_have_waited(&error);
        if batches.len() == 1 {
            if waited && error.kind() == DbErrorKind::StatementTimeout {
                commit.refuse_locked().await?; // its caller hears what the commit waited for
            }
            if commit.outcomes[0].is_none() {
                commit.refuse(0, error);
            }
        } else if waited && kind == TaskKind::Lane {
            commit.without_locked().await?;
        } else if waited {
            commit.refuse_locked().await?;
            commit.one_by_one(kind).await?;
        } else if error.kind() == DbErrorKind::LockTimeout {
            // The writer lock was not available in time: each batch would wait as long again.
            for at in commit.open() {
                commit.refuse(at, error.copy());
            }
        } else {
            commit.one_by_one(kind).await?;
        }
        Ok(())
    }

    /// Leaves batches to a side task, because they wait for locked rows or may be slow.
    pub(super) fn wait_apart(lane: &Arc<Self>, in_flight: InFlight) {
        let runtime = Handle::current();
        let guard = Self::count_side_task(lane, &runtime);
        drop(runtime.spawn(lane.clone().commit_apart(in_flight, guard)));
    }

    async fn commit_apart(self: Arc<Self>, in_flight: InFlight, mut guard: TaskGuard) {
        guard.begin();
        // Dropped before the guard, however far this task comes.
        let mut in_flight = in_flight;
        // Long enough for one commit before it that is slow. If all commits are slow, they must not pile up
        // here: they count for no limit of the queue.
        let limit = self.commit_timeout.saturating_add(self.connection_timeout);
        let Ok(permit) = tokio::time::timeout(limit, self.side_tasks.acquire()).await else {
            let why =
                format!("no connection was free within {limit:?}: other commits take as long");
            in_flight.refuse_all(&DbError::new(DbErrorKind::Unavailable, why));
            guard.finish();
            return;
        };
        let connection = Self::commit(&self, TaskKind::Side, None, in_flight).await;
        if let Some(connection) = connection {
            let _ = tokio::time::timeout(self.connection_timeout, connection.close()).await;
        }
        drop(permit);
        guard.finish();
    }
}
