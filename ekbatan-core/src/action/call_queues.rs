//! Queues of calls that wait for the same key in this process.
//!
//! Invariants: a key has a queue exactly while one call holds the key, so memory grows with
//! the keys in use, not with the keys ever seen. The holder must call [`CallQueues::next`]
//! when it is done. Waiters are ordered by their number, and a waiter that returns keeps the
//! number it had.

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

/// The queue of a key in use.
struct CallQueue<T, M, H> {
    holder: H,
    waiting: BTreeMap<u64, QueuedCall<T, M>>,
}

type QueueMap<K, T, M, H> = HashMap<K, CallQueue<T, M, H>>;

/// The queues of all keys in use. `H` is what the holders of a key leave there for others.
pub(super) struct CallQueues<K, T, M, H = ()> {
    shards: Vec<Mutex<QueueMap<K, T, M, H>>>,
    hasher: RandomState,
    numbers: AtomicU64,
}

impl<K, T, M, H> Default for CallQueues<K, T, M, H> {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            numbers: AtomicU64::new(0),
        }
    }
}

impl<K: Eq + Hash + Clone, T, M, H: Default + Clone> CallQueues<K, T, M, H> {
    fn shard(&self, key: &K) -> MutexGuard<'_, QueueMap<K, T, M, H>> {
        let shard = self.hasher.hash_one(key) as usize % SHARDS;
        lock(&self.shards[shard])
    }

    /// What the holders of all keys in use left.
    pub(super) fn holders(&self) -> Vec<H> {
        let mut holders = Vec::new();
        for shard in &self.shards {
            holders.extend(lock(shard).values().map(|queue| queue.holder.clone()));
        }
        holders
    }

    /// Draws the number of a new call.
    pub(super) fn draw_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Enters the queue of a key, behind all calls with smaller numbers. Succeeds if the key was
    /// not in use: the caller now holds it.
    pub(super) fn enter(
        &self,
        key: &K,
        number: u64,
        request: T,
    ) -> Result<H, oneshot::Receiver<M>> {
        let mut shard = self.shard(key);
        if let Some(queue) = shard.get_mut(key) {
            let (reply, message) = oneshot::channel();
            queue.waiting.insert(number, QueuedCall { number, request, reply });
            return Err(message);
        }
        let holder = H::default();
        let queue = CallQueue { holder: holder.clone(), waiting: BTreeMap::new() };
        shard.insert(key.clone(), queue);
        Ok(holder)
    }

    /// Puts calls back in the places that their numbers give. Returns something if the key was
    /// not in use: the caller now holds it.
    pub(super) fn put_back(&self, key: &K, calls: Vec<QueuedCall<T, M>>) -> Option<H> {
        if calls.is_empty() {
            return None;
        }
        let calls = calls.into_iter().map(|call| (call.number, call));
        match self.shard(key).entry(key.clone()) {
            Entry::Occupied(mut queue) => {
                queue.get_mut().waiting.extend(calls);
                None
            }
            Entry::Vacant(queue) => {
                let holder = H::default();
                queue.insert(CallQueue { holder: holder.clone(), waiting: calls.collect() });
                Some(holder)
            }
        }
    }

    /// Whether any call waits for the key.
    pub(super) fn has_waiters(&self, key: &K) -> bool {
        let mut shard = self.shard(key);
        shard.get_mut(key).is_some_and(|queue| first(&mut queue.waiting).is_some())
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
        let waiting = &mut shard.get_mut(key)?.waiting;
        match first(waiting) {
            Some(waiter) if accepted(&waiter.request) => waiting.pop_first().map(|(_, call)| call),
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

/// No panic can leave a queue inconsistent: nothing in here calls foreign code while it changes
/// one.
fn lock<T>(shard: &Mutex<T>) -> MutexGuard<'_, T> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first call that still waits. Removes the calls before it that were dropped.
fn first<T, M>(waiting: &mut BTreeMap<u64, QueuedCall<T, M>>) -> Option<&QueuedCall<T, M>> {
    while waiting.first_key_value()?.1.reply.is_closed() {
        waiting.pop_first();
    }
    waiting.first_key_value().map(|(_, call)| call)
}
