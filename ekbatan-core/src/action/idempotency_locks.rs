//! Locks on idempotency keys within this process.
//!
//! Equal keys run one after another, in the order of their calls. Calls of other processes
//! are detected by the unique constraint on the key when the commit inserts it.

use std::sync::Arc;

use super::call_queues::{CallQueues, QueuedCall};
use crate::outbox::IdempotencyKey;

tokio::task_local! {
    /// The keys that the calls around this one hold, the outermost first.
    static HELD: Vec<HeldKey>;
}

/// A key, and the locks that it belongs to.
#[derive(Clone)]
struct HeldKey {
    locks: IdempotencyLocks,
    key: String,
}

/// The locks of an executor.
#[derive(Clone, Default)]
pub(super) struct IdempotencyLocks(Arc<CallQueues<String, (), IdempotencyGuard>>);

/// Holds the lock on a key. Dropping the guard passes the lock to the next waiter.
pub(super) struct IdempotencyGuard {
    locks: IdempotencyLocks,
    key: String,
}

impl IdempotencyLocks {
    /// `None` if a call around this one holds the key: this call would wait for itself.
    pub(super) async fn lock(&self, key: &IdempotencyKey) -> Option<IdempotencyGuard> {
        let key = format!("{}:{}{}", key.principal.len(), key.principal, key.text);
        let is_this = |held: &HeldKey| held.key == key && Arc::ptr_eq(&held.locks.0, &self.0);
        if HELD.try_with(|held| held.iter().any(is_this)).unwrap_or(false) {
            return None;
        }
        let number = self.0.draw_number();
        while let Some(guard) = self.0.enter(&key, number, ()) {
            // The sender is dropped unused only together with the locks.
            if let Ok(guard) = guard.await {
                return Some(guard);
            }
        }
        Some(IdempotencyGuard { locks: self.clone(), key })
    }
}

impl IdempotencyGuard {
    /// Runs a call that holds the key.
    pub(super) async fn around<T>(self, call: impl Future<Output = T>) -> T {
        let mut held = HELD.try_with(Vec::clone).unwrap_or_default();
        held.push(HeldKey { locks: self.locks.clone(), key: self.key.clone() });
        HELD.scope(held, call).await
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

    fn key(text: &str) -> IdempotencyKey {
        let (namespace, principal) = ("a".to_owned(), String::new());
        IdempotencyKey { namespace, principal, text: text.to_owned() }
    }

    #[tokio::test]
    async fn a_key_that_the_task_holds_already_is_not_waited_for() {
        let locks = IdempotencyLocks::default();
        let (a, b) = (key("a"), key("b"));
        let held = locks.lock(&a).await.unwrap();
        held.around(async {
            assert!(locks.lock(&a).await.is_none());
            let other = locks.lock(&b).await.unwrap();
            other.around(async { assert!(locks.lock(&a).await.is_none()) }).await;
            assert!(IdempotencyLocks::default().lock(&a).await.is_some());
        })
        .await;
        assert!(locks.lock(&a).await.is_some());
    }

    #[tokio::test]
    async fn equal_keys_run_one_after_another_and_leave_nothing_behind() {
        let locks = IdempotencyLocks::default();
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
        assert_eq!(locks.0.count(), 1);
    }
}
