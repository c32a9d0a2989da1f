//! Locks on idempotency keys within this process.
//!
//! Equal keys run one after another, in the order of their calls. Calls of other processes
//! are detected by the unique constraint on the key when the commit inserts it.

use std::sync::Arc;

use super::call_queues::{CallQueues, QueuedCall};

/// The locks of an executor.
#[derive(Clone, Default)]
pub(super) struct IdempotencyLocks(Arc<CallQueues<String, (), IdempotencyGuard>>);

/// Holds the lock on a key. Dropping the guard passes the lock to the next waiter.
pub(super) struct IdempotencyGuard {
    locks: IdempotencyLocks,
    key: String,
}

impl IdempotencyLocks {
    pub(super) async fn lock(&self, key: &str) -> IdempotencyGuard {
        let (number, key) = (self.0.draw_number(), key.to_owned());
        while let Some(guard) = self.0.enter(&key, number, ()) {
            // The sender is dropped unused only together with the locks.
            if let Ok(guard) = guard.await {
                return guard;
            }
        }
        IdempotencyGuard { locks: self.clone(), key }
    }
}

impl Drop for IdempotencyGuard {
    fn drop(&mut self) {
        if let Some(QueuedCall { reply, .. }) = self.locks.0.next(&self.key, false, |()| true) {
            let key = std::mem::take(&mut self.key);
            // A waiter that was dropped meanwhile returns the guard, which passes it on again.
            drop(reply.send(Self { locks: self.locks.clone(), key }));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn equal_keys_run_one_after_another_and_leave_nothing_behind() {
        let locks = IdempotencyLocks::default();
        let held = locks.lock("a").await;
        let _other = locks.lock("b").now_or_never().expect("another key is free");
        let mut dropped = Box::pin(locks.lock("a"));
        let mut granted = Box::pin(locks.lock("a"));
        let mut last = Box::pin(locks.lock("a"));
        for waiting in [&mut dropped, &mut granted, &mut last] {
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        drop(dropped);
        drop(held);
        // Dropped after the guard was sent to it: the guard must go on.
        drop(granted);
        drop(last.now_or_never().expect("the last waiter holds the key"));
        assert_eq!(locks.0.count(), 1);
    }
}
