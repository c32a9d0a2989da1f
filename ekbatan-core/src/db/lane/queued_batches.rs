//! Every batch that no lane has taken, and how many bytes they have together.

use std::collections::HashMap;

use super::batches::QueuedBatch;
use crate::db::ActionId;

#[derive(Default)]
pub(super) struct QueuedBatches {
    batches: HashMap<ActionId, QueuedBatch>,
    /// The sum of their bytes.
    bytes: usize,
}

impl QueuedBatches {
    pub(super) fn insert(&mut self, queued: QueuedBatch) {
        self.bytes += queued.bytes;
        if let Some(replaced) = self.batches.insert(queued.batch.action, queued) {
            self.bytes -= replaced.bytes;
        }
    }

    pub(super) fn remove(&mut self, action: ActionId) -> Option<QueuedBatch> {
        let removed = self.batches.remove(&action)?;
        self.bytes -= removed.bytes;
        Some(removed)
    }

    pub(super) fn get(&self, action: ActionId) -> Option<&QueuedBatch> {
        self.batches.get(&action)
    }

    pub(super) fn contains(&self, action: ActionId) -> bool {
        self.batches.contains_key(&action)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &QueuedBatch> {
        self.batches.values()
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
