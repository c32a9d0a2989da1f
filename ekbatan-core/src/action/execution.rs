//! A call of an action: what the caller says about it before awaiting it.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::contention::Waited;
use super::{Action, ActionExecutor, AsFence, Contention, ExecuteError, RetryPolicy};
use crate::db::{ActionId, Committed, OpenAction};
use crate::domain::LockKey;
use crate::shard::Fencing;

/// How an output is kept under an idempotency key.
pub(super) struct Codec<O> {
    pub(super) encode: fn(&O) -> Result<String, serde_json::Error>,
    pub(super) decode: fn(&str) -> Result<O, serde_json::Error>,
}

/// What a caller may say of a call.
#[derive(Default)]
pub(super) struct Options {
    pub(super) principal: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) trace_parent: Option<String>,
    pub(super) retry: Option<RetryPolicy>,
    pub(super) deadline: Option<Duration>,
    /// The fences of the leases under which it runs, and where they stand.
    pub(super) fencing: Option<Arc<Fencing>>,
    pub(super) allow_cross_shard: bool,
    pub(super) contention: Option<Contention>,
    pub(super) contention_key: Option<LockKey>,
    /// Whether the caller wants to know how far the shards have come.
    pub(super) token: bool,
}

type RetryIf<E> = Box<dyn Fn(&E) -> bool + Send + Sync>;

/// A call that runs when it is awaited.
///
/// Dropping the future before the commit has begun leaves nothing; dropping it later does
/// not stop the commit. Either way `executor.outcome(id)` tells which it was.
#[must_use = "a call does nothing until it is awaited"]
pub struct Execution<'a, A: Action> {
    pub(super) executor: &'a ActionExecutor,
    pub(super) action: &'a A,
    pub(super) params: A::Params,
    pub(super) id: ActionId,
    pub(super) options: Options,
    pub(super) key: Option<(String, Codec<A::Output>)>,
    pub(super) retry_if: Option<RetryIf<A::Error>>,
    /// While it is there, whoever asks for the outcome waits.
    pub(super) open: Mutex<Option<OpenAction>>,
    /// What others wait for until this call has committed.
    pub(super) waited: Mutex<Waited>,
}

impl<'a, A: Action> Execution<'a, A> {
    pub(super) fn new(executor: &'a ActionExecutor, action: &'a A, params: A::Params) -> Self {
        Self {
            executor,
            action,
            params,
            id: ActionId(executor.new_uuid()),
            options: Options::default(),
            key: None,
            retry_if: None,
            open: Mutex::default(),
            waited: Mutex::default(),
        }
    }

    /// The identity under which the outcome can be asked later.
    pub fn action_id(&self) -> ActionId {
        self.id
    }

    /// Chooses the identity, for callers that must know it before anything runs. It must
    /// never have been used.
    pub fn with_action_id(mut self, id: Uuid) -> Self {
        self.id = ActionId(id);
        self
    }

    /// Who asks; stored with the events.
    pub fn principal(mut self, principal: impl Into<String>) -> Self {
        self.options.principal = Some(principal.into());
        self
    }

    /// Why; stored with the events.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.options.reason = Some(reason.into());
        self
    }

    /// The W3C trace context to store with the events.
    pub fn trace_parent(mut self, trace_parent: impl Into<String>) -> Self {
        self.options.trace_parent = Some(trace_parent.into());
        self
    }

    /// Which failures are tried again, instead of the executor's own policy.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.options.retry = Some(policy);
        self
    }

    /// Which of the action's own errors are tried again, within the policy's budget for
    /// [`ErrorKind::Domain`](super::ErrorKind::Domain).
    pub fn retry_if(mut self, retry: impl Fn(&A::Error) -> bool + Send + Sync + 'static) -> Self {
        self.retry_if = Some(Box::new(retry));
        self
    }

    /// How long it all may take, retries and waits included.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.options.deadline = Some(after);
        self
    }

    /// Lets the commit go through only while this lease holds, and every other one that the
    /// call was fenced by before.
    pub fn fenced_by(mut self, lease: &impl AsFence) -> Self {
        let before = self.options.fencing.take();
        self.options.fencing = Some(self.executor.fencing(before.as_deref(), lease));
        self
    }

    /// Lets the plan touch several shards, which then commit one by one, in their order.
    /// Nothing is tried again once one has committed; what then fails is
    /// [`ExecuteError::PartlyCommitted`] and stays on the list of
    /// [`Databases::partial_commits`](crate::shard::Databases::partial_commits).
    pub fn allow_cross_shard(mut self) -> Self {
        self.options.allow_cross_shard = true;
        self
    }

    /// How the call deals with others that want the same key, whatever the action or the
    /// executor says. A call that is [fenced by a lease](Execution::fenced_by) runs as it is.
    pub fn contention(mut self, contention: impl Into<Contention>) -> Self {
        self.options.contention = Some(contention.into());
        self
    }

    /// What the call contends for, whatever the action says.
    pub fn contention_key(mut self, key: LockKey) -> Self {
        self.options.contention_key = Some(key);
        self
    }

    /// Runs the call and answers, beside the output, what is known of its commit: nothing if
    /// an earlier call with the same idempotency key had committed. Where shards have
    /// replicas it carries the token that keeps a reader from one that lags.
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
    pub async fn with_commit(
        mut self,
    ) -> Result<(A::Output, Option<Committed>), ExecuteError<A::Error>> {
        self.options.token = true;
        Box::pin(self.run()).await
    }

    /// Makes the call safe to repeat: the first one with this key commits, and every later
    /// one with the same parameters gets its output without running. Other parameters are
    /// an error. The key counts within the executor's namespace.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self
    where
        A::Output: Serialize + DeserializeOwned,
    {
        let codec =
            Codec { encode: serde_json::to_string, decode: |text| serde_json::from_str(text) };
        self.key = Some((key.into(), codec));
        self
    }
}

impl<'a, A: Action> IntoFuture for Execution<'a, A> {
    type Output = Result<A::Output, ExecuteError<A::Error>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { self.run().await.map(|(output, _)| output) })
    }
}
