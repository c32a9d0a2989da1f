//! Who holds a pool's connections, for timeouts and for reports of connections held too long.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

struct Holder {
    name: &'static str,
    since: Instant,
    /// Whether it was reported for holding a connection too long.
    reported: bool,
}

#[derive(Clone, Default)]
pub(super) struct Holders(Arc<Mutex<BTreeMap<u64, Holder>>>);

/// Guard: removes the holder when dropped.
pub(super) struct HolderGuard {
    holders: Holders,
    number: u64,
}

impl Holders {
    pub(super) fn add(&self, name: &'static str) -> HolderGuard {
        let mut list = self.list();
        let number = list.last_key_value().map_or(0, |(last, _)| last + 1);
        list.insert(number, Holder { name, since: Instant::now(), reported: false });
        drop(list);
        HolderGuard { holders: self.clone(), number }
    }

    /// Each holder's name and how long it has held its connection.
    pub(super) fn all(&self) -> Vec<(&'static str, Duration)> {
        self.list().values().map(|holder| (holder.name, holder.since.elapsed())).collect()
    }

    /// The holders that exceed the threshold and were not returned by an earlier call.
    pub(super) fn newly_overdue(&self, threshold: Duration) -> Vec<(&'static str, Duration)> {
        let mut overdue = Vec::new();
        for holder in self.list().values_mut() {
            let held = holder.since.elapsed();
            if !holder.reported && held >= threshold {
                holder.reported = true;
                overdue.push((holder.name, held));
            }
        }
        overdue
    }

    fn list(&self) -> MutexGuard<'_, BTreeMap<u64, Holder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HolderGuard {
    fn drop(&mut self) {
        self.holders.list().remove(&self.number);
    }
}
