//! Business operations: the trait that users implement, the plan that they stage changes on,
//! and the executor that commits the plan.

// One call runs through these files from top to bottom. A file uses only files below it.
//
//   executor_builder, executor    build an executor; start a call
//   execution                     what the caller sets before it awaits the call
//   run                           keys, attempts, retries
//   call                          the running call: performs the action, plans the batches
//   executor_state                what all calls of an executor share
//   contention/                   runs one attempt by a strategy; sees a call as `Perform` only
//   commit                        gives the batches to the databases; runs the effects
//   attempt, deadline             the state that a call carries through its attempts
//   shard_batches                 from a plan to one batch per shard
//   place_calls                   what a shard stores of the calls for later
//   key_locks, key_scope          one call at a time per idempotency key or message
//   call_queues                   calls that wait for the same key
//   action, context, plan, enqueue  what users implement, read through and stage on
//   effect                        what runs after a commit
//   params                        the parameters as they are stored
//   retry, error, fence           policies, errors, fences of leases
//
// `contention/options.rs` and `contention/leases.rs` are the lowest files: callers and errors
// name their types.

#[allow(clippy::module_inception)] // a file per type, named after the type
mod action;
mod attempt;
mod call;
mod call_queues;
mod commit;
mod contention;
mod context;
mod deadline;
mod effect;
mod enqueue;
mod error;
mod execution;
mod executor;
mod executor_builder;
mod executor_state;
mod fence;
mod key_locks;
mod key_scope;
mod params;
mod place_calls;
mod plan;
mod plan_error;
mod retry;
mod run;
mod sent_births;
mod shard_batches;
mod trace_parent;

pub use action::Action;
pub use contention::{
    Adaptive, Coalesced, Contention, Handling, HeldLease, HotKey, LeaseError, Leases, Pessimistic,
};
pub use context::ActionContext;
pub use effect::Effect;
pub use enqueue::EnqueuedCall;
pub use error::{BuildError, ContentionError, ErrorKind, ExecuteError};
pub use execution::{Execution, ExecutionWithCommit, Once};
pub use executor::{ActionExecutor, Outcome};
pub use executor_builder::ActionExecutorBuilder;
pub use fence::{AsFence, Fence};
pub use key_scope::KeyScope;
#[doc(hidden)]
pub use params::read_params;
pub use plan::{ActionPlan, StagedChange, StagedEvent};
pub use plan_error::PlanError;
pub use retry::{Budget, RetryPolicy};

pub use crate::outbox::Priority;
