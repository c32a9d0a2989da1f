//! Actions that this process has not finished: batches that are queued or in flight, and callers
//! that still work on them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::db::ActionId;

#[derive(Default)]
pub(super) struct OpenActions {
    /// How many guards each action has.
    counts: Mutex<HashMap<ActionId, usize>>,
    closed_one: Notify,
}

/// Guard: the action is open until this is dropped.
pub(crate) struct OpenAction {
    actions: Arc<OpenActions>,
    action: ActionId,
}

impl OpenActions {
    pub(super) fn open(self: &Arc<Self>, action: ActionId) -> OpenAction {
        *self.counts().entry(action).or_default() += 1;
        OpenAction { actions: self.clone(), action }
    }

    pub(super) fn is_open(&self, action: ActionId) -> bool {
        self.counts().contains_key(&action)
    }

    /// Waits until no guard of the action is left.
    pub(super) async fn settled(&self, action: ActionId) {
        loop {
            // Register before checking, so that a notification in between is not missed.
            let closed_one = self.closed_one.notified();
            if !self.is_open(action) {
                return;
            }
            closed_one.await;
        }
    }

    /// The map is consistent between statements, so a panic elsewhere does not invalidate it.
    fn counts(&self) -> MutexGuard<'_, HashMap<ActionId, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenAction {
    fn drop(&mut self) {
        let mut counts = self.actions.counts();
        if let Some(count) = counts.get_mut(&self.action) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.action);
            }
        }
        drop(counts);
        self.actions.closed_one.notify_waiters();
    }
}
