//! Who in this process waits to hear that a key was given back.
//!
//! What always holds: a hint reaches whoever began to listen before it; who stops listening
//! leaves nothing behind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The listeners of one backend, by key.
#[derive(Default)]
pub(super) struct Hints {
    keys: Mutex<HashMap<String, Entry>>,
}

#[derive(Default)]
struct Entry {
    bell: Arc<Notify>,
    listeners: usize,
}

impl Hints {
    fn keys(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves with the next hint about the key; listens from the first poll.
    pub(super) async fn heard(&self, key: &str) {
        let listening = self.listen(key);
        listening.bell.notified().await;
    }

    fn listen<'h>(&'h self, key: &'h str) -> Listening<'h> {
        let mut keys = self.keys();
        let entry = keys.entry(key.to_owned()).or_default();
        entry.listeners += 1;
        Listening { hints: self, key, bell: entry.bell.clone() }
    }

    /// The key may have become free.
    pub(super) fn tell(&self, key: &str) {
        if let Some(entry) = self.keys().get(key) {
            entry.bell.notify_waiters();
        }
    }

    /// Any key may have become free: hints may have been missed.
    pub(super) fn tell_all(&self) {
        self.keys().values().for_each(|entry| entry.bell.notify_waiters());
    }
}

struct Listening<'h> {
    hints: &'h Hints,
    key: &'h str,
    bell: Arc<Notify>,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let mut keys = self.hints.keys();
        if let Some(entry) = keys.get_mut(self.key) {
            entry.listeners -= 1;
            if entry.listeners == 0 {
                keys.remove(self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hints_reach_who_listens_and_nothing_stays() {
        let hints = Hints::default();
        {
            let (a, b) = (hints.heard("a"), hints.heard("b"));
            tokio::pin!(a, b);
            tokio::select! {
                biased;
                () = &mut a => unreachable!("nobody told"),
                () = &mut b => unreachable!("nobody told"),
                () = tokio::task::yield_now() => {}
            }
            hints.tell("a");
            a.await;
            hints.tell_all();
            b.await;
        }
        assert!(hints.keys().is_empty());
    }
}
