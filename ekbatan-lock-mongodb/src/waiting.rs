//! The acquisitions of this process that wait, for its poller.
//!
//! MongoDB tells nobody when a key is passed on, so one task looks at all keys that this process
//! waits for. The same look gives the sign of life of their places.
//!
//! Invariant: what waits is known here before its request is sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_lock::{BackendError, KeyState, KeyStates, Pace};
use mongodb::bson::Document;
use uuid::Uuid;

use crate::answer::number;
use crate::documents::Documents;
use crate::pipeline::{PLACE, milliseconds};

/// How the poller looks.
pub(crate) const POLLS: Pace = Pace::new(Duration::from_millis(5), Duration::from_millis(300));

#[derive(Default)]
pub(crate) struct Waiting {
    /// By key.
    owners: Mutex<HashMap<String, Vec<Uuid>>>,
}

impl Waiting {
    fn owners(&self) -> MutexGuard<'_, HashMap<String, Vec<Uuid>>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an acquisition waits, until the guard is dropped.
    pub(crate) fn enter<'w>(&'w self, key: &'w str, owner: Uuid) -> Place<'w> {
        self.owners().entry(key.to_owned()).or_default().push(owner);
        Place { waiting: self, key, owner }
    }

    fn of(&self, key: &str) -> Vec<Uuid> {
        self.owners().get(key).cloned().unwrap_or_default()
    }
}

pub(crate) struct Place<'w> {
    waiting: &'w Waiting,
    key: &'w str,
    owner: Uuid,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut all = self.waiting.owners();
        if let Some(owners) = all.get_mut(self.key) {
            if let Some(at) = owners.iter().position(|owner| *owner == self.owner) {
                owners.swap_remove(at);
            }
            if owners.is_empty() {
                all.remove(self.key);
            }
        }
    }
}

/// What the poller asks the server.
pub(crate) struct WaitedKeys {
    pub(crate) documents: Arc<Documents>,
    pub(crate) waiting: Arc<Waiting>,
}

#[async_trait]
impl KeyStates for WaitedKeys {
    async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
        let found = self.documents.look(keys).await?;
        let (mut states, mut late) = (Vec::new(), Vec::new());
        for document in &found {
            let Ok(key) = document.get_str("_id") else { continue };
            let owners = self.waiting.of(key);
            let places = Places::of(document);
            let is_ours = |owner: &Uuid| places.holder.as_deref() == Some(&*owner.to_string());
            // Also if a place was lost: then it has to be asked for again.
            let repeat = owners.iter().any(|owner| is_ours(owner) || places.rest(owner).is_none());
            for owner in owners {
                if places.rest(&owner).is_some_and(|rest| rest < milliseconds(PLACE) * 2 / 3) {
                    late.push((key.to_owned(), owner));
                }
            }
            let remaining = if repeat { 0 } else { places.remaining };
            states.push(KeyState {
                key: key.to_owned(),
                grant: number(document, "token").unwrap_or_default(),
                remaining: Some(Duration::from_millis(remaining.try_into().unwrap_or_default())),
            });
        }
        if !late.is_empty() {
            self.documents.renew_places(&late).await?;
        }
        Ok(states)
    }
}

/// What the server says of those who wait for a key.
struct Places {
    holder: Option<String>,
    /// Milliseconds. Not positive if the key is free.
    remaining: i64,
    /// The milliseconds that each place lasts.
    rests: HashMap<String, i64>,
}

impl Places {
    fn of(document: &Document) -> Self {
        let place =
            |place: &Document| Some((place.get_str("o").ok()?.to_owned(), number(place, "rest")?));
        let places = document.get_array("places").ok();
        let places = places.into_iter().flatten().filter_map(|entry| place(entry.as_document()?));
        Self {
            holder: document.get_str("owner").ok().map(str::to_owned),
            remaining: number(document, "remaining").unwrap_or_default(),
            rests: places.collect(),
        }
    }

    fn rest(&self, owner: &Uuid) -> Option<i64> {
        self.rests.get(&owner.to_string()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_that_leaves_leaves_nothing_behind() {
        let waiting = Waiting::default();
        let [one, other] = [Uuid::new_v4(), Uuid::new_v4()];
        let first = waiting.enter("k", one);
        let second = waiting.enter("k", other);
        assert_eq!(waiting.of("k"), [one, other]);
        drop(first);
        assert_eq!((waiting.of("k"), waiting.of("x")), (vec![other], vec![]));
        drop(second);
        assert!(waiting.owners().is_empty());
    }
}
