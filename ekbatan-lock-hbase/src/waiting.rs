//! The callers of this process that wait in the queues of keys, and their signs of life.
//!
//! Invariants: a look at the keys renews the places that need it, in the same request. A caller whose
//! turn has come, or whose place has ended, is woken.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_lock::{BackendError, GrantRequest, KeyState, KeyStates};
use tokio::time::Instant;
use uuid::Uuid;

use crate::client::milliseconds;
use crate::locks::{Locks, PLACE};
use crate::row::{LockRow, Taker};

/// Time between signs of life.
const RENEWAL: Duration = Duration::from_secs(1);

const _: () = assert!(RENEWAL.as_millis() * 2 < PLACE.as_millis());

/// A caller that waits in a queue.
#[derive(Debug, Clone)]
pub(crate) struct Waiter {
    key: String,
    holder: String,
    pub(crate) term: Duration,
    /// When its place was renewed.
    renewed: Instant,
}

impl Waiter {
    pub(crate) fn new(request: &GrantRequest) -> Self {
        let (holder, term) = (request.holder.clone(), request.term);
        Self { key: String::new(), holder, term, renewed: Instant::now() }
    }

    pub(crate) fn taker(&self, owner: Uuid) -> Taker<'_> {
        Taker { owner, holder: &self.holder, term: milliseconds(self.term) }
    }
}

#[derive(Clone)]
pub(crate) struct Waiters {
    locks: Arc<Locks>,
    entered: Arc<Mutex<HashMap<Uuid, Waiter>>>,
}

impl Waiters {
    pub(crate) fn new(locks: Arc<Locks>) -> Self {
        Self { locks, entered: Arc::default() }
    }

    fn entered(&self) -> MutexGuard<'_, HashMap<Uuid, Waiter>> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a caller has entered the queue of a key.
    pub(crate) fn enter(&self, key: &str, owner: Uuid, waiter: Waiter) {
        self.entered().insert(owner, Waiter { key: key.to_owned(), ..waiter });
    }

    pub(crate) fn remove(&self, owner: Uuid) {
        self.entered().remove(&owner);
    }

    pub(crate) fn get(&self, owner: Uuid) -> Option<Waiter> {
        self.entered().get(&owner).cloned()
    }

    /// Those that wait for a key.
    fn of(&self, key: &str) -> Vec<(Uuid, Waiter)> {
        let entered = self.entered();
        let of_key = entered.iter().filter(|(_, waiter)| waiter.key == key);
        of_key.map(|(owner, waiter)| (*owner, waiter.clone())).collect()
    }

    /// Those whose places are due, which are noted as renewed.
    fn due(&self, key: &str) -> Vec<Uuid> {
        let (mut entered, now) = (self.entered(), Instant::now());
        let of_key = entered.iter_mut().filter(|(_, waiter)| waiter.key == key);
        let due = of_key.filter(|(_, waiter)| now - waiter.renewed >= RENEWAL);
        due.map(|(owner, waiter)| {
            waiter.renewed = now;
            *owner
        })
        .collect()
    }

    /// The state of a key for those here that wait for it: free if one of them has to do something.
    fn state(&self, key: &str, row: &LockRow) -> KeyState {
        let now = self.locks.clock.now();
        let turn = self.of(key).iter().any(|(owner, waiter)| {
            row.is_turn_of(&waiter.taker(*owner), now) || !row.waits(*owner)
        });
        let rest = row.rest(now).map(Duration::from_millis);
        let remaining = if turn { Some(Duration::ZERO) } else { rest };
        KeyState { key: key.to_owned(), grant: row.token(), remaining }
    }
}

#[async_trait]
impl KeyStates for Waiters {
    async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
        let ops = keys.iter().map(|key| self.locks.look_op(key, &self.due(key)));
        let ops = ops.collect::<Result<Vec<_>, _>>()?;
        let found = self.locks.client.exchange_all(ops).await;
        let rows = keys.iter().zip(found).map(|(key, found)| {
            let row = self.locks.note(key, found?)?;
            Ok(self.state(key, &row))
        });
        // If one fails, all that wait find out for themselves.
        rows.collect()
    }
}
