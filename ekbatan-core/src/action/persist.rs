//! From what each shard is to commit to its commit: the fence, the lanes, and what follows
//! once the outcome is known.
//!
//! What always holds: once one of several shards has committed, nothing is tried again, and
//! no caller who is dropped stops those that are left.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{Instrument, Span, field};

use super::commit::Deadline;
use super::effect::{Effect, run_all};
use super::parts::ShardBatch;
use super::{Action, ExecuteError, Execution};
use crate::db::{ActionId, CommitError, CommitToken, Committed, Database, DbError};
use crate::domain::ShardIdentifier;

/// Why an action is not, or not wholly, in the databases.
pub(super) enum Failure {
    /// Nothing of it is.
    Whole(CommitError),
    /// Some of its shards have their part.
    Partly {
        committed: Vec<ShardIdentifier>,
        failed: ShardIdentifier,
        not_tried: Vec<ShardIdentifier>,
        error: CommitError,
    },
}

impl<A: Action> Execution<'_, A> {
    pub(super) async fn commit(
        &self,
        parts: Vec<ShardBatch>,
        effects: Vec<Box<dyn Effect>>,
        deadline: Deadline,
        attempt: u32,
        events: usize,
    ) -> Result<Committed, ExecuteError<A::Error>> {
        let span = tracing::info_span!(
            "ekbatan.action.persist",
            ekbatan.action.attempt = attempt,
            ekbatan.batch.size = parts.iter().map(|part| part.batch.changes.len()).sum::<usize>(),
            ekbatan.event.count = events,
            ekbatan.commit.round_trips = field::Empty,
            ekbatan.commit.folded = field::Empty,
            ekbatan.commit.lane_wait_us = field::Empty,
            ekbatan.shard.cross_shard = (parts.len() > 1).then_some(true),
            ekbatan.shard.partial_commit_failure = field::Empty,
            ekbatan.shard.committed_shards = field::Empty,
            ekbatan.shard.failed_shard = field::Empty,
        );
        self.raise_before_commit(&parts, deadline).await?;
        let (inner, action) = (self.executor.inner.clone(), self.id);
        let token = self.options.token;
        let only = match &parts[..] {
            [only] => Some(only.database.clone()),
            _ => None,
        };
        if effects.is_empty() && parts.len() <= 1 {
            // The lane alone carries the commit through.
            let committing = commit_parts(parts, action, token);
            let committed = deadline.bound(committing.instrument(span)).await;
            return self.answer(committed, attempt, only.as_deref());
        }
        // Effects, and shards that follow others, need a task that outlives a caller who is
        // dropped.
        for part in &parts {
            part.database.check_not_writing()?;
        }
        let (tell, told) = oneshot::channel();
        let open = inner.databases.shards.default().open_action(action);
        let working = async move {
            let across = parts.len() > 1;
            let committed = commit_parts(parts, action, token).await;
            // Known, also to effects that ask for the outcome.
            drop(open);
            let run = committed.as_ref().ok().cloned();
            let _ = tell.send(committed);
            let Some(committed) = run else { return };
            if across && let Err(error) = inner.databases.shards.forget_parts(action).await {
                tracing::debug!(%error, %action, "the trail of a complete cross-shard commit stays");
            }
            inner.count_effect_failures(run_all(effects, committed).await);
        };
        let effects_done = tokio::spawn(working.instrument(span));
        let committed = deadline.bound(told).await.map(|told| {
            told.unwrap_or_else(|stopped| {
                Err(Failure::Whole(CommitError::Unknown(action, stopped.to_string())))
            })
        });
        let committed = self.answer(committed, attempt, only.as_deref())?;
        // The outcome is known, also to effects that ask for it.
        drop(self.open.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.let_go();
        // The commit is known: a deadline that passes now ends the waiting, not the effects.
        let _ = deadline.bound(effects_done).await;
        Ok(committed)
    }

    /// The caller's answer; `only` is the one database to which the action went.
    fn answer(
        &self,
        committed: Result<Result<Committed, Failure>, Duration>,
        attempt: u32,
        only: Option<&Database>,
    ) -> Result<Committed, ExecuteError<A::Error>> {
        match committed {
            Ok(Ok(committed)) => Ok(committed),
            Ok(Err(Failure::Whole(error))) => Err(ExecuteError::from_commit(error, attempt)),
            Ok(Err(Failure::Partly { committed, failed, not_tried, error })) => {
                Err(ExecuteError::PartlyCommitted {
                    action: self.id,
                    committed,
                    failed,
                    not_tried,
                    source: Some(error),
                })
            }
            Err(after) if only.is_some_and(|database| database.withdraw(self.id)) => {
                Err(ExecuteError::Deadline { after })
            }
            Err(after) => Err(ExecuteError::CommitUnknown {
                action: self.id,
                why: format!("the deadline of {after:?} passed while the commit was on its way"),
            }),
        }
    }
}

/// Hands each part to a lane of its shard, one after another; an action that changed nothing
/// is committed as it is.
async fn commit_parts(
    parts: Vec<ShardBatch>,
    action: ActionId,
    token: bool,
) -> Result<Committed, Failure> {
    let span = Span::current();
    let mut all =
        Committed { action, round_trips: 0, folded: 0, lane_wait: Duration::ZERO, token: None };
    let mut done: Vec<Arc<Database>> = Vec::with_capacity(parts.len());
    let mut parts = parts.into_iter();
    while let Some(ShardBatch { database, batch }) = parts.next() {
        match database.commit(batch).await {
            Ok(one) => {
                all.round_trips += one.round_trips;
                all.folded = all.folded.max(one.folded);
                all.lane_wait += one.lane_wait;
                done.push(database);
            }
            Err(error) if done.is_empty() => return Err(Failure::Whole(error)),
            Err(error) => {
                let committed: Vec<ShardIdentifier> = done.iter().map(|done| done.shard).collect();
                let failed = database.shard;
                span.record("ekbatan.shard.partial_commit_failure", true)
                    .record(
                        "ekbatan.shard.committed_shards",
                        crate::domain::list_shards(&committed),
                    )
                    .record("ekbatan.shard.failed_shard", field::display(failed));
                tracing::error!(%action, ?committed, %failed, %error, "an action committed on some of its shards only");
                let not_tried = parts.map(|part| part.database.shard).collect();
                return Err(Failure::Partly { committed, failed, not_tried, error });
            }
        }
    }
    span.record("ekbatan.commit.round_trips", all.round_trips)
        .record("ekbatan.commit.folded", all.folded)
        .record("ekbatan.commit.lane_wait_us", all.lane_wait.as_micros() as u64);
    if token {
        all.token = tokens(&done).await.unwrap_or_else(|error| {
            tracing::warn!(%error, %action, "how far the commit's shard has come could not be asked");
            None
        });
    }
    Ok(all)
}

/// How far the shards have come that have a replica.
pub(super) async fn tokens(databases: &[Arc<Database>]) -> Result<Option<CommitToken>, DbError> {
    let mut token: Option<CommitToken> = None;
    for database in databases {
        token = match (token, database.token().await?) {
            (Some(token), Some(other)) => Some(token.and(other)),
            (token, other) => token.or(other),
        };
    }
    Ok(token)
}
