//! One at a time, per key, within a process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Lets calls with equal keys pass one after another, in the order of their coming.
#[derive(Default)]
pub(super) struct Gate {
    keys: Mutex<HashMap<String, Weak<AsyncMutex<()>>>>,
}

/// The right to pass; the next one may once it is dropped.
pub(super) struct Pass<'g> {
    gate: &'g Gate,
    key: String,
    held: Option<OwnedMutexGuard<()>>,
}

impl Gate {
    pub(super) async fn pass(&self, key: &str) -> Pass<'_> {
        let mutex = {
            let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            match keys.get(key).and_then(Weak::upgrade) {
                Some(mutex) => mutex,
                None => {
                    let mutex = Arc::new(AsyncMutex::new(()));
                    keys.insert(key.to_owned(), Arc::downgrade(&mutex));
                    mutex
                }
            }
        };
        let mut pass = Pass { gate: self, key: key.to_owned(), held: None };
        pass.held = Some(mutex.lock_owned().await);
        pass
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.held = None;
        let mut keys = self.gate.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.get(&self.key).is_some_and(|mutex| mutex.strong_count() == 0) {
            keys.remove(&self.key);
        }
    }
}
