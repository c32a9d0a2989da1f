//! Business operations: the trait that users write, the plan that they stage on, and the
//! executor that commits it.

#[allow(clippy::module_inception)] // a file per type, named after the type
mod action;
mod commit;
mod contention;
mod context;
mod effect;
mod error;
mod execution;
mod executor;
mod fence;
mod gate;
mod parts;
mod persist;
mod plan;
mod retry;

pub use action::Action;
pub use contention::{
    Adaptive, Coalesced, Contention, Handling, HeldLease, HotKey, LeaseError, Leases, Pessimistic,
};
pub use context::ActionContext;
pub use effect::Effect;
pub use error::{BuildError, ContentionError, ErrorKind, ExecuteError, PlanError};
pub use execution::Execution;
pub use executor::{ActionExecutor, ActionExecutorBuilder, Outcome};
pub use fence::{AsFence, Fence};
pub use plan::{ActionPlan, StagedChange, StagedEvent};
pub use retry::{Budget, RetryPolicy};
