//! Locks on idempotency keys and messages within this process.
//!
//! Equal keys run one after another, in the order of their calls. Calls of other processes
//! are detected by the unique constraint on the key when the commit inserts it. So a call that
//! waits for too long may go on without the lock: perhaps the holder waits for this very call, or
//! nobody polls the holder.

use std::sync::Arc;
use std::time::Duration;

use super::call_queues::{CallQueues, QueuedCall};
use crate::outbox::{CallKey, KeyKind};

/// The longest wait for the lock on a key.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The locks of an executor.
#[derive(Clone, Default)]
pub(super) struct KeyLocks(Arc<CallQueues<LockedKey, (), KeyLockGuard>>);

/// What is locked: the kind, the scope and the text of a key.
type LockedKey = (KeyKind, String, String);

/// Holds the lock on a key. Dropping the guard passes the lock to the next waiter.
pub(super) struct KeyLockGuard {
    locks: KeyLocks,
    key: LockedKey,
}

impl KeyLocks {
    /// Waits for the lock on a key; `None` if the wait was too long.
    pub(super) async fn lock(&self, key: &CallKey) -> Option<KeyLockGuard> {
        self.lock_within(MAX_WAIT, key).await
    }

    async fn lock_within(&self, wait: Duration, key: &CallKey) -> Option<KeyLockGuard> {
        let key = (key.kind, key.scope.clone(), key.text.clone());
        tokio::time::timeout(wait, self.wait_for_lock(key)).await.ok()
    }

    async fn wait_for_lock(&self, key: LockedKey) -> KeyLockGuard {
        let number = self.0.draw_number();
        while let Err(guard) = self.0.enter(&key, number, ()) {
            // The sender is dropped unused only together with the locks.
            if let Ok(guard) = guard.await {
                return guard;
            }
        }
        KeyLockGuard { locks: self.clone(), key }
    }
}

impl Drop for KeyLockGuard {
    fn drop(&mut self) {
        if let Some(QueuedCall { reply, .. }) = self.locks.0.next(&self.key, false, |()| true) {
            let key = self.key.clone();
            // A waiter that was dropped meanwhile returns the guard, which passes it on again.
            drop(reply.send(Self { locks: self.locks.clone(), key }));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn key(text: &str) -> CallKey {
        let (namespace, scope) = ("a".to_owned(), String::new());
        CallKey { kind: KeyKind::Idempotency, namespace, scope, text: text.to_owned() }
    }

    #[tokio::test]
    async fn equal_keys_run_one_after_another_and_leave_nothing_behind() {
        let locks = KeyLocks::default();
        let (a, b) = (key("a"), key("b"));
        let held = locks.lock(&a).await;
        let _other = locks.lock(&b).now_or_never().expect("another key is free");
        let mut dropped = Box::pin(locks.lock(&a));
        let mut granted = Box::pin(locks.lock(&a));
        let mut last = Box::pin(locks.lock(&a));
        for waiting in [&mut dropped, &mut granted, &mut last] {
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        drop(dropped);
        drop(held);
        // Dropped after the guard was sent to it: the guard must go on.
        drop(granted);
        drop(last.now_or_never().expect("the last waiter holds the key"));
        assert_eq!(locks.0.holders().len(), 1);
    }

    #[tokio::test]
    async fn a_call_goes_on_without_a_lock_that_nobody_passes_on() {
        let locks = KeyLocks::default();
        let a = key("a");
        let soon = || locks.lock_within(Duration::from_millis(1), &a);
        let held = locks.lock(&a).await.expect("the key is free");
        assert!(soon().await.is_none());
        let mut granted = Box::pin(locks.lock(&a));
        assert!(granted.as_mut().now_or_never().is_none());
        drop(held); // which grants the lock to a call that nobody polls
        assert!(soon().await.is_none());
        assert!(granted.await.is_some());
    }
}
