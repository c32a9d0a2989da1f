//! What is written beside the rows: events, the keys of idempotent calls, and the trail of
//! actions that commit on several shards.

mod cross_shard;
mod idempotency;
mod records;

pub(crate) use cross_shard::{Part, forget, parts};
pub(crate) use idempotency::{Answered, KeyRecord, fingerprint, look_up};
pub(crate) use records::{ActionRecord, EventRecord, is_recorded, records};
