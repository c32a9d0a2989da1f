//! Actions that this process has not finished: batches that are queued or in flight, and callers
//! that still work on them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::db::ActionId;

#[derive(Default)]
pub(super) struct OpenActions {
    actions: Mutex<HashMap<ActionId, Open>>,
}

/// An action that is open.
#[derive(Default)]
struct Open {
    /// How many guards it has.
    guards: usize,
    /// Wakes those who wait for this action; `None` as long as nobody has.
    closed: Option<Arc<Notify>>,
}

/// Guard: the action is open until this is dropped.
pub(crate) struct OpenAction {
    actions: Arc<OpenActions>,
    action: ActionId,
}

impl OpenActions {
    pub(super) fn open(self: &Arc<Self>, action: ActionId) -> OpenAction {
        self.actions().entry(action).or_default().guards += 1;
        OpenAction { actions: self.clone(), action }
    }

    pub(super) fn is_open(&self, action: ActionId) -> bool {
        self.actions().contains_key(&action)
    }

    /// Waits until no guard of the action is left.
    pub(super) async fn settled(&self, action: ActionId) {
        loop {
            let closed = match self.actions().get_mut(&action) {
                Some(open) => open.closed.get_or_insert_default().clone().notified_owned(),
                None => return,
            };
            // The action may be opened again before this task runs.
            closed.await;
        }
    }

    /// The map is consistent between statements, so a panic elsewhere does not invalidate it.
    fn actions(&self) -> MutexGuard<'_, HashMap<ActionId, Open>> {
        self.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenAction {
    fn drop(&mut self) {
        let mut actions = self.actions.actions();
        let Some(open) = actions.get_mut(&self.action) else { return };
        open.guards -= 1;
        if open.guards > 0 {
            return;
        }
        let closed = actions.remove(&self.action).and_then(|open| open.closed);
        drop(actions);
        if let Some(closed) = closed {
            closed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use uuid::Uuid;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn an_action_that_ends_wakes_only_those_who_wait_for_it() {
        let open = Arc::new(OpenActions::default());
        let [first, second] = [1, 2].map(|n| ActionId(Uuid::from_u128(n)));
        let (guard, other) = (open.open(first), open.open(second));
        let again = open.open(first);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut context = Context::from_waker(&waker);
        let mut waiting = Box::pin(open.settled(first));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(other);
        drop(guard);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 0, "the action is still open");
        drop(again);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Ready(()));
        assert!(open.actions().is_empty());
    }
}
