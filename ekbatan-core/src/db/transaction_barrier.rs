//! The barrier: waits until every transaction has ended that had begun before.
//!
//! Together with [`expect_unlocked`](crate::action::ActionPlan::expect_unlocked) it closes something
//! without a lock. A commit that compares a row with what it has read has begun its transaction before it
//! compares. So once a change of the row is committed, and every transaction has ended that had begun by
//! then, no commit is left that has found the row as it was.
//!
//! Invariants:
//! - The first list of transactions is read after the call. What is not in it begins later.
//! - Callers that wait at the same time share a wait that begins after the last of them has arrived.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::open_transactions::has_open_transaction;
use super::running::RunningTransaction;
use super::{Database, DbError, DbErrorKind};
use crate::domain::ShardIdentifier;

/// The pauses between two looks.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// A look may take as long as the caller allows, and at least so long.
const SHORTEST_LOOK: Duration = Duration::from_secs(1);

/// The time after which a wait is reported for the first time, and the times after that.
const FIRST_REPORT: Duration = Duration::from_secs(5);
const LATER_REPORTS: Duration = Duration::from_secs(60);

/// How many transactions a message names.
const NAMED: usize = 5;

/// Error returned when a [barrier](crate::shard::Shard::transaction_barrier) is not passed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BarrierError {
    /// Transactions are still open.
    #[error(
        "transactions that began before are still open on shard {shard} after {waited:.1?}: {}; end them, or wait longer", list(.open)
    )]
    #[non_exhaustive]
    StillOpen {
        /// The shard.
        shard: ShardIdentifier,
        /// How long the call has waited.
        waited: Duration,
        /// Who has them open.
        open: Vec<String>,
    },
    /// The database did not list the open transactions in time.
    #[error(
        "the open transactions of shard {shard} could not be listed within {waited:.1?}; allow more time"
    )]
    #[non_exhaustive]
    Unlisted {
        /// The shard.
        shard: ShardIdentifier,
        /// How long the call has waited.
        waited: Duration,
    },
    /// The transactions of others cannot be seen, and the time was too short to do without.
    #[error(
        "open transactions of shard {shard} cannot be seen: the login has no PROCESS privilege, or others look at them all the time; so the barrier takes the commit-timeout of {commit_timeout:?}, and {longest:?} were allowed; allow more time, or GRANT PROCESS ON *.* to the login"
    )]
    #[non_exhaustive]
    Unseen {
        /// The shard.
        shard: ShardIdentifier,
        /// The time that is needed.
        commit_timeout: Duration,
        /// The time that was allowed.
        longest: Duration,
    },
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DbError),
}

/// Waits until every transaction of a database has ended that has begun before, for at most `longest`.
pub(crate) async fn pass_barrier(
    database: &Database,
    longest: Duration,
) -> Result<(), BarrierError> {
    let queue = &database.barrier;
    if has_open_transaction(database) {
        let why = "this task has a transaction of the database open, and would wait for itself; call the barrier after its end";
        return Err(DbError::new(DbErrorKind::OpenTransaction, why).into());
    }
    let began = Instant::now();
    let turn = queue.arrived.fetch_add(1, Ordering::SeqCst) + 1;
    let Ok(mut passed) = tokio::time::timeout(longest, queue.passed.lock()).await else {
        return Err(out_of_time(database, longest));
    };
    if *passed >= turn {
        return Ok(());
    }
    set_awaited(database, Vec::new());
    let arrived = queue.arrived.load(Ordering::SeqCst);
    let wait = Wait { database, began, longest, reported: None };
    wait.until_all_have_ended().await?;
    *passed = arrived;
    Ok(())
}

/// The error of a caller whose time is over.
fn out_of_time(database: &Database, waited: Duration) -> BarrierError {
    let shard = database.shard;
    let open = database.barrier.awaited.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if open.is_empty() {
        BarrierError::Unlisted { shard, waited }
    } else {
        BarrierError::StillOpen { shard, waited, open }
    }
}

/// Names the sessions that are waited for, to this caller and to those behind it.
fn set_awaited(database: &Database, open: Vec<String>) {
    *database.barrier.awaited.lock().unwrap_or_else(PoisonError::into_inner) = open;
}

/// One wait.
struct Wait<'d> {
    database: &'d Database,
    began: Instant,
    longest: Duration,
    reported: Option<Instant>,
}

impl Wait<'_> {
    async fn until_all_have_ended(mut self) -> Result<(), BarrierError> {
        let looked = Instant::now();
        let Some(running) = self.look().await? else { return self.without_looking(looked).await };
        let awaited = running.clone();
        let Some(running) = self.until_ended(running, awaited, looked).await? else {
            return self.without_looking(looked).await;
        };
        // One that was awaited may have been detached from its session and have other keys now.
        let detached = running.iter().filter(|of| of.is_detached).cloned().collect();
        match self.until_ended(running, detached, looked).await? {
            Some(_) => Ok(()),
            None => self.without_looking(looked).await,
        }
    }

    /// Waits for the end of some of the transactions that run. Returns those that run then; `None` if
    /// they cannot be seen any more.
    async fn until_ended(
        &mut self,
        mut running: Vec<RunningTransaction>,
        mut awaited: Vec<RunningTransaction>,
        looked: Instant,
    ) -> Result<Option<Vec<RunningTransaction>>, BarrierError> {
        let mut pause = SHORTEST_PAUSE;
        loop {
            // What has written nothing for so long is no commit of this framework, but perhaps a dump.
            if looked.elapsed() >= self.database.commit_timeout {
                let (written, idle): (Vec<_>, Vec<_>) =
                    awaited.into_iter().partition(|of| of.has_written);
                if !idle.is_empty() {
                    let open = list(&names(&idle));
                    tracing::warn!(shard = %self.database.shard, open, "transactions that have written nothing within commit-timeout are not waited for any more");
                }
                awaited = written;
            }
            if awaited.is_empty() {
                return Ok(Some(running));
            }
            let open = names(&awaited);
            self.report(&open);
            set_awaited(self.database, open);
            let left = self.left();
            if left.is_zero() {
                return Err(out_of_time(self.database, self.began.elapsed()));
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let Some(now) = self.look().await? else { return Ok(None) };
            running = now;
            let is_awaited = |of: &&RunningTransaction| awaited.iter().any(|before| of.is(before));
            awaited = running.iter().filter(is_awaited).cloned().collect();
        }
    }

    fn left(&self) -> Duration {
        self.longest.saturating_sub(self.began.elapsed())
    }

    async fn look(&self) -> Result<Option<Vec<RunningTransaction>>, BarrierError> {
        let looking = self.database.running_transactions();
        match tokio::time::timeout(self.left().max(SHORTEST_LOOK), looking).await {
            Ok(running) => Ok(running?),
            Err(_) => Err(out_of_time(self.database, self.began.elapsed())),
        }
    }

    /// No commit of this framework lasts longer than the timeout of commits.
    async fn without_looking(self, looked: Instant) -> Result<(), BarrierError> {
        let (database, longest) = (self.database, self.longest);
        set_awaited(database, Vec::new());
        let (shard, commit_timeout) = (database.shard, database.commit_timeout);
        let left = commit_timeout.saturating_sub(looked.elapsed());
        if self.left() < left {
            return Err(BarrierError::Unseen { shard, commit_timeout, longest });
        }
        tracing::debug!(%shard, ?commit_timeout, "open transactions cannot be seen; waiting for commit-timeout");
        tokio::time::sleep(left).await;
        Ok(())
    }

    fn report(&mut self, open: &[String]) {
        let is_due = match self.reported {
            None => self.began.elapsed() >= FIRST_REPORT,
            Some(last) => last.elapsed() >= LATER_REPORTS,
        };
        if is_due {
            self.reported = Some(Instant::now());
            let (waited, open) = (self.began.elapsed(), list(open));
            tracing::warn!(shard = %self.database.shard, ?waited, open, "waiting for transactions that began before");
        }
    }
}

fn names(transactions: &[RunningTransaction]) -> Vec<String> {
    transactions.iter().map(|of| of.who.clone()).collect()
}

fn list(names: &[String]) -> String {
    let named = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
