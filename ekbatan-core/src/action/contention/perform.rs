//! What a contention strategy needs of a call, and the optimistic strategy.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;

use crate::action::ActionPlan;
use crate::action::attempt::Attempt;
use crate::action::commit::commit;
use crate::action::error::AttemptError;
use crate::action::shard_batches::Planned;
use crate::db::Committed;
use crate::repository::PendingReads;

/// A call, as the strategies see it. It can be performed any number of times; each time makes
/// a plan that is to be committed. It keeps what its action returned the last time.
pub(in crate::action) trait Perform: Send {
    /// The state that the call carries through its attempts.
    fn attempt(&mut self) -> &mut Attempt;

    /// Runs the action. Its reads go through the pending rows of earlier calls, if given.
    fn perform(
        &mut self,
        pending: Option<Arc<dyn PendingReads>>,
    ) -> BoxFuture<'_, Result<Performed, AttemptError>>;

    /// Turns what was staged into batches.
    fn plan(&mut self, performed: Performed) -> BoxFuture<'_, Result<Planned, AttemptError>>;
}

/// What an action has staged that ran and is not committed.
pub(in crate::action) struct Performed {
    pub(in crate::action) plan: ActionPlan,
    pub(in crate::action) started: DateTime<Utc>,
}

/// The optimistic strategy: perform, plan, commit. Calls `release` as [`commit`] does.
pub(super) async fn optimistic(
    call: &mut dyn Perform,
    release: impl FnOnce() + Send,
) -> Result<Committed, AttemptError> {
    call.attempt().check_lease()?;
    let deadline = call.attempt().deadline;
    let performed = deadline.bound(call.perform(None)).await??;
    commit_performed(call, performed, release).await
}

/// Plans and commits what an action has staged.
pub(super) async fn commit_performed(
    call: &mut dyn Perform,
    performed: Performed,
    release: impl FnOnce() + Send,
) -> Result<Committed, AttemptError> {
    let planned = call.plan(performed).await?;
    commit(call.attempt(), planned, release).await
}
