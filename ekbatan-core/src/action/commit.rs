//! The steps of an execution, from the first attempt to the last answer.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value as Json;
use tokio::time::Instant;
use tracing::{Instrument, Span, field};

use super::effect::{Effect, run_all};
use super::execution::Codec;
use super::plan::PlanParts;
use super::{
    Action, ActionContext, ActionPlan, ErrorKind, ExecuteError, Execution, Fence, PlanError,
};
use crate::db::{Arg, CommitBatch, CommitError, Committed, FenceCheck, Query, Route};
use crate::domain::{ColumnDef, PayloadError, Value, ValueType};
use crate::outbox::{ActionRecord, Answered, KeyRecord, fingerprint, look_up, records};
use crate::repository::{Staged, resolve};

type Answer<A> = Result<<A as Action>::Output, ExecuteError<<A as Action>::Error>>;

/// When it all has to be over.
#[derive(Clone, Copy)]
struct Deadline(Option<(Instant, Duration)>);

impl Deadline {
    fn new(after: Option<Duration>) -> Self {
        Self(after.map(|after| (Instant::now() + after, after)))
    }

    /// The future's answer, or how long the deadline was if it has passed.
    async fn bound<T>(self, future: impl Future<Output = T>) -> Result<T, Duration> {
        match self.0 {
            None => Ok(future.await),
            Some((at, after)) => tokio::time::timeout_at(at, future).await.map_err(|_| after),
        }
    }
}

/// What a call with an idempotency key knows of itself.
struct Keyed<'k, O> {
    key: &'k str,
    codec: &'k Codec<O>,
    fingerprint: String,
}

impl<A: Action> Execution<'_, A> {
    pub(super) async fn run(self) -> Answer<A> {
        let span = tracing::info_span!(
            "ekbatan.action.execute",
            ekbatan.action.name = A::NAME,
            ekbatan.action.id = %self.id,
            ekbatan.action.principal = field::Empty,
            ekbatan.action.outcome = field::Empty,
            ekbatan.action.error = field::Empty,
            ekbatan.action.retry.count = field::Empty,
        );
        if self.executor.inner.log_principal {
            span.record(
                "ekbatan.action.principal",
                self.options.principal.as_deref().unwrap_or_default(),
            );
        }
        let answer = self.run_keyed().instrument(span.clone()).await;
        match &answer {
            Ok(_) => span.record("ekbatan.action.outcome", "success"),
            Err(error) => span
                .record("ekbatan.action.outcome", "error")
                .record("ekbatan.action.error", field::debug(error.kind())),
        };
        answer
    }

    async fn run_keyed(&self) -> Answer<A> {
        let params = params_of::<A>(&self.params)?;
        let deadline = Deadline::new(self.options.deadline);
        let Some((key, codec)) = &self.key else {
            return self.attempt_until_done(&params, None, deadline).await;
        };
        if key.is_empty() || key.len() > 255 {
            return Err(PlanError::Key(key.clone(), key.len()).into());
        }
        let keyed = Keyed { key, codec, fingerprint: fingerprint(A::NAME, &params) };
        let late = |after| ExecuteError::Deadline { after };
        // In this process equal keys pass one by one; other processes are met by the key's
        // uniqueness in the commit.
        let _pass = deadline.bound(self.executor.inner.gate.pass(key)).await.map_err(late)?;
        if let Some(answered) = deadline.bound(self.find_answer(key)).await.map_err(late)?? {
            return keyed.replay::<A>(answered);
        }
        self.attempt_until_done(&params, Some(&keyed), deadline).await
    }

    async fn find_answer(&self, key: &str) -> Result<Option<Answered>, ExecuteError<A::Error>> {
        let inner = &self.executor.inner;
        Ok(look_up(&inner.databases.database, &inner.namespace, key, A::NAME).await?)
    }

    async fn attempt_until_done(
        &self,
        params: &Json,
        keyed: Option<&Keyed<'_, A::Output>>,
        deadline: Deadline,
    ) -> Answer<A> {
        let inner = &self.executor.inner;
        let policy = self.options.retry.as_ref().unwrap_or(&inner.retry);
        let mut spent = std::collections::BTreeMap::<ErrorKind, u32>::new();
        let mut attempt = 1;
        loop {
            Span::current().record("ekbatan.action.retry.count", attempt - 1);
            let error = match self.attempt(params, keyed, deadline, attempt).await {
                Ok(output) => return Ok(output),
                Err(error) => error,
            };
            let kind = error.kind();
            // Another process may have committed this very call meanwhile, and what failed
            // here may have failed because of it.
            if let Some(keyed) = keyed
                && !matches!(kind, ErrorKind::Plan | ErrorKind::Deadline | ErrorKind::CommitUnknown)
                && let Ok(Ok(Some(answered))) = deadline.bound(self.find_answer(keyed.key)).await
            {
                return keyed.replay::<A>(answered);
            }
            let wanted = match (&error, &self.retry_if) {
                (ExecuteError::Domain(error), Some(retry_if)) => retry_if(error),
                (ExecuteError::Domain(_), None) => false,
                _ => true,
            };
            let used = spent.entry(kind).or_default();
            let Some(budget) =
                policy.budget(kind).filter(|budget| wanted && *used < budget.retries)
            else {
                return Err(error);
            };
            let wait = inner.jitter(budget.bound(*used));
            *used += 1;
            tracing::debug!(name: "retry", attempt, ?kind, ?wait, "retry");
            deadline.bound(tokio::time::sleep(wait)).await.map_err(|_| error)?;
            attempt += 1;
        }
    }

    /// One attempt: a fresh plan, `perform`, the commit.
    async fn attempt(
        &self,
        params: &Json,
        keyed: Option<&Keyed<'_, A::Output>>,
        deadline: Deadline,
        attempt: u32,
    ) -> Answer<A> {
        let inner = &self.executor.inner;
        let started = inner.databases.clock.now();
        if let Some(fence) = &self.options.fence {
            deadline
                .bound(self.raise(fence))
                .await
                .map_err(|after| ExecuteError::Deadline { after })??;
        }
        let mut ctx = ActionContext {
            databases: &inner.databases,
            ids: &inner.ids,
            name: A::NAME,
            action: self.id,
            principal: self.options.principal.as_deref(),
            reason: self.options.reason.as_deref(),
            attempt,
            now: started,
            plan: ActionPlan::new(started),
        };
        let perform = self.action.perform(&mut ctx, &self.params).instrument(tracing::info_span!(
            "ekbatan.action.perform",
            ekbatan.action.attempt = attempt
        ));
        let output = deadline
            .bound(perform)
            .await
            .map_err(|after| ExecuteError::Deadline { after })?
            .map_err(ExecuteError::Domain)?;
        let PlanParts { rows, events, effects } = ctx.plan.into_parts()?;
        let batch = if rows.is_empty() && keyed.is_none() && !inner.record_reads {
            None
        } else {
            let action = self.record(params, started);
            let mut staged_records = records(&action, &events, &inner.ids);
            if let Some(keyed) = keyed {
                staged_records.push(self.key_record(keyed, &output, action.completed)?);
            }
            Some(self.batch(rows, staged_records).await?)
        };
        self.commit(batch, effects, deadline, attempt, events.len()).await?;
        Ok(output)
    }

    fn record(&self, params: &Json, started: DateTime<Utc>) -> ActionRecord {
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

    fn key_record(
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

    async fn batch(
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
                .map(|fence| FenceCheck { key: fence.key.clone(), token: fence.token }),
            traceable: true,
        };
        for row in rows {
            batch.changes.push(resolve(row, database).await?);
        }
        for record in records {
            batch.records.push(resolve(record, database).await?);
        }
        Ok(batch)
    }

    async fn commit(
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
        let committing = self.start_commit(batch, effects, span.clone()).instrument(span);
        match deadline.bound(committing).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(ExecuteError::from_commit(error, attempt)),
            Err(after) if self.executor.inner.databases.database.withdraw(self.id) => {
                Err(ExecuteError::Deadline { after })
            }
            Err(after) => Err(ExecuteError::CommitUnknown {
                action: self.id,
                why: format!("the deadline of {after:?} passed while the commit was on its way"),
            }),
        }
    }

    async fn start_commit(
        &self,
        batch: Option<CommitBatch>,
        effects: Vec<Box<dyn Effect>>,
        span: Span,
    ) -> Result<(), CommitError> {
        let inner = self.executor.inner.clone();
        let action = self.id;
        let has_effects = !effects.is_empty();
        let working = async move {
            let committed = match batch {
                Some(batch) => inner.databases.database.commit(batch).await?,
                None => Committed { action, round_trips: 0, folded: 0, lane_wait: Duration::ZERO },
            };
            span.record("ekbatan.commit.round_trips", committed.round_trips)
                .record("ekbatan.commit.folded", committed.folded)
                .record("ekbatan.commit.lane_wait_us", committed.lane_wait.as_micros() as u64);
            if !effects.is_empty() {
                inner.count_effect_failures(run_all(effects, committed).await);
            }
            Ok(())
        };
        // Without effects the lane alone carries the commit through. Effects need a task that
        // outlives a caller who is dropped.
        if !has_effects {
            return working.await;
        }
        match tokio::spawn(working.in_current_span()).await {
            Ok(answer) => answer,
            Err(stopped) => Err(CommitError::Unknown(action, stopped.to_string())),
        }
    }

    /// Raises the fence to this lease's token, so that no earlier lease can commit any more.
    async fn raise(&self, fence: &Fence) -> Result<(), ExecuteError<A::Error>> {
        let database = &self.executor.inner.databases.database;
        let micros = i64::try_from(fence.remaining.as_micros()).unwrap_or(i64::MAX);
        let query = Query {
            sql: database.driver.syntax().raise_fence().to_owned(),
            args: vec![
                Arg::One(ValueType::Text, Value::Text(fence.key.clone())),
                Arg::One(ValueType::Int, Value::Int(fence.token)),
                Arg::One(ValueType::Int, Value::Int(micros)),
            ],
            columns: vec![ColumnDef::new("token", ValueType::Int)],
        };
        match database.fetch(&query, Route::Primary, A::NAME).await?.is_empty() {
            true => Err(ExecuteError::FenceLost { key: fence.key.clone() }),
            false => Ok(()),
        }
    }
}

impl<O> Keyed<'_, O> {
    fn replay<A: Action<Output = O>>(&self, answered: Answered) -> Answer<A> {
        if answered.action_name != A::NAME || answered.fingerprint != self.fingerprint {
            return Err(ExecuteError::KeyReused {
                key: self.key.to_owned(),
                action: answered.action_name,
            });
        }
        (self.codec.decode)(&answered.output)
            .map_err(|source| ExecuteError::StoredOutput { key: self.key.to_owned(), source })
    }
}

fn params_of<A: Action>(params: &A::Params) -> Result<Json, PlanError> {
    let name = A::NAME.to_owned();
    let json =
        serde_json::to_value(params).map_err(|source| PayloadError::Serialize { name, source })?;
    Ok(PayloadError::require_object(&format!("{}'s parameters", A::NAME), json)?)
}
