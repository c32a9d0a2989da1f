//! Records that are committed together with an action's rows: its events, the keys of idempotent
//! calls, and the parts of actions that commit on several shards.

mod claims;
mod cross_shard;
pub mod deliveries;
mod idempotency;
mod records;
mod retention;

pub(crate) use claims::{decided, decision, delete_claim, delete_decision, insert, mark_complete};
pub(crate) use cross_shard::{Part, forget, parts};
pub(crate) use idempotency::{IdempotencyKey, KeyRecord, StoredCall, fingerprint, look_up};
pub(crate) use records::{ActionRecord, EventRecord, is_recorded, records};
pub(crate) use retention::prune;
