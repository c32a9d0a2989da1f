//! The callers of a database that wait at its [barrier](super::transaction_barrier).

use std::sync::atomic::AtomicU64;

use tokio::sync::Mutex;

#[derive(Default)]
pub(crate) struct BarrierQueue {
    /// How many callers have arrived.
    pub(super) arrived: AtomicU64,
    /// How many of them have passed. Held by the one that waits for all of them.
    pub(super) passed: Mutex<u64>,
    /// The sessions whose transactions this caller waits for, for messages.
    pub(super) awaited: std::sync::Mutex<Vec<String>>,
}
