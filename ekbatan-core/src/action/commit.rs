//! Commits the batches of one call, shard by shard, and runs its effects.
//!
//! Invariants: after one of several shards has committed, nothing is retried, and dropping
//! the caller does not stop the shards that follow.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::oneshot;
use tracing::{Instrument, Span, field};

use super::attempt::Attempt;
use super::deadline::DeadlinePassed;
use super::error::AttemptError;
use super::sent_births::SentBirths;
use super::shard_batches::{Planned, ShardBatch};
use super::{Effect, ExecuteError};
use crate::db::{ActionId, CommitError, CommitToken, Committed, Database, DbError};
use crate::domain::{ShardIdentifier, list_shards};
use crate::shard::{FencingError, forget_parts};

/// Why an action is not completely committed.
enum CommitFailure {
    /// Nothing is committed.
    Whole(CommitError),
    /// Some shards have committed their batches.
    Partial {
        committed: Vec<ShardIdentifier>,
        failed: ShardIdentifier,
        not_tried: Vec<ShardIdentifier>,
        error: CommitError,
    },
}

/// Why the result of a commit is unknown whose task ended without one.
pub(super) const COMMIT_STOPPED: &str = "the task that committed it was stopped";

/// Commits a plan. Then, if the caller waits for a token or for effects, calls `release` first: an
/// effect may need what the call holds.
pub(super) async fn commit(
    attempt: &mut Attempt,
    planned: Planned,
    release: impl FnOnce() + Send,
) -> Result<Committed, AttemptError> {
    let span = span(attempt, &planned);
    let Planned { batches, effects, .. } = planned;
    raise_fences(attempt, &batches).await?;
    attempt.deadline.check()?;
    let (committed, effects_done) = if effects.is_empty() && batches.len() <= 1 {
        (commit_in_place(attempt, batches, span).await?, None)
    } else {
        let (committed, done) = commit_in_task(attempt, batches, effects, span).await?;
        (committed, Some(done))
    };
    attempt.close();
    if attempt.wants_token || effects_done.is_some() {
        release();
    }
    let committed = committed.with_token(attempt).await;
    if let Some(done) = effects_done {
        // The action is committed: a deadline that passes now ends the wait, not the effects.
        let _ = attempt.deadline.bound(done).await;
    }
    Ok(committed)
}

fn span(attempt: &Attempt, Planned { batches, events, .. }: &Planned) -> Span {
    let changes: usize = batches.iter().map(|batch| batch.batch.changes.len()).sum();
    tracing::info_span!(
        "ekbatan.action.persist",
        ekbatan.action.attempt = attempt.number,
        ekbatan.batch.size = changes,
        ekbatan.event.count = events,
        ekbatan.commit.round_trips = field::Empty,
        ekbatan.commit.folded = field::Empty,
        ekbatan.commit.lane_wait_us = field::Empty,
        ekbatan.shard.cross_shard = (batches.len() > 1).then_some(true),
        ekbatan.shard.partial_commit_failure = field::Empty,
        ekbatan.shard.committed_shards = field::Empty,
        ekbatan.shard.failed_shard = field::Empty,
    )
}

/// Commits at most one batch in the task of the caller. Once a lane has taken the batch, it
/// completes the commit even if the caller is dropped.
async fn commit_in_place(
    attempt: &Attempt,
    batches: Vec<ShardBatch>,
    span: Span,
) -> Result<CommittedOn, AttemptError> {
    let action = attempt.action;
    let database = batches.first().map(|batch| batch.database.clone());
    let committing = pin!(commit_batches(batches, action));
    let mut committing = pin!(committing.instrument(span));
    // The batch is queued from the first poll on.
    let committed = attempt.deadline.bound_begun(committing.as_mut()).await;
    answer(committed, attempt, || database.is_some_and(|database| database.withdraw(action)))
}

/// Commits in a task that outlives a dropped caller, for the effects and for the shards after the
/// first. The channel says when the effects have run.
async fn commit_in_task(
    attempt: &Attempt,
    batches: Vec<ShardBatch>,
    effects: Vec<Box<dyn Effect>>,
    span: Span,
) -> Result<(CommittedOn, oneshot::Receiver<()>), AttemptError> {
    for batch in &batches {
        batch.database.check_not_beside_transaction()?;
    }
    let (action, wants_token) = (attempt.action, attempt.wants_token);
    let (sender, receiver) = oneshot::channel();
    let (ran, effects_done) = oneshot::channel::<()>();
    let runner = attempt.effects.clone();
    let open = attempt.shards.default().open_action(action);
    // In the order in which they commit.
    let touched: Vec<_> = batches.iter().map(|batch| batch.database.clone()).collect();
    let start = Start::default();
    let mut waiting = WaitingCaller {
        first: touched.first().cloned(),
        action,
        start: start.clone(),
        is_answered: false,
    };
    let working = async move {
        if !start.is_first() {
            return; // the caller went before anything was queued
        }
        let mut committed = commit_batches(batches, action).await;
        // The outcome is known now, also to effects that ask for it.
        drop(open);
        if wants_token && let Ok(done) = &mut committed {
            done.token = Some(shared_token(std::mem::take(&mut done.databases)));
        }
        let done = committed.as_ref().ok().cloned();
        let _ = sender.send(committed);
        let Some(CommittedOn { mut committed, token, .. }) = done else { return };
        if !effects.is_empty()
            && let Some(token) = token
        {
            committed.token = token.await;
        }
        runner.run(effects, committed).await;
        // The caller does not wait for the rest.
        drop(ran);
        if touched.len() > 1
            && let Err(error) = forget_parts(touched.iter().collect(), action).await
        {
            tracing::debug!(%error, %action, "the trail of a complete cross-shard commit was not deleted");
        }
    };
    tokio::spawn(working.instrument(span));
    let committed = attempt.deadline.bound_begun(receiver).await.map(|result| {
        result.unwrap_or_else(|_| {
            let unknown = CommitError::Unknown(action, COMMIT_STOPPED.to_owned());
            Err(CommitFailure::Whole(unknown))
        })
    });
    let committed = answer(committed, attempt, || waiting.withdraw());
    waiting.is_answered = true;
    Ok((committed?, effects_done))
}

/// Decides between the task of a commit, which begins, and its caller, who gives up.
#[derive(Clone, Default)]
struct Start(Arc<AtomicBool>);

impl Start {
    /// Whether the other one has not come yet; it comes too late from now on.
    fn is_first(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// A caller whose commit runs in another task. If it is dropped before a lane has taken the first
/// batch, nothing is sent.
struct WaitingCaller {
    /// The database that commits first; `None` if nothing is written.
    first: Option<Arc<Database>>,
    action: ActionId,
    start: Start,
    is_answered: bool,
}

impl WaitingCaller {
    /// Whether nothing was sent, and nothing will be.
    fn withdraw(&self) -> bool {
        self.start.is_first()
            || self.first.as_ref().is_some_and(|first| first.withdraw(self.action))
    }
}

impl Drop for WaitingCaller {
    fn drop(&mut self) {
        if !self.is_answered {
            self.withdraw();
        }
    }
}

/// Raises the fences on the shards that were not read. The commit alone cannot detect that a
/// later lease has already been there, nor that this lease has ended by the server's clock.
/// From the second shard on the fence is raised again, because the first commit cannot be
/// undone if a later shard refuses.
pub(super) async fn raise_fences(
    attempt: &Attempt,
    batches: &[ShardBatch],
) -> Result<(), AttemptError> {
    let Some(fencing) = &attempt.fencing else { return Ok(()) };
    // The server's clock for the lease starts later than this process's clock, so this check
    // is the stricter one.
    attempt.check_lease()?;
    let raising = async {
        if batches.is_empty() && fencing.stands_nowhere() {
            // An action that neither reads nor writes may still have effects.
            fencing.stand(attempt.shards.default(), attempt.action_name).await?;
        }
        for (n, batch) in batches.iter().enumerate() {
            if n == 0 {
                fencing.stand_for_commit(&batch.database, attempt.action_name).await?;
            } else {
                fencing.stand_again(&batch.database, attempt.action_name).await?;
            }
        }
        Ok(())
    };
    match attempt.deadline.bound(raising).await? {
        Ok(()) => Ok(()),
        Err(FencingError::Lost(key)) => Err(ExecuteError::FenceLost { key }),
        Err(FencingError::Database(error)) => Err(error.into()),
    }
}

/// The caller's result. `withdraw` takes the commit back if nothing was sent yet.
fn answer(
    committed: Result<Result<CommittedOn, CommitFailure>, DeadlinePassed>,
    attempt: &Attempt,
    withdraw: impl FnOnce() -> bool,
) -> Result<CommittedOn, AttemptError> {
    let action = attempt.action;
    match committed {
        Ok(Ok(committed)) => Ok(committed),
        Ok(Err(CommitFailure::Whole(error))) => {
            Err(ExecuteError::from_commit(error, attempt.number))
        }
        Ok(Err(CommitFailure::Partial { committed, failed, not_tried, error })) => {
            let source = Some(error);
            Err(ExecuteError::PartlyCommitted { action, committed, failed, not_tried, source })
        }
        Err(passed) if withdraw() => Err(passed.into()),
        Err(passed) => Err(ExecuteError::CommitUnknown { action, why: passed.during_commit() }),
    }
}

/// The position that replicas must have reached to show a commit. It is read once, when the first of those
/// who want it waits for it.
pub(super) type SharedToken = Shared<BoxFuture<'static, Option<CommitToken>>>;

/// A commit without its token.
#[derive(Clone)]
struct CommittedOn {
    committed: Committed,
    /// The databases that it wrote on.
    databases: Vec<Arc<Database>>,
    /// The token that the caller shares with the effects.
    token: Option<SharedToken>,
}

impl CommittedOn {
    /// Adds the token, if the caller wants it and has the time to read it: what is known to be
    /// committed is answered in any case.
    async fn with_token(self, attempt: &Attempt) -> Committed {
        let Self { mut committed, databases, token } = self;
        if attempt.wants_token {
            let reading = async {
                match token {
                    Some(token) => token.await,
                    None => tokens(&databases).await,
                }
            };
            committed.token = attempt.deadline.bound(reading).await.unwrap_or_default();
        }
        committed
    }
}

/// Gives each batch to a lane of its shard, one after another. No batches is a success.
async fn commit_batches(
    batches: Vec<ShardBatch>,
    action: ActionId,
) -> Result<CommittedOn, CommitFailure> {
    let span = Span::current();
    let mut all =
        Committed { action, round_trips: 0, folded: 0, lane_wait: Duration::ZERO, token: None };
    let mut done: Vec<Arc<Database>> = Vec::with_capacity(batches.len());
    let mut batches = batches.into_iter();
    while let Some(ShardBatch { database, batch, births }) = batches.next() {
        let writes = batch.writes();
        let births = SentBirths::new(births, &database, action);
        let committed = database.commit(batch).await;
        births.answered(&committed);
        match committed {
            Ok(one) => {
                all.round_trips += one.round_trips;
                all.folded = all.folded.max(one.folded);
                all.lane_wait += one.lane_wait;
                // A shard on which rows were only checked has nothing that could be left behind.
                done.extend(writes.then_some(database));
            }
            Err(error) if done.is_empty() => return Err(CommitFailure::Whole(error)),
            Err(error) => {
                let committed: Vec<ShardIdentifier> = done.iter().map(|done| done.shard).collect();
                let failed = database.shard;
                span.record("ekbatan.shard.partial_commit_failure", true)
                    .record("ekbatan.shard.committed_shards", list_shards(&committed))
                    .record("ekbatan.shard.failed_shard", field::display(failed));
                tracing::error!(%action, ?committed, %failed, %error, "an action committed on some of its shards only");
                let not_tried = batches.map(|batch| batch.database.shard).collect();
                return Err(CommitFailure::Partial { committed, failed, not_tried, error });
            }
        }
    }
    span.record("ekbatan.commit.round_trips", all.round_trips)
        .record("ekbatan.commit.folded", all.folded)
        .record("ekbatan.commit.lane_wait_us", all.lane_wait.as_micros() as u64);
    Ok(CommittedOn { committed: all, databases: done, token: None })
}

/// The token of a commit on these databases.
pub(super) fn shared_token(databases: Vec<Arc<Database>>) -> SharedToken {
    async move { tokens(&databases).await }.boxed().shared()
}

/// The present positions of those shards that have a replica. A failure is logged: the commit
/// itself succeeded.
async fn tokens(databases: &[Arc<Database>]) -> Option<CommitToken> {
    try_tokens(databases).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the position of a shard after a commit could not be read");
        None
    })
}

async fn try_tokens(databases: &[Arc<Database>]) -> Result<Option<CommitToken>, DbError> {
    let mut token: Option<CommitToken> = None;
    for database in databases {
        token = match (token, database.token().await?) {
            (Some(token), Some(other)) => Some(token.and(other)),
            (token, other) => token.or(other),
        };
    }
    Ok(token)
}
