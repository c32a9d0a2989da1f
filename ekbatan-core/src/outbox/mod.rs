//! Records that are committed together with an action's rows: its events, the keys of idempotent
//! calls, and the parts of actions that commit on several shards.

mod cross_shard;
mod idempotency;
mod records;

pub(crate) use cross_shard::{Part, forget, parts};
pub(crate) use idempotency::{Answered, KeyRecord, fingerprint, look_up};
pub(crate) use records::{ActionRecord, EventRecord, is_recorded, records};
