//! The steps of an execution, from the first attempt to the last answer.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value as Json;
use tokio::time::Instant;
use tracing::{Instrument, Span, field};

use super::execution::Codec;
use super::parts::ShardBatch;
use super::plan::PlanParts;
use super::{
    Action, ActionContext, ActionPlan, Effect, ErrorKind, ExecuteError, Execution, PlanError,
};
use crate::db::Committed;
use crate::domain::PayloadError;
use crate::outbox::{Answered, fingerprint, look_up};
use crate::repository::{PendingReads, PendingRow};
use crate::shard::visit;

/// The output, and what is known of the commit, unless it was an earlier call's.
pub(super) type Answer<A> =
    Result<(<A as Action>::Output, Option<Committed>), ExecuteError<<A as Action>::Error>>;

/// When it all has to be over.
#[derive(Clone, Copy)]
pub(super) struct Deadline(Option<(Instant, Duration)>);

impl Deadline {
    fn new(after: Option<Duration>) -> Self {
        Self(after.map(|after| (Instant::now() + after, after)))
    }

    /// The future's answer, or how long the deadline was if it has passed.
    pub(super) async fn bound<T>(self, future: impl Future<Output = T>) -> Result<T, Duration> {
        match self.0 {
            None => Ok(future.await),
            Some((at, after)) => tokio::time::timeout_at(at, future).await.map_err(|_| after),
        }
    }
}

/// How often a call was tried.
pub(super) struct Tries {
    /// Which attempt this is, the first being 1.
    pub(super) number: u32,
    /// Whether it runs by itself from now on, having failed together with others.
    pub(super) alone: bool,
}

/// What a plan comes to: what each shard is to commit, and what follows.
pub(super) struct Planned {
    pub(super) parts: Vec<ShardBatch>,
    pub(super) effects: Vec<Box<dyn Effect>>,
    /// How many events there are.
    pub(super) events: usize,
    /// What the rows will be, for those who wait for them.
    pub(super) left: Vec<PendingRow>,
}

/// What a call with an idempotency key knows of itself.
pub(super) struct Keyed<'k, O> {
    pub(super) key: &'k str,
    pub(super) codec: &'k Codec<O>,
    pub(super) fingerprint: String,
}

impl<A: Action> Execution<'_, A> {
    pub(super) async fn run(mut self) -> Answer<A> {
        let span = tracing::info_span!(
            "ekbatan.action.execute",
            ekbatan.action.name = A::NAME,
            ekbatan.action.id = %self.id,
            ekbatan.action.principal = field::Empty,
            ekbatan.action.outcome = field::Empty,
            ekbatan.action.error = field::Empty,
            ekbatan.action.retry.count = field::Empty,
            ekbatan.contention.group_size = field::Empty,
        );
        if self.executor.inner.log_principal {
            span.record(
                "ekbatan.action.principal",
                self.options.principal.as_deref().unwrap_or_default(),
            );
        }
        // Until this ends, whoever asks for the outcome waits.
        let open = self.executor.inner.databases.shards.default().open_action(self.id);
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(open);
        let answer = self.run_keyed().instrument(span.clone()).await;
        drop(self.open.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Err(ExecuteError::FenceLost { key }) = &answer {
            span.in_scope(|| self.executor.inner.refused_by_fence(key));
        }
        match &answer {
            Ok(_) => span.record("ekbatan.action.outcome", "success"),
            Err(error) => span
                .record("ekbatan.action.outcome", "error")
                .record("ekbatan.action.error", field::debug(error.kind())),
        };
        answer
    }

    async fn run_keyed(&mut self) -> Answer<A> {
        let params = params_of::<A>(&self.params)?;
        let deadline = Deadline::new(self.options.deadline);
        let Some((key, codec)) = &self.key.take() else {
            return self.attempt_until_done(&params, None, deadline).await;
        };
        if key.is_empty() || key.len() > 255 {
            return Err(PlanError::Key(key.clone(), key.len()).into());
        }
        let keyed = Keyed { key, codec, fingerprint: fingerprint(A::NAME, &params) };
        let late = |after| ExecuteError::Deadline { after };
        // In this process equal keys pass one by one; other processes are met by the key's
        // uniqueness in the commit.
        let executor = self.executor;
        let _pass = deadline.bound(executor.inner.gate.pass(key)).await.map_err(late)?;
        if let Some(answered) = deadline.bound(self.find_answer(key)).await.map_err(late)?? {
            return self.replay(&keyed, answered, deadline).await;
        }
        self.attempt_until_done(&params, Some(&keyed), deadline).await
    }

    async fn find_answer(&self, key: &str) -> Result<Option<Answered>, ExecuteError<A::Error>> {
        let inner = &self.executor.inner;
        let shards = &inner.databases.shards;
        // The key is kept where the action committed, which a call does not know beforehand.
        let asked = shards.all().map(|database| look_up(database, &inner.namespace, key, A::NAME));
        let mut failure = None;
        for found in visit(asked.collect()).await {
            match found {
                Ok(None) => {}
                // Where it was found, it is nowhere else.
                Ok(found) => return Ok(found),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(None), |error| Err(error.into()))
    }

    async fn attempt_until_done(
        &mut self,
        params: &Json,
        keyed: Option<&Keyed<'_, A::Output>>,
        deadline: Deadline,
    ) -> Answer<A> {
        let inner = &self.executor.inner;
        let policy = self.options.retry.clone();
        let policy = policy.as_ref().unwrap_or(&inner.retry);
        let contending = self.contending()?;
        let mut spent = std::collections::BTreeMap::<ErrorKind, u32>::new();
        let mut tries = Tries { number: 1, alone: false };
        loop {
            Span::current().record("ekbatan.action.retry.count", tries.number - 1);
            let attempted = self
                .attempt_as_decided(contending.as_ref(), &mut tries, params, keyed, deadline)
                .await;
            let error = match attempted {
                Ok(output) => return Ok(output),
                Err(error) => error,
            };
            let kind = error.kind();
            // Another process may have committed this very call meanwhile, and what failed
            // here may have failed because of it.
            if let Some(keyed) = keyed
                && !is_final(kind)
                && let Ok(Ok(Some(answered))) = deadline.bound(self.find_answer(keyed.key)).await
            {
                return self.replay(keyed, answered, deadline).await;
            }
            if kind == ErrorKind::PartlyCommitted {
                return Err(error);
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
            tracing::debug!(name: "retry", attempt = tries.number, ?kind, ?wait, "retry");
            deadline.bound(tokio::time::sleep(wait)).await.map_err(|_| error)?;
            tries.number += 1;
        }
    }

    /// One attempt: a fresh plan, `perform`, the commit.
    pub(super) async fn attempt(
        &self,
        params: &Json,
        keyed: Option<&Keyed<'_, A::Output>>,
        deadline: Deadline,
        attempt: u32,
    ) -> Answer<A> {
        let started = self.executor.inner.databases.clock.now();
        self.check_lease()?;
        let mut ctx = self.context(started, attempt, None);
        let performed = deadline.bound(self.perform(&mut ctx)).await;
        let output = performed.map_err(|after| ExecuteError::Deadline { after })??;
        let planned = self.planned(ctx.plan, output, params, keyed, started, deadline).await?;
        let (output, Planned { parts, effects, events, .. }) = planned;
        let committed = self.commit(parts, effects, deadline, attempt, events).await?;
        Ok((output, Some(committed)))
    }

    /// What the action sees. With a seat it sees what the calls before it will leave.
    pub(super) fn context(
        &self,
        started: DateTime<Utc>,
        attempt: u32,
        pending: Option<Arc<dyn PendingReads>>,
    ) -> ActionContext<'_> {
        let inner = &self.executor.inner;
        let keeps_rows = pending.is_some();
        ActionContext {
            databases: &inner.databases,
            pending,
            fencing: self.options.fencing.clone(),
            ids: &inner.ids,
            name: A::NAME,
            action: self.id,
            principal: self.options.principal.as_deref(),
            reason: self.options.reason.as_deref(),
            attempt,
            now: started,
            plan: ActionPlan::new(started, keeps_rows),
        }
    }

    pub(super) async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
    ) -> Result<A::Output, ExecuteError<A::Error>> {
        let attempt = ctx.attempt;
        let span = tracing::info_span!("ekbatan.action.perform", ekbatan.action.attempt = attempt);
        let performed = self.action.perform(ctx, &self.params).instrument(span).await;
        performed.map_err(|error| self.fence_lost().unwrap_or(ExecuteError::Domain(error)))
    }

    /// What a plan comes to.
    pub(super) async fn planned(
        &self,
        plan: ActionPlan,
        output: A::Output,
        params: &Json,
        keyed: Option<&Keyed<'_, A::Output>>,
        started: DateTime<Utc>,
        deadline: Deadline,
    ) -> Result<(A::Output, Planned), ExecuteError<A::Error>> {
        let PlanParts { rows, events, effects, left } = plan.into_parts()?;
        let parts = if rows.is_empty() && keyed.is_none() && !self.executor.inner.record_reads {
            Vec::new()
        } else {
            let action = self.record(params, started);
            let key = match keyed {
                Some(keyed) => Some(self.key_record(keyed, &output, action.completed)?),
                None => None,
            };
            let parts = deadline.bound(self.parts(rows, &events, key, &action)).await;
            parts.map_err(|after| ExecuteError::Deadline { after })??
        };
        Ok((output, Planned { parts, effects, events: events.len(), left }))
    }

    /// The answer of the call that had the key before.
    async fn replay(
        &self,
        keyed: &Keyed<'_, A::Output>,
        answered: Answered,
        deadline: Deadline,
    ) -> Answer<A> {
        let shards = &self.executor.inner.databases.shards;
        if !shards.is_single() {
            let partial = deadline.bound(shards.partial_commit(answered.action)).await;
            let partial = partial.map_err(|after| ExecuteError::Deadline { after })??;
            if let Some(partial) = partial {
                return Err(ExecuteError::of_partial(partial));
            }
        }
        keyed.replay::<A>(answered).map(|output| (output, None))
    }
}

/// Whether nothing can be learnt by looking whether another process committed the call.
fn is_final(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Plan
            | ErrorKind::Deadline
            | ErrorKind::CommitUnknown
            | ErrorKind::CrossShard
            | ErrorKind::PartlyCommitted
    )
}

impl<O> Keyed<'_, O> {
    fn replay<A: Action<Output = O>>(
        &self,
        answered: Answered,
    ) -> Result<O, ExecuteError<A::Error>> {
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
