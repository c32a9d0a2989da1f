//! A call of an action: the caller configures it, and awaiting it runs it.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::call::{CallOptions, CallRequest, CallResult, Codec, RequestedKey};
use super::executor_state::ExecutorState;
use super::fence::fenced_by;
use super::run::run;
use super::trace_parent;
use super::{Action, AsFence, Contention, ExecuteError, RetryPolicy};
use crate::db::{ActionId, Committed, outside_transaction};
use crate::domain::{LockKey, ShardIdentifier, checked_json};
use crate::outbox::Mark;

/// A call that runs when it is awaited.
///
/// Dropping the future before a lane has taken the commit, and before the call has joined a
/// [group](super::Coalesced), leaves nothing behind. Dropping it later does not stop the commit. In
/// both cases `executor.outcome(id)` returns what happened.
///
/// It is no future yet, and it borrows the executor and the action. To spawn it, move both into the
/// task: `tokio::spawn(async move { executor.execute(&action, params).await })`. To give it to a
/// function that takes a future, call `into_future()`.
///
/// It answers the output of the action, or what [`once`](Execution::once) says.
#[must_use = "a call does nothing until it is awaited"]
pub struct Execution<'a, A: Action, O: 'a = <A as Action>::Output>(CallRequest<'a, A, O>);

/// What a call answers that handles a message [once](Execution::once). Acknowledge the message in
/// both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Once<O> {
    /// The call has handled the message. This is the output of the action.
    Done(O),
    /// An earlier call has handled the message. This one has done nothing.
    Duplicate,
}

/// A call that returns the result of its commit beside its output; see
/// [`Execution::with_commit`].
#[must_use = "a call does nothing until it is awaited"]
pub struct ExecutionWithCommit<'a, A: Action, O: 'a = <A as Action>::Output>(Execution<'a, A, O>);

impl<'a, A: Action> Execution<'a, A> {
    pub(super) fn new(executor: &'a ExecutorState, action: &'a A, params: A::Params) -> Self {
        Self(CallRequest {
            executor,
            action,
            params,
            id: ActionId(executor.ids.next_uuid()),
            options: CallOptions::default(),
            key: None,
            retry_if: None,
            answer: |output| output,
        })
    }

    /// Makes the call safe to repeat. The first call with this key commits. Every later call
    /// with the same parameters returns the stored output and does not run; with other
    /// parameters it fails. The key is unique within the call's principal, unless
    /// [`key_scope`](super::ActionExecutorBuilder::key_scope) says otherwise.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self
    where
        A::Output: Serialize + DeserializeOwned,
    {
        let codec = Codec { encode: checked_json, decode: |text| serde_json::from_str(text) };
        self.0.key = Some(RequestedKey::Idempotency { text: key.into(), codec });
        self
    }

    /// Lets the call handle a message from outside, of a broker or a webhook, once: its commit
    /// stores the consumer and the id of the message. A later call for the same message, whatever
    /// its action, parameters and principal, answers [`Once::Duplicate`] and does not run. If the
    /// call fails, nothing is stored, and the message can be tried again.
    ///
    /// The consumer says who handles the message; each consumer handles it. Acknowledge the message
    /// after the answer, in both cases. The id must be that of the message, and not of its delivery.
    ///
    /// ```
    /// # use ekbatan_core::action::{Action, ActionExecutor, ExecuteError, Once};
    /// # async fn run<A: Action>(executor: &ActionExecutor, action: A, params: A::Params, id: &str) -> Result<(), ExecuteError<A::Error>> {
    /// match executor.execute(&action, params).once("payments", id).await? {
    ///     Once::Done(output) => drop(output),
    ///     Once::Duplicate => println!("{id} was handled before"),
    /// }
    /// // Now acknowledge it.
    /// # Ok(()) }
    /// ```
    pub fn once(
        self,
        consumer: impl Into<String>,
        message_id: impl Into<String>,
    ) -> Execution<'a, A, Once<A::Output>> {
        let CallRequest { executor, action, params, id, mut options, key, retry_if, .. } = self.0;
        options.has_two_keys = key.is_some();
        let (consumer, message) = (consumer.into(), message_id.into());
        let key = RequestedKey::Message { consumer, id: message, duplicate: || Once::Duplicate };
        let (key, answer) = (Some(key), Once::Done as fn(A::Output) -> _);
        Execution(CallRequest { executor, action, params, id, options, key, retry_if, answer })
    }
}

impl<'a, A: Action, O> Execution<'a, A, O> {
    /// The identity of the call, for [`ActionExecutor::outcome`](super::ActionExecutor::outcome).
    pub fn action_id(&self) -> ActionId {
        self.0.id
    }

    /// Sets the identity, for callers that must know it before anything runs. It must never
    /// have been used before.
    pub fn with_action_id(mut self, id: Uuid) -> Self {
        self.0.id = ActionId(id);
        self
    }

    /// Sets who makes the call. It is stored with the events.
    pub fn principal(mut self, principal: impl Into<String>) -> Self {
        self.0.options.principal = Some(principal.into());
        self
    }

    /// Sets the reason of the call. It is stored with the events.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.0.options.reason = Some(reason.into());
        self
    }

    /// Sets the W3C trace context. It is stored with the events. A text that is no `traceparent` of
    /// the W3C is dropped with a warning.
    pub fn trace_parent(mut self, trace_parent: impl Into<String>) -> Self {
        self.0.options.trace_parent = trace_parent::accepted(trace_parent.into());
        self
    }

    /// Sets which failures are retried, instead of the executor's own policy.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.0.options.retry = Some(policy);
        self
    }

    /// Sets which of the action's own errors are retried, within the policy's budget for
    /// [`ErrorKind::Domain`](super::ErrorKind::Domain).
    pub fn retry_if(mut self, retry: impl Fn(&A::Error) -> bool + Send + Sync + 'static) -> Self {
        self.0.retry_if = Some(Box::new(retry));
        self
    }

    /// Sets the maximum time of the call, retries and waits included, instead of the executor's
    /// own; `Duration::MAX` for none. A deadline that passes before a lane has taken the commit, and
    /// before the call has joined a [group](super::Coalesced), leaves nothing behind: with
    /// `Duration::ZERO` the action does not even run. A deadline does not stop a group.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.0.options.deadline = Some(after);
        self
    }

    /// Lets the call commit only while this lease is valid, and every other lease that the
    /// call was fenced by before.
    pub fn fenced_by(mut self, lease: &(impl AsFence + ?Sized)) -> Self {
        let before = self.0.options.fencing.take();
        let shards = &self.0.executor.databases.shards;
        self.0.options.fencing = Some(fenced_by(shards, before.as_deref(), lease));
        self
    }

    /// Allows a plan that touches several shards. They commit one after another, in the order
    /// of the shards. After the first commit nothing is retried; a later failure is
    /// [`ExecuteError::PartlyCommitted`], and
    /// [`Databases::partial_commits`](crate::shard::Databases::partial_commits) lists the action.
    pub fn allow_cross_shard(mut self) -> Self {
        self.0.options.allow_cross_shard = true;
        self
    }

    /// Lets the call commit beside a transaction that the task has open on the same database. Its
    /// commit stays even if the transaction is rolled back. Without this the call is refused. On
    /// SQLite it is refused always: the transaction is the one writer.
    pub fn outside_transaction(mut self) -> Self {
        self.0.options.outside_transaction = true;
        self
    }

    /// Sets how the call deals with others that want the same key, instead of what the action
    /// or the executor says. A call that is [fenced by a lease](Execution::fenced_by) always
    /// runs optimistically, and so does one whose commit carries the mark of a delivery or of a
    /// run of a job.
    pub fn contention(mut self, contention: impl Into<Contention>) -> Self {
        self.0.options.contention = Some(contention.into());
        self
    }

    /// Sets the keys that the call contends for, instead of the action's own.
    pub fn contention_keys(mut self, keys: impl IntoIterator<Item = LockKey>) -> Self {
        self.0.options.contention_keys = keys.into_iter().collect();
        self
    }

    /// Returns the result of the commit beside the output; `None` if an earlier call with the
    /// same idempotency key or message has committed. On shards with replicas it carries the token that
    /// keeps a reader from a replica that lags.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ekbatan_core::action::{Action, ActionExecutor, ExecuteError};
    /// # use ekbatan_core::domain::{Entity, EntityId};
    /// # async fn run<A: Action, T: Entity>(executor: &ActionExecutor, action: A, params: A::Params, id: T::Id) -> Result<(), Box<dyn std::error::Error>>
    /// # where A::Error: std::error::Error + 'static {
    /// let (_, committed) = executor.execute(&action, params).with_commit().await?;
    /// let mut rows = executor.databases().repository::<T>();
    /// if let Some(token) = committed.and_then(|committed| committed.token) {
    ///     rows = rows.on_replica_after(&token, Duration::from_millis(100));
    /// }
    /// let row = rows.get(id).await?;
    /// # Ok(()) }
    /// ```
    pub fn with_commit(mut self) -> ExecutionWithCommit<'a, A, O> {
        self.0.options.wants_token = true;
        ExecutionWithCommit(self)
    }

    /// Keeps the row of the key on this shard, whatever other shards there are. All calls with the key must
    /// name it.
    #[doc(hidden)]
    pub fn key_on(mut self, shard: ShardIdentifier) -> Self {
        self.0.options.key_shard = Some(shard);
        self
    }

    /// Lets the commit carry a mark. If its row is not as it was read, nothing is committed.
    #[doc(hidden)]
    pub fn marking(mut self, mark: Mark) -> Self {
        self.0.options.mark = Some(mark);
        self
    }
}

impl<'a, A: Action, O: Send> IntoFuture for Execution<'a, A, O> {
    type Output = Result<O, ExecuteError<A::Error>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { start(self.0).await.map(|(output, _)| output) })
    }
}

impl<'a, A: Action, O: Send> IntoFuture for ExecutionWithCommit<'a, A, O> {
    type Output = Result<(O, Option<Committed>), ExecuteError<A::Error>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(start(self.0.0))
    }
}

async fn start<A: Action, O: Send>(request: CallRequest<'_, A, O>) -> CallResult<O, A::Error> {
    if request.options.outside_transaction {
        Box::pin(outside_transaction(run(request))).await
    } else {
        run(request).await
    }
}

impl<A: Action, O> std::fmt::Debug for Execution<'_, A, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Execution")
            .field("action", &A::NAME)
            .field("id", &self.0.id)
            .finish_non_exhaustive()
    }
}

impl<A: Action, O> std::fmt::Debug for ExecutionWithCommit<'_, A, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecutionWithCommit").field("call", &self.0).finish_non_exhaustive()
    }
}
