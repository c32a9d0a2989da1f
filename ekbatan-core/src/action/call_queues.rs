//! Queues of calls that wait for the same key in this process.
//!
//! Invariants: a key has a queue exactly while one call holds the key, so memory grows with
//! the keys in use, not with the keys ever seen. The holder must call [`CallQueues::next`]
//! when it is done. Waiters are ordered by their number, and a waiter that is put back keeps
//! the number it had.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The number of mutexes that the keys share. Calls on different keys seldom meet on one.
const SHARDS: usize = 64;

/// A call that waits. `T` is what it asks for, `M` is the message that it waits for.
pub(super) struct QueuedCall<T, M> {
    pub(super) number: u64,
    pub(super) request: T,
    pub(super) reply: oneshot::Sender<M>,
}

type CallQueue<T, M> = BTreeMap<u64, QueuedCall<T, M>>;
type QueueMap<K, T, M> = HashMap<K, CallQueue<T, M>>;

/// The queues of all keys in use.
pub(super) struct CallQueues<K, T, M> {
    shards: Vec<Mutex<QueueMap<K, T, M>>>,
    hasher: RandomState,
    numbers: AtomicU64,
}

impl<K, T, M> Default for CallQueues<K, T, M> {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            numbers: AtomicU64::new(0),
        }
    }
}

impl<K: Eq + Hash + Clone, T, M> CallQueues<K, T, M> {
    fn shard(&self, key: &K) -> MutexGuard<'_, QueueMap<K, T, M>> {
        let shard = self.hasher.hash_one(key) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of keys in use.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        let shards = self.shards.iter();
        shards.map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    /// Draws the number of a new call.
    pub(super) fn draw_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Enters the queue of a key, behind all calls with smaller numbers. Returns `None` if the
    /// key was not in use: the caller now holds it.
    pub(super) fn enter(&self, key: &K, number: u64, request: T) -> Option<oneshot::Receiver<M>> {
        let mut shard = self.shard(key);
        if let Some(queue) = shard.get_mut(key) {
            let (reply, message) = oneshot::channel();
            queue.insert(number, QueuedCall { number, request, reply });
            return Some(message);
        }
        shard.insert(key.clone(), CallQueue::new());
        None
    }

    /// Puts calls back in the places that their numbers give. Returns whether the key was not
    /// in use: the caller now holds it.
    pub(super) fn put_back(&self, key: &K, calls: Vec<QueuedCall<T, M>>) -> bool {
        if calls.is_empty() {
            return false;
        }
        let calls = calls.into_iter().map(|call| (call.number, call));
        match self.shard(key).entry(key.clone()) {
            Entry::Occupied(mut queue) => {
                queue.get_mut().extend(calls);
                false
            }
            Entry::Vacant(queue) => {
                queue.insert(calls.collect());
                true
            }
        }
    }

    /// Whether any call waits for the key.
    pub(super) fn has_waiters(&self, key: &K) -> bool {
        let mut shard = self.shard(key);
        shard.get_mut(key).is_some_and(|queue| first(queue).is_some())
    }

    /// Removes the first waiter of the key, if it is `accepted`; it becomes the holder. If
    /// nobody waits, the key is no longer in use, unless the holder wants to `keep` it.
    pub(super) fn next(
        &self,
        key: &K,
        keep: bool,
        accepted: impl FnOnce(&T) -> bool,
    ) -> Option<QueuedCall<T, M>> {
        let mut shard = self.shard(key);
        let queue = shard.get_mut(key)?;
        match first(queue) {
            Some(waiter) if accepted(&waiter.request) => queue.pop_first().map(|(_, call)| call),
            Some(_) => None,
            None => {
                if !keep {
                    shard.remove(key);
                }
                None
            }
        }
    }
}

/// The first call that still waits. Removes the calls before it that were dropped.
fn first<T, M>(queue: &mut CallQueue<T, M>) -> Option<&QueuedCall<T, M>> {
    while queue.first_key_value()?.1.reply.is_closed() {
        queue.pop_first();
    }
    queue.first_key_value().map(|(_, call)| call)
}
