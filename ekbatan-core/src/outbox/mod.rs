//! What is written beside the rows: events, and the keys of idempotent calls.

mod idempotency;
mod records;

pub(crate) use idempotency::{Answered, KEYS, KeyRecord, fingerprint, look_up};
pub(crate) use records::{ActionRecord, EVENTS, EventRecord, records};
