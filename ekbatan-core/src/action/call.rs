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
use super::params::params_of;
use super::performing::performing;
use super::plan::PlanParts;
use super::shard_batches::{BatchBuilder, ClaimPlan, KeyPlan, PlanRows, Planned, PlannedBatches};
use super::{Action, ActionContext, ActionPlan, Contention, ExecuteError, PlanError, RetryPolicy};
use crate::db::{ActionId, OpenAction};
use crate::domain::LockKey;
use crate::outbox::{ActionRecord, KeyRecord, Mark, StoredOutput};
use crate::repository::PendingReads;
use crate::shard::{Fencing, HomedKey};

/// How an output is stored under an idempotency key, and how it becomes an answer again.
pub(super) struct Codec<P, O> {
    pub(super) encode: fn(&P) -> Result<String, serde_json::Error>,
    pub(super) decode: fn(&str) -> Result<O, serde_json::Error>,
}

/// What the caller gives so that a repeated call does not run: the action returns a `P`, the call
/// answers an `O`.
pub(super) enum RequestedKey<P, O> {
    Idempotency { text: String, codec: Codec<P, O> },
    Message { consumer: String, id: String, duplicate: fn() -> O },
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
    /// The mark of the work that the call belongs to: a delivery, or a run of a job.
    pub(super) mark: Option<Mark>,
    /// Whether the caller has set an idempotency key and a message.
    pub(super) has_two_keys: bool,
}

type RetryIf<E> = Box<dyn Fn(&E) -> bool + Send + Sync>;

/// A call that has not begun. It answers an `O`.
pub(super) struct CallRequest<'a, A: Action, O: 'a> {
    pub(super) executor: &'a ExecutorState,
    pub(super) action: &'a A,
    pub(super) params: A::Params,
    pub(super) id: ActionId,
    pub(super) options: CallOptions,
    pub(super) key: Option<RequestedKey<A::Output, O>>,
    pub(super) retry_if: Option<RetryIf<A::Error>>,
    /// Makes the answer of a call that ran.
    pub(super) answer: fn(A::Output) -> O,
}

/// What a call answers whose key was used before.
pub(super) enum Repeated<P, O> {
    /// The output of the call that used it. The fingerprint is that of this call.
    Output { codec: Codec<P, O>, fingerprint: String },
    /// That the message was handled.
    Duplicate(fn() -> O),
}

/// A call under a key.
pub(super) struct KeyedCall<P, O> {
    pub(super) key: HomedKey,
    pub(super) repeated: Repeated<P, O>,
    /// Whether the last attempt wrote to other shards than the key's home.
    pub(super) leaves_home: bool,
}

/// A running call.
pub(super) struct Call<'a, A: Action, O> {
    pub(super) executor: &'a ExecutorState,
    pub(super) action: &'a A,
    pub(super) params: A::Params,
    pub(super) params_json: Json,
    pub(super) options: CallOptions,
    pub(super) keyed: Option<KeyedCall<A::Output, O>>,
    pub(super) retry_if: Option<RetryIf<A::Error>>,
    pub(super) answer: fn(A::Output) -> O,
    pub(super) attempt: Attempt,
}

impl<'a, A: Action, O> Call<'a, A, O> {
    pub(super) fn begin(
        request: CallRequest<'a, A, O>,
        open: OpenAction,
    ) -> Result<Self, ExecuteError<A::Error>> {
        let CallRequest { executor, action, params, id, mut options, key: _, retry_if, answer } =
            request;
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
        let keyed = None;
        Ok(Self {
            executor,
            action,
            params,
            params_json,
            options,
            keyed,
            retry_if,
            answer,
            attempt,
        })
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
        keyed: &'c KeyedCall<A::Output, O>,
        output: &A::Output,
        created: DateTime<Utc>,
    ) -> Result<KeyPlan<'c>, PlanError> {
        let output = match &keyed.repeated {
            Repeated::Output { codec, fingerprint } => Some(StoredOutput {
                action_name: A::NAME.to_owned(),
                fingerprint: fingerprint.clone(),
                output: (codec.encode)(output).map_err(PlanError::Output)?,
            }),
            Repeated::Duplicate(_) => None,
        };
        let (key, action) = (keyed.key.key(), self.attempt.action);
        Ok(KeyPlan { home: keyed.key.home(), record: KeyRecord { key, action, created, output } })
    }

    /// Claims the key for a plan, after the claim of an earlier attempt is gone.
    async fn claim_key(&mut self, plan: Option<ClaimPlan>) -> Result<(), ExecuteError<A::Error>> {
        let Some(KeyedCall { key, .. }) = &mut self.keyed else { return Ok(()) };
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

impl<A: Action, O: Send> Perform for Call<'_, A, O> {
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
        let PlanParts { rows, expected, events, calls, effects, pending } = plan.into_parts()?;
        let mark = self.options.mark.as_ref();
        let changes_nothing = rows.is_empty()
            && calls.is_empty()
            && self.keyed.is_none()
            && mark.is_none_or(Mark::is_check);
        let is_recorded = !changes_nothing || self.executor.record_reads;
        // The mark is checked also if nothing is written: the action may have effects.
        let batches = if !is_recorded && expected.is_empty() && mark.is_none() {
            Vec::new()
        } else {
            let action = self.record(started);
            let key = match &self.keyed {
                Some(keyed) => Some(self.key_plan(keyed, &output, action.completed)?),
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
                clock: &self.executor.databases.clock,
                mark,
            };
            let rows = PlanRows { changes: rows, expected, calls };
            let PlannedBatches { batches, claim } = {
                let building = pin!(builder.build(rows, &events, key));
                self.attempt.deadline.bound(building).await??
            };
            if let Some(keyed) = &mut self.keyed {
                keyed.leaves_home = claim.is_some() || batches.len() > 1;
                self.claim_key(claim).await?;
            }
            batches
        };
        Ok((output, Planned { batches, effects, events: events.len(), pending }))
    }
}
