//! Runs a call: keys, attempts and retries, until the call has an answer.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{Instrument, Span, field};

use super::call::{Call, CallRequest, CallResult, KeyedCall, Repeated, RequestedKey, Running};
use super::contention::ChosenStrategy;
use super::error::KeptError;
use super::{Action, ErrorKind, ExecuteError, PlanError};
use crate::db::{DbError, DbErrorKind, performed_action};
use crate::outbox::{CallKey, MarkedWork, StoredCall, StoredOutput, fingerprint};
use crate::shard::{FoundCall, HomedKey, KeyHomes, PartialCommit};

/// The longest idempotency key, consumer or id of a message, in bytes.
const MAX_KEY: usize = 255;

/// How long a repeated call waits for another process to commit the first call on its other shards.
const PATIENCE: Duration = Duration::from_secs(3);

/// Runs a call to its end.
pub(super) async fn run<A: Action, O: Send>(
    mut request: CallRequest<'_, A, O>,
) -> CallResult<O, A::Error> {
    let executor = request.executor;
    let span = tracing::info_span!(
        "ekbatan.action.execute",
        ekbatan.action.name = A::NAME,
        ekbatan.action.id = %request.id,
        ekbatan.action.principal = field::Empty,
        ekbatan.action.outcome = field::Empty,
        ekbatan.action.error = field::Empty,
        ekbatan.action.retry.count = field::Empty,
        ekbatan.contention.group_size = field::Empty,
    );
    if executor.log_principal {
        let principal = request.options.principal.as_deref().unwrap_or_default();
        span.record("ekbatan.action.principal", principal);
    }
    // Until the call ends, `executor.outcome` waits.
    let open = executor.databases.shards.default().open_action(request.id);
    let key = request.key.take();
    // Pinned here, because what wraps a future copies it, and this one is large.
    let running = pin!(async move {
        if let Some(within) = performed_action() {
            return Err(ExecuteError::Nested { action: A::NAME, within });
        }
        let mut call = Call::begin(request, open)?;
        match key {
            Some(key) => Box::pin(call.run_under(key)).await,
            None => call.attempt_until_done().await,
        }
    });
    let answer = running.instrument(span.clone()).await;
    if let Err(ExecuteError::FenceLost { key }) = &answer {
        span.in_scope(|| executor.count_fence_refusal(key));
    }
    match &answer {
        Ok(_) => span.record("ekbatan.action.outcome", "success"),
        Err(error) => span
            .record("ekbatan.action.outcome", "error")
            .record("ekbatan.action.error", field::debug(error.kind())),
    };
    answer
}

impl<A: Action, O: Send> Call<'_, A, O> {
    /// Runs a call under a key, unless an earlier call with the key committed.
    async fn run_under(&mut self, key: RequestedKey<A::Output, O>) -> CallResult<O, A::Error> {
        if self.options.has_two_keys {
            return Err(PlanError::KeyAndMessage.into());
        }
        let (executor, deadline) = (self.executor, self.attempt.deadline);
        let (key, repeated) = match key {
            RequestedKey::Idempotency { text, codec } => {
                check_key(&text)?;
                let principal = self.options.principal.as_deref();
                let key = executor.key_scope.key(&executor.namespace, principal, text);
                let fingerprint = fingerprint(A::NAME, &self.params_json);
                (key, Repeated::Output { codec, fingerprint })
            }
            RequestedKey::Message { consumer, id, duplicate } => {
                check_of_message("consumer", &consumer)?;
                check_of_message("id", &id)?;
                (executor.message_key(consumer, id), Repeated::Duplicate(duplicate))
            }
        };
        // Equal keys of this process run one after another. Calls of other processes conflict
        // on the unique key at its home.
        let lock = executor.key_locks.lock(&key);
        self.attempt.key_lock = deadline.bound(lock).await?;
        self.run_locked(key, repeated).await
    }

    async fn run_locked(
        &mut self,
        key: CallKey,
        repeated: Repeated<A::Output, O>,
    ) -> CallResult<O, A::Error> {
        let (executor, deadline) = (self.executor, self.attempt.deadline);
        let databases = &executor.databases;
        let fixed = self.options.key_shard.map(KeyHomes::only);
        let homes = fixed.as_ref().unwrap_or(&executor.key_homes);
        let key = HomedKey::new(key, homes, &databases.shards, &databases.clock);
        let keyed = KeyedCall { key, repeated, leaves_home: false };
        if let Some(found) = deadline.bound(keyed.key.find()).await?? {
            self.attempt.key_lock = None; // others with the key are answered at the same time
            return self.replay(&keyed, found).await;
        }
        self.keyed = Some(keyed);
        let answer = self.attempt_until_done().await;
        if let Some(KeyedCall { key, leaves_home, .. }) = self.keyed.take() {
            match &answer {
                Ok((_, Some(_))) if leaves_home => key.complete_soon(self.attempt.action),
                Ok(_) => {}
                Err(error) if may_have_committed(error.kind()) => {}
                Err(_) => key.release_soon(),
            }
        }
        answer
    }

    async fn attempt_until_done(&mut self) -> CallResult<O, A::Error> {
        let executor = self.executor;
        let own_policy = self.options.retry.take();
        let policy = own_policy.as_ref().unwrap_or(&executor.retry);
        let mut chosen = self.choose_strategy()?;
        let mut spent = BTreeMap::<ErrorKind, u32>::new();
        let mut running = Running { call: self, returned: None };
        loop {
            let retries = spent.values().sum::<u32>();
            Span::current().record("ekbatan.action.retry.count", retries);
            let mut error = match executor.strategies.attempt(chosen.as_mut(), &mut running).await {
                Ok(committed) => {
                    let Some(Ok(output)) = running.returned else {
                        // Not reached: what has committed was returned.
                        return Err(DbError::misfit("output", "the action returned none").into());
                    };
                    return Ok(((running.call.answer)(output), Some(committed)));
                }
                Err(error) => error,
            };
            let mut kind = error.kind();
            // Another process may have committed this very call meanwhile, and that may be the
            // reason why it failed here.
            if let Some(keyed) = &running.call.keyed
                && !is_final(kind)
                && let found = keyed.key.find()
                && let Ok(Ok(Some(found))) = running.call.attempt.deadline.bound(found).await
            {
                return running.call.replay(keyed, found).await;
            }
            if kind == ErrorKind::Unique && running.call.is_stopped().await {
                let why = "another call with the key stopped this one, which took long to commit";
                error = DbError::new(DbErrorKind::Serialization, why).into();
                kind = error.kind();
            }
            if let (ExecuteError::Stale { rows, .. }, Some(mark)) =
                (&error, &running.call.options.mark)
                && mark.is_among(rows)
            {
                return Err(match mark.work().clone() {
                    MarkedWork::Delivery(handler) => ExecuteError::DeliveryLost { handler },
                    MarkedWork::Run(job) => ExecuteError::RunLost { job },
                });
            }
            let retryable = match &error {
                ExecuteError::Domain(KeptError) => {
                    match (&running.returned, &running.call.retry_if) {
                        (Some(Err(own)), Some(retry_if)) => retry_if(own),
                        _ => false,
                    }
                }
                _ => true,
            };
            let used = spent.entry(kind).or_default();
            let Some(budget) =
                policy.budget(kind).filter(|budget| retryable && *used < budget.retries)
            else {
                return Err(running.with_own(error));
            };
            let in_queue = chosen.as_ref().is_some_and(ChosenStrategy::waits_in_queue);
            let wait = (!in_queue).then(|| executor.jitter(budget.bound(*used)));
            *used += 1;
            tracing::debug!(name: "retry", attempt = running.call.attempt.number, ?kind, ?wait, "retry");
            if let Some(wait) = wait {
                let waiting = tokio::time::sleep(wait);
                if running.call.attempt.deadline.bound(waiting).await.is_err() {
                    return Err(running.with_own(error));
                }
            }
            running.call.attempt.number += 1;
        }
    }

    /// The strategy of the call; `None` if it always runs optimistically. A call that brings a
    /// lease excludes others by that lease already. Waiting for another lease, or in a group
    /// that waits for this very lease, could deadlock.
    fn choose_strategy(&self) -> Result<Option<ChosenStrategy>, ExecuteError<A::Error>> {
        // A group would not know which of its members has lost its work.
        if self.attempt.fencing.is_some() || self.options.mark.is_some() {
            return Ok(None);
        }
        let own = self.options.contention.clone().or_else(|| self.action.contention());
        let keys = || match &self.options.contention_keys[..] {
            [] => self.action.contention_keys(&self.params),
            own => own.to_vec(),
        };
        Ok(self.executor.strategies.choose(A::NAME, own, keys)?)
    }

    /// Whether another call with the key has made sure that the last attempt never commits.
    async fn is_stopped(&self) -> bool {
        let Some(KeyedCall { key, .. }) = &self.keyed else { return false };
        matches!(self.attempt.deadline.bound(key.is_stopped()).await, Ok(Ok(true)))
    }

    /// Answers what the earlier call with the key answered, or that the message is a duplicate.
    async fn replay(
        &self,
        keyed: &KeyedCall<A::Output, O>,
        found: FoundCall,
    ) -> CallResult<O, A::Error> {
        let KeyedCall { key, repeated, .. } = keyed;
        let stored = &found.call;
        if stored.shards.len() > 1 {
            let partial = self.partial_commit_of(stored);
            if let Some(partial) = self.attempt.deadline.bound(partial).await?? {
                return Err(ExecuteError::of_partial(partial));
            }
        }
        if !stored.shards.is_empty() {
            key.complete_found(&found);
        }
        let (codec, fingerprint) = match repeated {
            Repeated::Duplicate(duplicate) => return Ok((duplicate(), None)),
            Repeated::Output { codec, fingerprint } => (codec, fingerprint),
        };
        let Some(StoredOutput { action_name, fingerprint: of_stored, output }) = &stored.output
        else {
            // Not reached: every row of an idempotency key has an output.
            return Err(DbError::misfit("output", "the idempotency key has none").into());
        };
        let key = || key.key().text.clone();
        if action_name != A::NAME || of_stored != fingerprint {
            return Err(ExecuteError::KeyReused {
                key: key(),
                action: action_name.clone(),
                is_other_action: action_name != A::NAME,
            });
        }
        let answer = (codec.decode)(output)
            .map_err(|source| ExecuteError::StoredOutput { key: key(), source })?;
        Ok((answer, None))
    }

    /// The partial commit of an earlier call, if it is one. While that call may still commit on its
    /// other shards, this waits.
    async fn partial_commit_of(
        &self,
        earlier: &StoredCall,
    ) -> Result<Option<PartialCommit>, DbError> {
        let (shards, began) = (&self.attempt.shards, Instant::now());
        let mut pause = Duration::from_millis(2);
        loop {
            // Asked before the look-up, because the call may end in between. If a caller has used an
            // id twice, this call itself keeps the action open: do not wait for it.
            let is_open =
                earlier.action != self.attempt.action && shards.default().is_open(earlier.action);
            let may_go_on = is_open || began.elapsed() < PATIENCE;
            let found = shards.partial_commit_among(&earlier.shards, earlier.action).await?;
            if found.is_none() || !may_go_on {
                return Ok(found);
            }
            let pausing = self.attempt.deadline.bound(tokio::time::sleep(pause)).await;
            if pausing.is_err() && !is_open {
                return Ok(found); // the deadline hides nothing that is known
            }
            pause = (pause * 2).min(Duration::from_millis(250));
        }
    }
}

fn check_key(text: &str) -> Result<(), PlanError> {
    if text.is_empty() || text.len() > MAX_KEY {
        return Err(PlanError::Key(text.to_owned(), text.len()));
    }
    if text.contains('\0') {
        return Err(PlanError::KeyHoldsNul(text.to_owned()));
    }
    Ok(())
}

fn check_of_message(what: &'static str, text: &str) -> Result<(), PlanError> {
    let (bytes, value) = (text.len(), || text.to_owned());
    if text.is_empty() || bytes > MAX_KEY {
        return Err(PlanError::Message { what, value: value(), bytes });
    }
    if text.contains('\0') {
        return Err(PlanError::MessageHoldsNul { what, value: value() });
    }
    Ok(())
}

/// Whether a call that failed like this may have committed on one of its shards.
fn may_have_committed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::CommitUnknown | ErrorKind::PartlyCommitted)
}

/// Whether looking for the commit of another process is of no use after this failure.
fn is_final(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Plan
            | ErrorKind::Deadline
            | ErrorKind::CommitUnknown
            | ErrorKind::CrossShard
            | ErrorKind::PartlyCommitted
            | ErrorKind::Nested
    )
}
