//! What a provider shares with the workers of its keys: the backend and the queues.
//!
//! Invariants: a key has at most one queue, and a queue at most one worker. A queue is removed
//! only while it is empty.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::provider::key_queue::{KeyQueue, Waiter};
use crate::provider::renewals::Renewals;
use crate::provider::telemetry::Counts;
use crate::{Lease, LockBackend, LockError, LockKey, LockLevel};

/// First and longest pause before a failed request is repeated, unless the provider says
/// otherwise.
const RETRY_SLEEP: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

const LEVELS: [LockLevel; 2] = [LockLevel::Zone, LockLevel::Global];

pub(crate) struct ProviderState {
    pub(crate) backend: Arc<dyn LockBackend>,
    zone: String,
    /// Distinguishes the fences of this provider's keys from those of other lock servers.
    pub(crate) fences: OnceLock<String>,
    /// How this process names itself as a holder.
    pub(crate) holder: String,
    pub(crate) counts: Counts,
    pub(crate) renewals: Renewals,
    /// First and longest pause before a failed request is repeated.
    retry_sleep: Mutex<(Duration, Duration)>,
    /// After what time a lease that is held is logged.
    warn_after: Mutex<Option<Duration>>,
    queues: Mutex<Queues>,
    removed: Notify,
}

#[derive(Default)]
struct Queues {
    open: HashMap<String, Arc<KeyQueue>>,
    closed: bool,
}

impl Queues {
    /// Removes this queue, but not another one of the same key.
    fn remove(&mut self, queue: &KeyQueue) {
        let is_this = |open: &Arc<KeyQueue>| std::ptr::eq(Arc::as_ptr(open), queue);
        if self.open.get(queue.stored()).is_some_and(is_this) {
            self.open.remove(queue.stored());
        }
    }
}

/// What became of a caller that wants a key.
pub(crate) enum Enqueued {
    Answered(Option<Lease>),
    /// The caller waits. The queue may need a worker.
    Waits(Arc<KeyQueue>),
}

impl ProviderState {
    pub(crate) fn new(backend: impl LockBackend, zone: &str) -> Self {
        Self {
            backend: Arc::new(backend),
            // It ends the zone in a stored key: `a#b` with `c` would be `a` with `b#c`.
            zone: zone.replace('#', "%23"),
            fences: OnceLock::new(),
            holder: holder_name(),
            counts: Counts::default(),
            renewals: Renewals::new(),
            retry_sleep: Mutex::new(RETRY_SLEEP),
            warn_after: Mutex::default(),
            queues: Mutex::default(),
            removed: Notify::new(),
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the key's fence.
    pub(crate) fn fence(&self, key: &LockKey) -> String {
        match self.fences.get() {
            // Part of the name, because keys of all zones do not have the zone in theirs.
            Some(server) => {
                // A listed key may be cut. It has the fence of the whole one.
                let cut = self.named(&self.stored(key));
                let id = cut.as_ref().unwrap_or(key).id();
                LockKey::named(&format!("{id}@{server}")).at_level(key.level()).stored(&self.zone)
            }
            None => self.stored(key),
        }
    }

    /// The key as the server knows it.
    pub(crate) fn stored(&self, key: &LockKey) -> String {
        key.stored(&self.zone)
    }

    /// What the stored keys begin with that this provider can name: those of its zone, and those of
    /// all zones.
    pub(crate) fn prefixes(&self) -> [String; 2] {
        LEVELS.map(|level| LockKey::named("").at_level(level).stored(&self.zone))
    }

    /// The key that is stored like this, if this provider can name it.
    pub(crate) fn named(&self, stored: &str) -> Option<LockKey> {
        let found = LEVELS.into_iter().zip(self.prefixes()).find_map(|(level, prefix)| {
            Some(LockKey::named(stored.strip_prefix(&prefix)?).at_level(level))
        });
        found.filter(|key| self.stored(key) == stored)
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
        Ok(Enqueued::Waits(queue))
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
        queues.remove(queue);
        drop(queues);
        self.removed.notify_waiters();
        true
    }

    /// First and longest pause before a failed request is repeated.
    pub(crate) fn retry_sleep(&self) -> (Duration, Duration) {
        *self.retry_sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_retry_sleep(&self, first: Duration, longest: Duration) {
        *self.retry_sleep.lock().unwrap_or_else(PoisonError::into_inner) = (first, longest);
    }

    /// After what time a lease that is held is logged.
    pub(crate) fn warn_after(&self) -> Option<Duration> {
        *self.warn_after.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_warn_after(&self, after: Option<Duration>) {
        *self.warn_after.lock().unwrap_or_else(PoisonError::into_inner) = after;
    }

    /// Notes that the worker of this queue has ended before its work.
    pub(crate) fn worker_gone(&self, queue: &KeyQueue) {
        let mut queues = self.queues();
        // By now a caller may have started another worker.
        if queue.is_deserted() {
            queues.remove(queue);
        }
        drop(queues);
        self.removed.notify_waiters();
    }

    /// Rejects callers from now on. Those that wait are rejected, too.
    pub(crate) fn refuse(&self) {
        self.queues().closed = true;
        self.open().iter().for_each(|queue| queue.refuse());
    }

    /// The queues that are left.
    pub(crate) fn open(&self) -> Vec<Arc<KeyQueue>> {
        self.queues().open.values().cloned().collect()
    }

    /// Resolves when a queue was removed, or has lost its worker. Counts from this call.
    pub(crate) fn removed(&self) -> Notified<'_> {
        self.removed.notified()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProcessBackend;

    #[test]
    fn keys_of_different_zones_are_different_whatever_the_names() {
        let stored = |zone, key: &str| {
            ProviderState::new(ProcessBackend::new(), zone).stored(&LockKey::named(key))
        };
        assert_ne!(stored("a#b", "c"), stored("a", "b#c"));
        assert_eq!(stored("eu", "c"), "DC#eu#c");
    }

    /// A listed key may be forced, and its fence is then raised.
    #[test]
    fn a_key_has_the_same_fence_as_it_is_listed() {
        let state = ProviderState::new(ProcessBackend::new(), "eu");
        state.fences.set("locks-2".to_owned()).unwrap();
        assert_eq!(state.fence(&LockKey::named("c")), "DC#eu#c@locks-2");
        for name in ["c", "a\0b", &"long".repeat(100)] {
            let key = LockKey::named(name);
            let listed = state.named(&state.stored(&key)).unwrap();
            assert_eq!(state.fence(&key), state.fence(&listed), "{name:?}");
        }
    }
}
