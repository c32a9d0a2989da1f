//! A call: what the caller asks for, and the running call that performs and plans it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value as Json;
use tracing::Instrument;

use super::attempt::Attempt;
use super::contention::{Perform, Performed};
use super::deadline::Deadline;
use super::executor_state::ExecutorState;
use super::performing::performing;
use super::plan::PlanParts;
use super::shard_batches::{BatchBuilder, ClaimPlan, KeyPlan, PlanRows, Planned, PlannedBatches};
use super::{Action, ActionContext, ActionPlan, Contention, ExecuteError, PlanError, RetryPolicy};
use crate::db::{ActionId, OpenAction};
use crate::domain::{LockKey, PayloadError};
use crate::outbox::deliveries::Mark;
use crate::outbox::{ActionRecord, KeyRecord};
use crate::repository::PendingReads;
use crate::shard::{Fencing, HomedKey};

/// How an output is stored under an idempotency key.
pub(super) struct Codec<O> {
    pub(super) encode: fn(&O) -> Result<String, serde_json::Error>,
    pub(super) decode: fn(&str) -> Result<O, serde_json::Error>,
}

/// What the caller may set.
#[derive(Default)]
pub(super) struct CallOptions {
    pub(super) principal: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) trace_parent: Option<String>,
    pub(super) retry: Option<RetryPolicy>,
    pub(super) deadline: Option<Duration>,
    /// The fences of the leases under which the call runs.
    pub(super) fencing: Option<Arc<Fencing>>,
    pub(super) allow_cross_shard: bool,
    /// Whether the call may commit beside a transaction that the task has open.
    pub(super) outside_transaction: bool,
    pub(super) contention: Option<Contention>,
    /// Empty: those of the action.
    pub(super) contention_keys: Vec<LockKey>,
    pub(super) wants_token: bool,
    /// The mark of the delivery that the call handles.
    pub(super) mark: Option<Mark>,
}

type RetryIf<E> = Box<dyn Fn(&E) -> bool + Send + Sync>;

/// A call that has not begun.
pub(super) struct CallRequest<'a, A: Action> {
    pub(super) executor: &'a ExecutorState,
    pub(super) action: &'a A,
    pub(super) params: A::Params,
    pub(super) id: ActionId,
    pub(super) options: CallOptions,
    pub(super) idempotency_key: Option<(String, Codec<A::Output>)>,
    pub(super) retry_if: Option<RetryIf<A::Error>>,
}

/// A call under an idempotency key.
pub(super) struct IdempotentCall<O> {
    pub(super) key: HomedKey,
    pub(super) codec: Codec<O>,
    pub(super) fingerprint: String,
    /// Whether the last attempt wrote to other shards than the key's home.
    pub(super) leaves_home: bool,
}

/// A running call.
pub(super) struct Call<'a, A: Action> {
    pub(super) executor: &'a ExecutorState,
    pub(super) action: &'a A,
    pub(super) params: A::Params,
    pub(super) params_json: Json,
    pub(super) options: CallOptions,
    pub(super) idempotent: Option<IdempotentCall<A::Output>>,
    pub(super) retry_if: Option<RetryIf<A::Error>>,
    pub(super) attempt: Attempt,
}

impl<'a, A: Action> Call<'a, A> {
    pub(super) fn begin(
        request: CallRequest<'a, A>,
        open: OpenAction,
    ) -> Result<Self, ExecuteError<A::Error>> {
        let CallRequest { executor, action, params, id, mut options, retry_if, .. } = request;
        let attempt = Attempt {
            action: id,
            action_name: A::NAME,
            deadline: Deadline::new(options.deadline.unwrap_or(executor.deadline)),
            number: 1,
            alone: false,
            queue_number: None,
            fencing: options.fencing.take(),
            wants_token: options.wants_token,
            open: Some(open),
            key_lock: None,
            shards: executor.databases.shards.clone(),
            effects: executor.effects.clone(),
        };
        let params_json = params_of::<A>(&params)?;
        let idempotent = None;
        Ok(Self { executor, action, params, params_json, options, idempotent, retry_if, attempt })
    }

    fn record(&self, started: DateTime<Utc>) -> ActionRecord {
        ActionRecord {
            namespace: self.executor.namespace.clone(),
            action: self.attempt.action,
            name: A::NAME,
            params: self.params_json.to_string(),
            started,
            completed: self.executor.databases.clock.now(),
            principal: self.options.principal.clone(),
            reason: self.options.reason.clone(),
            trace_parent: self.options.trace_parent.clone(),
        }
    }

    fn key_plan<'c>(
        &self,
        idempotent: &'c IdempotentCall<A::Output>,
        output: &A::Output,
        created: DateTime<Utc>,
    ) -> Result<KeyPlan<'c>, PlanError> {
        let record = KeyRecord {
            key: idempotent.key.key(),
            action_name: A::NAME,
            fingerprint: &idempotent.fingerprint,
            action: self.attempt.action,
            output: (idempotent.codec.encode)(output).map_err(PlanError::Output)?,
            created,
        };
        Ok(KeyPlan { home: idempotent.key.home(), record })
    }

    /// Claims the key for a plan, after the claim of an earlier attempt is gone.
    async fn claim_key(&mut self, plan: Option<ClaimPlan>) -> Result<(), ExecuteError<A::Error>> {
        let Some(IdempotentCall { key, .. }) = &mut self.idempotent else { return Ok(()) };
        let claiming = async {
            key.release().await?;
            match plan {
                Some(ClaimPlan { id, row, first }) => key.claim(id, row, first).await,
                None => Ok(()),
            }
        };
        Ok(self.attempt.deadline.bound(claiming).await??)
    }
}

impl<A: Action> Perform for Call<'_, A> {
    type Output = A::Output;
    type Error = A::Error;

    fn attempt(&mut self) -> &mut Attempt {
        &mut self.attempt
    }

    async fn perform(
        &mut self,
        pending: Option<Arc<dyn PendingReads>>,
    ) -> Result<Performed<A::Output>, ExecuteError<A::Error>> {
        let attempt = &self.attempt;
        let started = self.executor.databases.clock.now();
        let plan = ActionPlan::new(started, pending.is_some());
        let mut ctx = ActionContext {
            databases: &self.executor.databases,
            pending,
            fencing: attempt.fencing.clone(),
            ids: &self.executor.ids,
            name: A::NAME,
            action: attempt.action,
            principal: self.options.principal.as_deref(),
            reason: self.options.reason.as_deref(),
            attempt: attempt.number,
            now: started,
            plan,
        };
        let span =
            tracing::info_span!("ekbatan.action.perform", ekbatan.action.attempt = attempt.number);
        let performed = {
            // Pinned here, because what wraps a future copies it.
            let perform = pin!(self.action.perform(&mut ctx, &self.params));
            performing(A::NAME, perform.instrument(span)).await
        };
        match performed {
            Ok(output) => Ok(Performed { output, plan: ctx.plan, started }),
            Err(error) => Err(attempt.fence_lost().unwrap_or(ExecuteError::Domain(error))),
        }
    }

    async fn plan(
        &mut self,
        performed: Performed<A::Output>,
    ) -> Result<(A::Output, Planned), ExecuteError<A::Error>> {
        let Performed { output, plan, started } = performed;
        let PlanParts { rows, expected, events, effects, pending } = plan.into_parts()?;
        let changes_nothing =
            rows.is_empty() && self.idempotent.is_none() && self.options.mark.is_none();
        let is_recorded = !changes_nothing || self.executor.record_reads;
        let batches = if !is_recorded && expected.is_empty() {
            Vec::new()
        } else {
            let action = self.record(started);
            let key = match &self.idempotent {
                Some(idempotent) => Some(self.key_plan(idempotent, &output, action.completed)?),
                None => None,
            };
            let builder = BatchBuilder {
                shards: &self.attempt.shards,
                ids: &self.executor.ids,
                action: &action,
                fencing: self.attempt.fencing.as_deref(),
                allow_cross_shard: self.options.allow_cross_shard,
                is_recorded,
                deliveries: &self.executor.deliveries,
                mark: self.options.mark.as_ref(),
            };
            let rows = PlanRows { changes: rows, expected };
            let PlannedBatches { batches, claim } = {
                let building = pin!(builder.build(rows, &events, key));
                self.attempt.deadline.bound(building).await??
            };
            if let Some(idempotent) = &mut self.idempotent {
                idempotent.leaves_home = claim.is_some() || batches.len() > 1;
                self.claim_key(claim).await?;
            }
            batches
        };
        Ok((output, Planned { batches, effects, events: events.len(), pending }))
    }
}

fn params_of<A: Action>(params: &A::Params) -> Result<Json, PlanError> {
    let name = A::NAME.to_owned();
    let json =
        serde_json::to_value(params).map_err(|source| PayloadError::Serialize { name, source })?;
    Ok(PayloadError::require_object(&format!("{}'s parameters", A::NAME), json)?)
}
