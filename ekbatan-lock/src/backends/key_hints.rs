//! Hints that a key may be free, from a server's notifications to the waiters of this process.
//!
//! Invariants: a hint reaches every waiter that began to listen before it. A waiter that stops
//! listening leaves nothing behind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The listeners of one backend, by key. A backend uses it for
/// [`LockBackend::freed`](crate::LockBackend::freed).
#[derive(Debug, Default)]
pub struct KeyHints {
    keys: Mutex<HashMap<String, Listeners>>,
}

#[derive(Debug, Default)]
struct Listeners {
    notify: Arc<Notify>,
    count: usize,
}

impl KeyHints {
    fn keys(&self) -> MutexGuard<'_, HashMap<String, Listeners>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves with the next hint for the key. Listens from the first poll.
    pub async fn freed(&self, key: &str) {
        let listening = self.listen(key);
        listening.notify.notified().await;
    }

    fn listen<'h>(&'h self, key: &'h str) -> Listening<'h> {
        let mut keys = self.keys();
        let listeners = keys.entry(key.to_owned()).or_default();
        listeners.count += 1;
        Listening { hints: self, key, notify: listeners.notify.clone() }
    }

    /// Wakes the listeners of the key.
    pub fn wake(&self, key: &str) {
        self.wake_any(key);
    }

    /// Wakes the listeners of the key. Returns `false` if there are none.
    pub fn wake_any(&self, key: &str) -> bool {
        let keys = self.keys();
        let listeners = keys.get(key);
        listeners.inspect(|listeners| listeners.notify.notify_waiters()).is_some()
    }

    /// Wakes all listeners, because hints may have been missed.
    pub fn wake_all(&self) {
        self.keys().values().for_each(|listeners| listeners.notify.notify_waiters());
    }
}

struct Listening<'h> {
    hints: &'h KeyHints,
    key: &'h str,
    notify: Arc<Notify>,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let mut keys = self.hints.keys();
        if let Some(listeners) = keys.get_mut(self.key) {
            listeners.count -= 1;
            if listeners.count == 0 {
                keys.remove(self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::Pin;
    use std::task::Poll;

    use super::*;

    async fn is_woken(listener: &mut Pin<Box<impl Future<Output = ()>>>) -> bool {
        poll_fn(|cx| Poll::Ready(listener.as_mut().poll(cx).is_ready())).await
    }

    #[tokio::test]
    async fn a_hint_wakes_the_listeners_of_its_key_only() {
        let hints = KeyHints::default();
        let mut a = Box::pin(hints.freed("a"));
        let mut also_a = Box::pin(hints.freed("a"));
        let mut b = Box::pin(hints.freed("b"));
        hints.wake("a"); // nobody listens yet
        assert!(!is_woken(&mut a).await && !is_woken(&mut also_a).await);
        assert!(!is_woken(&mut b).await);
        hints.wake("a");
        assert!(is_woken(&mut a).await && is_woken(&mut also_a).await);
        assert!(!is_woken(&mut b).await);
        hints.wake_all();
        assert!(is_woken(&mut b).await);
    }

    #[tokio::test]
    async fn a_listener_that_is_dropped_leaves_nothing_behind() {
        let hints = KeyHints::default();
        let mut a = Box::pin(hints.freed("a"));
        let mut also_a = Box::pin(hints.freed("a"));
        assert!(!is_woken(&mut a).await && !is_woken(&mut also_a).await);
        drop(a);
        hints.wake("a");
        assert!(is_woken(&mut also_a).await);
        drop(also_a);
        assert!(hints.keys().is_empty());
    }
}
