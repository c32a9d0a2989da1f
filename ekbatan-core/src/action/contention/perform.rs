//! What a contention strategy needs of a call, and the optimistic strategy.

use std::pin::pin;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::action::attempt::{Attempt, CallResult};
use crate::action::commit::commit;
use crate::action::shard_batches::Planned;
use crate::action::{ActionPlan, ExecuteError};
use crate::repository::PendingReads;

/// A call, as the strategies see it. It can be performed any number of times; each time makes
/// a plan that is to be committed.
pub(in crate::action) trait Perform: Send {
    type Output: Send;
    type Error: Send;

    /// The state that the call carries through its attempts.
    fn attempt(&mut self) -> &mut Attempt;

    /// Runs the action. Its reads go through the pending rows of earlier calls, if given.
    fn perform(
        &mut self,
        pending: Option<Arc<dyn PendingReads>>,
    ) -> impl Future<Output = Result<Performed<Self::Output>, ExecuteError<Self::Error>>> + Send;

    /// Turns what was staged into batches.
    fn plan(
        &mut self,
        performed: Performed<Self::Output>,
    ) -> impl Future<Output = Result<(Self::Output, Planned), ExecuteError<Self::Error>>> + Send;
}

/// The result of an action that ran and is not committed.
pub(in crate::action) struct Performed<O> {
    pub(in crate::action) output: O,
    pub(in crate::action) plan: ActionPlan,
    pub(in crate::action) started: DateTime<Utc>,
}

/// The optimistic strategy: perform, plan, commit. Calls `release` as [`commit`] does.
pub(super) async fn optimistic<C: Perform>(
    call: &mut C,
    release: impl FnOnce() + Send,
) -> CallResult<C::Output, C::Error> {
    call.attempt().check_lease()?;
    let deadline = call.attempt().deadline;
    let performed = {
        // Pinned here, because what wraps a future copies it.
        let performing = pin!(call.perform(None));
        deadline.bound(performing).await??
    };
    commit_performed(call, performed, release).await
}

/// Plans and commits what an action has staged.
pub(super) async fn commit_performed<C: Perform>(
    call: &mut C,
    performed: Performed<C::Output>,
    release: impl FnOnce() + Send,
) -> CallResult<C::Output, C::Error> {
    let (output, planned) = call.plan(performed).await?;
    let committed = commit(call.attempt(), planned, release).await?;
    Ok((output, Some(committed)))
}
