//! From a plan to its commit: the batch, the fence, and what follows once it is known.

use std::sync::PoisonError;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value as Json;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{Instrument, Span, field};

use super::commit::{Deadline, Keyed};
use super::effect::{Effect, run_all};
use super::executor::Inner;
use super::{Action, ExecuteError, Execution, Fence, PlanError};
use crate::db::{ActionId, CommitBatch, CommitError, Committed, FenceCheck};
use crate::outbox::{ActionRecord, KeyRecord};
use crate::repository::{StageError, Staged, resolve};

impl<A: Action> Execution<'_, A> {
    pub(super) fn record(&self, params: &Json, started: DateTime<Utc>) -> ActionRecord {
        let inner = &self.executor.inner;
        ActionRecord {
            namespace: inner.namespace.clone(),
            action: self.id,
            name: A::NAME,
            params: params.to_string(),
            started,
            completed: inner.databases.clock.now(),
            principal: self.options.principal.clone(),
            reason: self.options.reason.clone(),
            trace_parent: self.options.trace_parent.clone(),
        }
    }

    pub(super) fn key_record(
        &self,
        keyed: &Keyed<'_, A::Output>,
        output: &A::Output,
        created: DateTime<Utc>,
    ) -> Result<Staged, PlanError> {
        let record = KeyRecord {
            namespace: &self.executor.inner.namespace,
            key: keyed.key,
            action_name: A::NAME,
            fingerprint: &keyed.fingerprint,
            action: self.id,
            output: (keyed.codec.encode)(output).map_err(PlanError::Output)?,
            created,
        };
        Ok(record.stage())
    }

    pub(super) async fn batch(
        &self,
        rows: Vec<Staged>,
        records: Vec<Staged>,
    ) -> Result<CommitBatch, ExecuteError<A::Error>> {
        let database = &self.executor.inner.databases.database;
        let mut batch = CommitBatch {
            action: self.id,
            changes: Vec::with_capacity(rows.len()),
            records: Vec::with_capacity(records.len()),
            fence: self
                .options
                .fence
                .as_ref()
                .map(|(fence, _)| FenceCheck { key: fence.key.clone(), token: fence.token }),
            traceable: true,
        };
        for row in rows {
            let table = database.table(row.table).await.map_err(StageError::Table)?;
            batch.changes.push(resolve(row, table)?);
        }
        for record in records {
            let table = database.table(record.table).await.map_err(StageError::Table)?;
            batch.records.push(resolve(record, table)?);
        }
        Ok(batch)
    }

    pub(super) async fn commit(
        &self,
        batch: Option<CommitBatch>,
        effects: Vec<Box<dyn Effect>>,
        deadline: Deadline,
        attempt: u32,
        events: usize,
    ) -> Result<(), ExecuteError<A::Error>> {
        let span = tracing::info_span!(
            "ekbatan.action.persist",
            ekbatan.action.attempt = attempt,
            ekbatan.batch.size = batch.as_ref().map_or(0, |batch| batch.changes.len()),
            ekbatan.event.count = events,
            ekbatan.commit.round_trips = field::Empty,
            ekbatan.commit.folded = field::Empty,
            ekbatan.commit.lane_wait_us = field::Empty,
        );
        if effects.is_empty() {
            // The lane alone carries the commit through.
            let committing = commit_batch(&self.executor.inner, batch, self.id);
            return self
                .answer(deadline.bound(committing.instrument(span)).await, attempt)
                .map(drop);
        }
        // Effects need a task that outlives a caller who is dropped.
        if batch.is_some() {
            self.executor.inner.databases.database.check_not_writing()?;
        }
        let (tell, told) = oneshot::channel();
        let (inner, action) = (self.executor.inner.clone(), self.id);
        let open = inner.databases.database.open_action(action);
        let working = async move {
            let committed = commit_batch(&inner, batch, action).await;
            drop(open);
            let run = committed.as_ref().ok().copied();
            let _ = tell.send(committed);
            if let Some(committed) = run {
                inner.count_effect_failures(run_all(effects, committed).await);
            }
        };
        let effects_done = tokio::spawn(working.instrument(span));
        let committed = deadline.bound(told).await.map(|told| {
            told.unwrap_or_else(|stopped| Err(CommitError::Unknown(action, stopped.to_string())))
        });
        self.answer(committed, attempt)?;
        // The outcome is known, also to effects that ask for it.
        drop(self.open.lock().unwrap_or_else(PoisonError::into_inner).take());
        // The commit is known: a deadline that passes now ends the waiting, not the effects.
        let _ = deadline.bound(effects_done).await;
        Ok(())
    }

    fn answer(
        &self,
        committed: Result<Result<Committed, CommitError>, Duration>,
        attempt: u32,
    ) -> Result<Committed, ExecuteError<A::Error>> {
        match committed {
            Ok(answer) => answer.map_err(|error| ExecuteError::from_commit(error, attempt)),
            Err(after) if self.executor.inner.databases.database.withdraw(self.id) => {
                Err(ExecuteError::Deadline { after })
            }
            Err(after) => Err(ExecuteError::CommitUnknown {
                action: self.id,
                why: format!("the deadline of {after:?} passed while the commit was on its way"),
            }),
        }
    }

    /// Raises the fence to this lease's token, so that no earlier lease can commit any more.
    pub(super) async fn raise(
        &self,
        fence: &Fence,
        until: Instant,
    ) -> Result<(), ExecuteError<A::Error>> {
        let database = &self.executor.inner.databases.database;
        let remaining = until.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(ExecuteError::FenceLost { key: fence.key.clone() });
        }
        database.check_not_writing()?;
        let micros = i64::try_from(remaining.as_micros()).unwrap_or(i64::MAX);
        let token = FenceCheck { key: fence.key.clone(), token: fence.token };
        match database.raise_fence(&token, micros, A::NAME).await? {
            true => Ok(()),
            false => Err(ExecuteError::FenceLost { key: fence.key.clone() }),
        }
    }
}

/// Hands the batch to a lane; an action that changed nothing is committed as it is.
async fn commit_batch(
    inner: &Inner,
    batch: Option<CommitBatch>,
    action: ActionId,
) -> Result<Committed, CommitError> {
    let committed = match batch {
        Some(batch) => inner.databases.database.commit(batch).await?,
        None => Committed { action, round_trips: 0, folded: 0, lane_wait: Duration::ZERO },
    };
    Span::current()
        .record("ekbatan.commit.round_trips", committed.round_trips)
        .record("ekbatan.commit.folded", committed.folded)
        .record("ekbatan.commit.lane_wait_us", committed.lane_wait.as_micros() as u64);
    Ok(committed)
}
