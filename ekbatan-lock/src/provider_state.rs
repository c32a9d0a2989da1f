//! What a provider shares with the workers of its keys: the backend and the queues.
//!
//! Invariants: a key has at most one queue, and a queue one worker. A queue is removed only
//! while it is empty.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::key_queue::{KeyQueue, Waiter};
use crate::telemetry::Counts;
use crate::{Lease, LockBackend, LockError, LockKey};

pub(crate) struct ProviderState {
    pub(crate) backend: Arc<dyn LockBackend>,
    zone: String,
    /// How this process names itself as a holder.
    pub(crate) holder: String,
    pub(crate) counts: Counts,
    queues: Mutex<Queues>,
    removed: Notify,
}

#[derive(Default)]
struct Queues {
    open: HashMap<String, Arc<KeyQueue>>,
    closed: bool,
}

/// What became of a caller that wants a key.
pub(crate) enum Enqueued {
    Answered(Option<Lease>),
    Waits(Arc<KeyQueue>),
    /// The caller waits in a new queue, which needs a worker.
    Opened(Arc<KeyQueue>),
}

impl ProviderState {
    pub(crate) fn new(backend: impl LockBackend, zone: &str) -> Self {
        Self {
            backend: Arc::new(backend),
            zone: zone.to_owned(),
            holder: holder_name(),
            counts: Counts::default(),
            queues: Mutex::default(),
            removed: Notify::new(),
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key as the server and the fences know it.
    pub(crate) fn stored(&self, key: &LockKey) -> String {
        key.stored(&self.zone)
    }

    /// Enqueues the caller unless the answer is known at once.
    pub(crate) fn enqueue(&self, key: &LockKey, waiter: Waiter) -> Result<Enqueued, LockError> {
        let stored = self.stored(key);
        let mut queues = self.queues();
        if queues.closed {
            return Err(LockError::Closed { key: key.clone() });
        }
        if let Some(queue) = queues.open.get(&stored) {
            return Ok(match queue.enqueue(waiter, &self.counts) {
                Some(answered) => Enqueued::Answered(answered),
                None => Enqueued::Waits(queue.clone()),
            });
        }
        let queue = Arc::new(KeyQueue::new(key.clone(), stored.clone(), waiter));
        queues.open.insert(stored, queue.clone());
        Ok(Enqueued::Opened(queue))
    }

    pub(crate) fn queue_of(&self, stored: &str) -> Option<Arc<KeyQueue>> {
        self.queues().open.get(stored).cloned()
    }

    /// Removes the queue if nobody waits in it.
    pub(crate) fn remove_if_empty(&self, queue: &KeyQueue) -> bool {
        let mut queues = self.queues();
        if !queue.is_empty() {
            return false;
        }
        queues.open.remove(queue.stored());
        drop(queues);
        self.removed.notify_waiters();
        true
    }

    /// Closes every queue, and waits until their workers have released their keys.
    pub(crate) async fn close(&self) {
        let open: Vec<Arc<KeyQueue>> = {
            let mut queues = self.queues();
            queues.closed = true;
            queues.open.values().cloned().collect()
        };
        open.iter().for_each(|queue| queue.close());
        loop {
            let removed = self.removed.notified();
            if self.queues().open.is_empty() {
                break;
            }
            removed.await;
        }
        self.backend.close().await;
    }
}

/// How this process names itself to those who inspect a key.
fn holder_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => format!("process {}", std::process::id()),
        host => format!("{host} process {}", std::process::id()),
    }
}
