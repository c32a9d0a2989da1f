//! The executor: runs actions and commits what they stage.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::contention::HotKey;
use super::executor_state::ExecutorState;
use super::{Action, Execution};
use crate::db::{ActionId, DbError};
use crate::domain::ShardIdentifier;
use crate::outbox::deliveries::DeliveryHub;
use crate::outbox::is_recorded;
use crate::shard::{Databases, visit};

/// Runs actions. Cheap to clone.
#[derive(Clone)]
pub struct ActionExecutor {
    pub(super) state: Arc<ExecutorState>,
}

/// What happened to an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Everything that it staged is in the database, or it committed in part and
    /// [`Databases::resolve_partial_commit`] was called for it, whether its parts were completed or undone.
    Committed,
    /// Some of its shards have committed and others have not; see
    /// [`Databases::partial_commits`].
    PartlyCommitted,
    /// Nothing of it is in the database, and nothing ever will be.
    NotCommitted,
}

impl ActionExecutor {
    /// A call of an action, which runs when it is awaited:
    ///
    /// ```
    /// # use ekbatan_core::action::{Action, ActionExecutor, ExecuteError};
    /// # async fn run<A: Action>(executor: &ActionExecutor, action: A, params: A::Params) -> Result<A::Output, ExecuteError<A::Error>> {
    /// let output = executor.execute(&action, params).principal("alice").await?;
    /// # Ok(output) }
    /// ```
    pub fn execute<'a, A: Action>(&'a self, action: &'a A, params: A::Params) -> Execution<'a, A> {
        Execution::new(&self.state, action, params)
    }

    /// The keys on which [adaptive](super::Contention::Adaptive) calls conflict at present,
    /// the hottest first, and how their calls run.
    pub fn hot_keys(&self) -> Vec<HotKey> {
        self.state.strategies.hot_keys()
    }

    /// Returns whether an execution committed.
    ///
    /// While this process still works on it, this waits: also for a call that is kept but not polled,
    /// so drop that call, or poll it meanwhile. For an execution that is
    /// still running in another process, `NotCommitted` can change later. A shard that cannot
    /// be reached is an error only if the other shards do not decide the result.
    pub async fn outcome(&self, action: ActionId) -> Result<Outcome, DbError> {
        let shards = &self.state.databases.shards;
        // An execution is open on the default shard until it ends, also if it commits on other
        // shards, so this must come before the other shards are asked.
        shards.default().settled(action).await;
        let asked = shards.all().map(|database| async move {
            database.settled(action).await;
            is_recorded(database, action).await
        });
        let (mut found, mut failure) = (false, None);
        for answer in visit(asked.collect()).await {
            match answer {
                Ok(recorded) => found |= recorded,
                Err(error) => failure = Some(error),
            }
        }
        match (found, failure) {
            (false, Some(error)) => return Err(error),
            (false, None) => return Ok(Outcome::NotCommitted),
            (true, _) if shards.is_single() => return Ok(Outcome::Committed),
            (true, _) => {}
        }
        match shards.partial_commit(action).await? {
            None => Ok(Outcome::Committed),
            Some(_) => Ok(Outcome::PartlyCommitted),
        }
    }

    /// The home of an idempotency key: the shard that must be reachable for a call of this
    /// principal with the key, beside the shards that the call reads and writes.
    pub fn key_home(&self, principal: Option<&str>, key: &str) -> ShardIdentifier {
        let ExecutorState { key_scope, key_homes, namespace, databases, .. } = &*self.state;
        let key = key_scope.key(namespace, principal, key.to_owned());
        key_homes.home(&databases.shards, &key).shard
    }

    /// The home of a message: the shard that must be reachable for a call that handles it
    /// [once](Execution::once), beside the shards that the call reads and writes.
    pub fn message_home(&self, consumer: &str, id: &str) -> ShardIdentifier {
        let key = self.state.message_key(consumer.to_owned(), id.to_owned());
        self.state.key_homes.home(&self.state.databases.shards, &key).shard
    }

    /// What the events of the executor's calls are delivered to.
    #[doc(hidden)]
    pub fn deliveries(&self) -> &Arc<DeliveryHub> {
        &self.state.deliveries
    }

    /// The databases.
    pub fn databases(&self) -> &Databases {
        &self.state.databases
    }

    /// The number of effects that failed after their commit, since the executor was built.
    pub fn effect_failures(&self) -> u64 {
        self.state.effects.failures()
    }

    /// The number of calls that were refused because a lease that fenced them had ended, since
    /// the executor was built.
    pub fn fence_refusals(&self) -> u64 {
        self.state.fence_refusals.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for ActionExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActionExecutor")
            .field("namespace", &self.state.namespace)
            .field("databases", &self.state.databases)
            .finish_non_exhaustive()
    }
}
