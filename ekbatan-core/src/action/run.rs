//! Runs a call: idempotency, attempts and retries, until the call has an answer.

use std::collections::BTreeMap;

use tracing::{Instrument, Span, field};

use super::attempt::CallResult;
use super::call::{Call, CallRequest, Codec, IdempotentCall};
use super::contention::ChosenStrategy;
use super::{Action, ErrorKind, ExecuteError, PlanError};
use crate::outbox::{Answered, fingerprint, look_up};
use crate::shard::visit;

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
    let running = async move {
        let mut call = Call::begin(request, open)?;
        match key {
            Some((key, codec)) => call.run_idempotent(key, codec).await,
            None => call.attempt_until_done().await,
        }
    };
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
        let fingerprint = fingerprint(A::NAME, &self.params_json);
        let idempotent = IdempotentCall { key, codec, fingerprint };
        let (executor, deadline) = (self.executor, self.attempt.deadline);
        // Equal keys of this process run one after another. Calls of other processes conflict
        // on the unique key in the commit.
        let _guard = deadline.bound(executor.idempotency_locks.lock(&idempotent.key)).await?;
        let answered = deadline.bound(self.find_answer(&idempotent.key)).await??;
        if let Some(answered) = answered {
            return self.replay(&idempotent, answered).await;
        }
        self.idempotent = Some(idempotent);
        self.attempt_until_done().await
    }

    /// Looks up what an earlier call with the key committed.
    async fn find_answer(&self, key: &str) -> Result<Option<Answered>, ExecuteError<A::Error>> {
        let (shards, namespace) = (&self.attempt.shards, &self.executor.namespace);
        // The key is stored on the shard where the action committed, which is not known here.
        let asked = shards.all().map(|database| look_up(database, namespace, key, A::NAME));
        let mut failure = None;
        for found in visit(asked.collect()).await {
            match found {
                Ok(None) => {}
                // A key is stored on one shard only.
                Ok(found) => return Ok(found),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(None), |error| Err(error.into()))
    }

    async fn attempt_until_done(&mut self) -> CallResult<A::Output, A::Error> {
        let executor = self.executor;
        let own_policy = self.options.retry.take();
        let policy = own_policy.as_ref().unwrap_or(&executor.retry);
        let chosen = self.choose_strategy()?;
        let mut spent = BTreeMap::<ErrorKind, u32>::new();
        loop {
            Span::current().record("ekbatan.action.retry.count", self.attempt.number - 1);
            let error = match executor.strategies.attempt(chosen.as_ref(), self).await {
                Ok(output) => return Ok(output),
                Err(error) => error,
            };
            let kind = error.kind();
            // Another process may have committed this very call meanwhile, and that may be the
            // reason why it failed here.
            if let Some(idempotent) = &self.idempotent
                && !is_final(kind)
                && let found = self.find_answer(&idempotent.key)
                && let Ok(Ok(Some(answered))) = self.attempt.deadline.bound(found).await
            {
                return self.replay(idempotent, answered).await;
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
            let wait = executor.jitter(budget.bound(*used));
            *used += 1;
            tracing::debug!(name: "retry", attempt = self.attempt.number, ?kind, ?wait, "retry");
            let waiting = tokio::time::sleep(wait);
            self.attempt.deadline.bound(waiting).await.map_err(|_| error)?;
            self.attempt.number += 1;
        }
    }

    /// The strategy of the call; `None` if it always runs optimistically. A call that brings a
    /// lease excludes others by that lease already. Waiting for another lease, or in a group
    /// that waits for this very lease, could deadlock.
    fn choose_strategy(&self) -> Result<Option<ChosenStrategy>, ExecuteError<A::Error>> {
        if self.attempt.fencing.is_some() {
            return Ok(None);
        }
        let own = self.options.contention.clone().or_else(|| self.action.contention());
        let key = || {
            let named = self.options.contention_key.clone();
            named.or_else(|| self.action.contention_key(&self.params))
        };
        Ok(self.executor.strategies.choose(A::NAME, own, key)?)
    }

    /// Returns the stored output of the earlier call with the key.
    async fn replay(
        &self,
        idempotent: &IdempotentCall<A::Output>,
        answered: Answered,
    ) -> CallResult<A::Output, A::Error> {
        let shards = &self.attempt.shards;
        if !shards.is_single() {
            let partial = shards.partial_commit(answered.action);
            if let Some(partial) = self.attempt.deadline.bound(partial).await?? {
                return Err(ExecuteError::of_partial(partial));
            }
        }
        let IdempotentCall { key, codec, fingerprint } = idempotent;
        if answered.action_name != A::NAME || answered.fingerprint != *fingerprint {
            return Err(ExecuteError::KeyReused { key: key.clone(), action: answered.action_name });
        }
        let output = (codec.decode)(&answered.output)
            .map_err(|source| ExecuteError::StoredOutput { key: key.clone(), source })?;
        Ok((output, None))
    }
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
    )
}
