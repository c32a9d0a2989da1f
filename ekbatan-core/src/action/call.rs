//! A call: what the caller asks for, and the running call that performs and plans it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use serde_json::Value as Json;
use tracing::Instrument;

use super::attempt::Attempt;
use super::contention::{Perform, Performed};
use super::deadline::Deadline;
use super::error::{AttemptError, KeptError};
use super::executor_state::ExecutorState;
use super::params::params_of;
use super::plan::PlanParts;
use super::shard_batches::{BatchBuilder, ClaimPlan, KeyPlan, PlanRows, Planned, PlannedBatches};
use super::{Action, ActionContext, ActionPlan, Contention, ExecuteError, PlanError, RetryPolicy};
use crate::db::{ActionId, Committed, OpenAction, performing};
use crate::domain::{LockKey, ShardIdentifier};
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

/// The most characters of a principal. SQLite has no limit of its own; the other databases have this one.
const MAX_PRINCIPAL: usize = 255;

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
    /// The shard that has the row of the key; `None`: its home.
    pub(super) key_shard: Option<ShardIdentifier>,
    /// Whether the caller has set an idempotency key and a message.
    pub(super) has_two_keys: bool,
}

impl CallOptions {
    /// Rejects texts that not every database would store with the events.
    fn check(&self) -> Result<(), PlanError> {
        for (what, text) in [("principal", &self.principal), ("reason", &self.reason)] {
            if let Some(text) = text.as_deref().filter(|text| text.contains('\0')) {
                return Err(PlanError::HoldsNul { what, value: text.to_owned() });
            }
        }
        // A character has at least one byte, so most principals need no count.
        let long = self.principal.as_ref().filter(|principal| principal.len() > MAX_PRINCIPAL);
        match long.map(|principal| (principal, principal.chars().count())) {
            Some((principal, length)) if length > MAX_PRINCIPAL => {
                Err(PlanError::PrincipalTooLong { principal: principal.clone(), length })
            }
            _ => Ok(()),
        }
    }
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

/// The answer of a call and the result of its commit. The commit is `None` if an earlier call
/// with the same key committed.
pub(super) type CallResult<O, E> = Result<(O, Option<Committed>), ExecuteError<E>>;

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

/// A call in its attempts.
pub(super) struct Running<'c, 'a, A: Action, O> {
    pub(super) call: &'c mut Call<'a, A, O>,
    /// What the action returned in the last attempt.
    pub(super) returned: Option<Result<A::Output, A::Error>>,
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
        options.check()?;
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
    async fn claim_key(&mut self, plan: Option<ClaimPlan>) -> Result<(), AttemptError> {
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

impl<A: Action, O> Running<'_, '_, A, O> {
    /// Adds the error of the action, if it is one.
    pub(super) fn with_own(&mut self, error: AttemptError) -> ExecuteError<A::Error> {
        error.with_own(self.returned.take().and_then(Result::err))
    }
}

impl<A: Action, O: Send> Perform for Running<'_, '_, A, O> {
    fn attempt(&mut self) -> &mut Attempt {
        &mut self.call.attempt
    }

    fn perform(
        &mut self,
        pending: Option<Arc<dyn PendingReads>>,
    ) -> BoxFuture<'_, Result<Performed, AttemptError>> {
        Box::pin(async move {
            let Call { executor, action, params, options, attempt, .. } = &*self.call;
            let started = executor.databases.clock.now();
            let mut ctx = ActionContext {
                databases: &executor.databases,
                plan: ActionPlan::new(started, pending.is_some()),
                pending,
                fencing: attempt.fencing.clone(),
                ids: &executor.ids,
                name: A::NAME,
                action: attempt.action,
                principal: options.principal.as_deref(),
                reason: options.reason.as_deref(),
                attempt: attempt.number,
                now: started,
            };
            let span = tracing::info_span!(
                "ekbatan.action.perform",
                ekbatan.action.attempt = attempt.number
            );
            let returned = {
                // Pinned here, because what wraps a future copies it.
                let perform = pin!(action.perform(&mut ctx, params));
                performing(A::NAME, perform.instrument(span)).await
            };
            let performed = Performed { plan: ctx.plan, started };
            match self.returned.insert(returned) {
                Ok(_) => Ok(performed),
                Err(_) => Err(attempt.fence_lost().unwrap_or(ExecuteError::Domain(KeptError))),
            }
        })
    }

    fn plan(&mut self, performed: Performed) -> BoxFuture<'_, Result<Planned, AttemptError>> {
        Box::pin(async move {
            let Performed { plan, started } = performed;
            let Self { call, returned } = self;
            let PlanParts { rows, expected, events, calls, effects, pending } =
                plan.into_parts()?;
            let mark = call.options.mark.as_ref();
            let changes_nothing = rows.is_empty()
                && calls.is_empty()
                && call.keyed.is_none()
                && mark.is_none_or(Mark::is_check);
            let is_recorded = !changes_nothing || call.executor.record_reads;
            // The mark is checked also if nothing is written: the action may have effects.
            let batches = if !is_recorded && expected.is_empty() && mark.is_none() {
                Vec::new()
            } else {
                let action = call.record(started);
                let key = match (&call.keyed, returned) {
                    (Some(keyed), Some(Ok(output))) => {
                        Some(call.key_plan(keyed, output, action.completed)?)
                    }
                    _ => None,
                };
                let builder = BatchBuilder {
                    shards: &call.attempt.shards,
                    ids: &call.executor.ids,
                    action: &action,
                    fencing: call.attempt.fencing.as_deref(),
                    allow_cross_shard: call.options.allow_cross_shard,
                    is_recorded,
                    deliveries: &call.executor.deliveries,
                    clock: &call.executor.databases.clock,
                    mark,
                };
                let rows = PlanRows { changes: rows, expected, calls };
                let PlannedBatches { batches, claim } = {
                    let building = pin!(builder.build(rows, &events, key));
                    call.attempt.deadline.bound(building).await??
                };
                if let Some(keyed) = &mut call.keyed {
                    keyed.leaves_home = claim.is_some() || batches.len() > 1;
                    call.claim_key(claim).await?;
                }
                batches
            };
            Ok(Planned { batches, effects, events: events.len(), pending })
        })
    }
}
