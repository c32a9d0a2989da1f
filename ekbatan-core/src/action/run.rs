//! Runs a call: idempotency, attempts and retries, until the call has an answer.

use std::collections::BTreeMap;
use std::pin::pin;

use tracing::{Instrument, Span, field};

use super::attempt::CallResult;
use super::call::{Call, CallRequest, Codec, IdempotentCall};
use super::contention::ChosenStrategy;
use super::performing::performed_action;
use super::{Action, ErrorKind, ExecuteError, PlanError};
use crate::db::{DbError, DbErrorKind};
use crate::outbox::{IdempotencyKey, fingerprint};
use crate::shard::{FoundCall, HomedKey};

/// The longest idempotency key, in bytes.
const MAX_KEY: usize = 255;

/// Runs a call to its end.
pub(super) async fn run<A: Action>(
    mut request: CallRequest<'_, A>,
) -> CallResult<A::Output, A::Error> {
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
    let key = request.idempotency_key.take();
    // Pinned here, because what wraps a future copies it, and this one is large.
    let running = pin!(async move {
        if let Some(within) = performed_action() {
            return Err(ExecuteError::Nested { action: A::NAME, within });
        }
        let mut call = Call::begin(request, open)?;
        match key {
            Some((key, codec)) => Box::pin(call.run_idempotent(key, codec)).await,
            None => call.attempt_until_done().await,
        }
    });
    let answer = running.instrument(span.clone()).await;
    if let Err(ExecuteError::FenceLost { key }) = &answer {
        span.in_scope(|| executor.count_fence_refusal(key));
    }
    if answer.is_ok() {
        executor.deliveries.committed();
    }
    match &answer {
        Ok(_) => span.record("ekbatan.action.outcome", "success"),
        Err(error) => span
            .record("ekbatan.action.outcome", "error")
            .record("ekbatan.action.error", field::debug(error.kind())),
    };
    answer
}

impl<A: Action> Call<'_, A> {
    /// Runs a call under an idempotency key, unless an earlier call with the key committed.
    async fn run_idempotent(
        &mut self,
        key: String,
        codec: Codec<A::Output>,
    ) -> CallResult<A::Output, A::Error> {
        if key.is_empty() || key.len() > MAX_KEY {
            let length = key.len();
            return Err(PlanError::Key(key, length).into());
        }
        if key.contains('\0') {
            return Err(PlanError::KeyHoldsNul(key).into());
        }
        let (executor, deadline) = (self.executor, self.attempt.deadline);
        let principal = self.options.principal.as_deref();
        let key = executor.key_scope.key(&executor.namespace, principal, key);
        // Equal keys of this process run one after another. Calls of other processes conflict
        // on the unique key at its home.
        let lock = executor.idempotency_locks.lock(&key);
        self.attempt.key_lock = deadline.bound(lock).await?;
        self.run_with_key(key, codec).await
    }

    async fn run_with_key(
        &mut self,
        key: IdempotencyKey,
        codec: Codec<A::Output>,
    ) -> CallResult<A::Output, A::Error> {
        let (executor, deadline) = (self.executor, self.attempt.deadline);
        let databases = &executor.databases;
        let key = HomedKey::new(key, &executor.key_homes, &databases.shards, &databases.clock);
        let fingerprint = fingerprint(A::NAME, &self.params_json);
        let idempotent = IdempotentCall { key, codec, fingerprint, leaves_home: false };
        if let Some(found) = deadline.bound(idempotent.key.find()).await?? {
            return self.replay(&idempotent, found).await;
        }
        self.idempotent = Some(idempotent);
        let answer = self.attempt_until_done().await;
        if let Some(IdempotentCall { key, leaves_home, .. }) = self.idempotent.take() {
            match &answer {
                Ok((_, Some(_))) if leaves_home => key.complete_soon(self.attempt.action),
                Ok(_) => {}
                Err(error) if may_have_committed(error.kind()) => {}
                Err(_) => key.release_soon(),
            }
        }
        answer
    }

    async fn attempt_until_done(&mut self) -> CallResult<A::Output, A::Error> {
        let executor = self.executor;
        let own_policy = self.options.retry.take();
        let policy = own_policy.as_ref().unwrap_or(&executor.retry);
        let mut chosen = self.choose_strategy()?;
        let mut spent = BTreeMap::<ErrorKind, u32>::new();
        loop {
            Span::current().record("ekbatan.action.retry.count", self.attempt.number - 1);
            let mut error = match executor.strategies.attempt(chosen.as_mut(), self).await {
                Ok(output) => return Ok(output),
                Err(error) => error,
            };
            let mut kind = error.kind();
            // Another process may have committed this very call meanwhile, and that may be the
            // reason why it failed here.
            if let Some(idempotent) = &self.idempotent
                && !is_final(kind)
                && let found = idempotent.key.find()
                && let Ok(Ok(Some(found))) = self.attempt.deadline.bound(found).await
            {
                return self.replay(idempotent, found).await;
            }
            if kind == ErrorKind::Unique && self.is_stopped().await {
                let why = "another call with the idempotency key stopped this one, which took long to commit";
                error = DbError::new(DbErrorKind::Serialization, why).into();
                kind = error.kind();
            }
            if let (ExecuteError::Stale { rows, .. }, Some(mark)) = (&error, &self.options.mark)
                && mark.is_among(rows)
            {
                return Err(ExecuteError::DeliveryLost { handler: mark.handler().to_owned() });
            }
            if kind == ErrorKind::PartlyCommitted {
                return Err(error);
            }
            let retryable = match (&error, &self.retry_if) {
                (ExecuteError::Domain(error), Some(retry_if)) => retry_if(error),
                (ExecuteError::Domain(_), None) => false,
                _ => true,
            };
            let used = spent.entry(kind).or_default();
            let Some(budget) =
                policy.budget(kind).filter(|budget| retryable && *used < budget.retries)
            else {
                return Err(error);
            };
            let in_queue = chosen.as_ref().is_some_and(ChosenStrategy::waits_in_queue);
            let wait = (!in_queue).then(|| executor.jitter(budget.bound(*used)));
            *used += 1;
            tracing::debug!(name: "retry", attempt = self.attempt.number, ?kind, ?wait, "retry");
            if let Some(wait) = wait {
                let waiting = tokio::time::sleep(wait);
                self.attempt.deadline.bound(waiting).await.map_err(|_| error)?;
            }
            self.attempt.number += 1;
        }
    }

    /// The strategy of the call; `None` if it always runs optimistically. A call that brings a
    /// lease excludes others by that lease already. Waiting for another lease, or in a group
    /// that waits for this very lease, could deadlock.
    fn choose_strategy(&self) -> Result<Option<ChosenStrategy>, ExecuteError<A::Error>> {
        // A group would not know which of its members has lost its delivery.
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
        let Some(IdempotentCall { key, .. }) = &self.idempotent else { return false };
        matches!(self.attempt.deadline.bound(key.is_stopped()).await, Ok(Ok(true)))
    }

    /// Returns the stored output of the earlier call with the key.
    async fn replay(
        &self,
        idempotent: &IdempotentCall<A::Output>,
        found: FoundCall,
    ) -> CallResult<A::Output, A::Error> {
        let IdempotentCall { key, codec, fingerprint, .. } = idempotent;
        let stored = &found.call;
        if stored.shards.len() > 1 {
            let partial = self.attempt.shards.partial_commit_among(&stored.shards, stored.action);
            if let Some(partial) = self.attempt.deadline.bound(partial).await?? {
                return Err(ExecuteError::of_partial(partial));
            }
        }
        if !stored.shards.is_empty() {
            key.complete_found(&found);
        }
        let key = || key.key().text.clone();
        if stored.action_name != A::NAME || stored.fingerprint != *fingerprint {
            let action = stored.action_name.clone();
            return Err(ExecuteError::KeyReused { key: key(), action });
        }
        let output = (codec.decode)(&stored.output)
            .map_err(|source| ExecuteError::StoredOutput { key: key(), source })?;
        Ok((output, None))
    }
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
