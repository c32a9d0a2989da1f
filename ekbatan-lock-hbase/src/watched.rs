//! The leases of this process that are looked at, so that their holders learn of a loss.
//!
//! Invariant: all leases are looked at with one request for each server, once a second. A server that
//! does not answer delays no lease of another one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_lock::{BackendError, Grant, KeyState, KeyStates};

use crate::locks::Locks;
use crate::looking::{by_server, unknown};

/// How long a lease is held before it is looked at.
pub(crate) const UNWATCHED: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct Watched {
    locks: Arc<Locks>,
    grants: Arc<Mutex<HashMap<String, Grant>>>,
}

/// One lease that is looked at, until it is dropped.
pub(crate) struct Watch<'w> {
    watched: &'w Watched,
    key: &'w str,
    grant: Grant,
}

impl Watched {
    pub(crate) fn new(locks: Arc<Locks>) -> Self {
        Self { locks, grants: Arc::default() }
    }

    fn grants(&self) -> MutexGuard<'_, HashMap<String, Grant>> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn watch<'w>(&'w self, key: &'w str, grant: Grant) -> Watch<'w> {
        self.grants().insert(key.to_owned(), grant);
        Watch { watched: self, key, grant }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut grants = self.watched.grants();
        if grants.get(self.key) == Some(&self.grant) {
            grants.remove(self.key);
        }
    }
}

#[async_trait]
impl KeyStates for Watched {
    async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
        let look = |keys| self.clone().look_at(keys);
        Ok(by_server(keys, |key| self.locks.server_of(key), look).await)
    }
}

impl Watched {
    /// Looks at leases whose rows are at one server.
    async fn look_at(self, keys: Vec<String>) -> Vec<KeyState> {
        let rows = self.locks.look_at(&keys, &vec![Vec::new(); keys.len()]).await;
        let states = keys.iter().zip(rows).map(|(key, row)| match row {
            Ok(row) => {
                let stands = self.grants().get(key).is_none_or(|grant| row.stands(grant));
                // Those that stand are looked at again in their turn.
                let remaining = (!stands).then_some(Duration::ZERO);
                KeyState { key: key.clone(), grant: row.token(), remaining }
            }
            Err(error) => {
                tracing::debug!(%error, key, "it could not be looked at whether a lease stands");
                unknown(key)
            }
        });
        states.collect()
    }
}
