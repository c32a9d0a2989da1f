//! Records that are committed together with an action's rows: its events, the keys of idempotent
//! calls, the messages that were handled, the calls that run later, and the parts of actions that commit
//! on several shards.

mod call_key;
mod claims;
mod cross_shard;
pub mod deliveries;
mod enqueued;
mod key_rows;
mod mark;
mod old_rows;
mod old_step_keys;
mod priority;
mod records;
mod retention;
mod stored_id;

pub(crate) use call_key::{CallKey, KeyKind};
pub(crate) use claims::{decided, decision, delete_claim, delete_decision, insert, mark_complete};
pub(crate) use cross_shard::{Part, forget, parts};
pub(crate) use enqueued::{
    CallRecord, EnqueueStep, EnqueuedKey, EnqueuedKeyState, KeyUse, PlacedCall,
};
pub(crate) use key_rows::{KeyRecord, StoredCall, StoredOutput, fingerprint, look_up};
pub use mark::Mark;
pub(crate) use mark::{MarkedRow, MarkedWork};
pub use old_rows::OldRows;
pub use old_step_keys::{OldStepKey, StepOwner, job_step_key, step_key};
pub(crate) use old_step_keys::{delete_step_keys, has_old_step_claims, old_step_keys, open_runs};
pub use priority::Priority;
pub(crate) use records::{ActionRecord, EventRecord, is_recorded, records};
pub use retention::CENTURY;
pub(crate) use retention::prune;
pub use stored_id::StoredId;
