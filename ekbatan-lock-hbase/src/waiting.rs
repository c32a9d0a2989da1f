//! The callers of this process that wait in the queues of keys, and their signs of life.
//!
//! Invariants: a look at the keys renews the places that need it, in the same request. A caller whose
//! turn has come, or whose place has ended, is woken. A key that cannot be looked at delays no other.
//! The time of a sign of life never goes back, in whichever order answers arrive.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_lock::{BackendError, GrantRequest, KeyState, KeyStates};
use tokio::time::Instant;
use uuid::Uuid;

use crate::client::milliseconds;
use crate::locks::{Locks, PLACE};
use crate::looking::{LOOK, by_server, unknown};
use crate::row::{LockRow, Taker};

/// Time between signs of life.
const RENEWAL: Duration = Duration::from_secs(1);

// A look may wait for another server before the next one begins.
const _: () = assert!(RENEWAL.as_millis() + LOOK.as_millis() * 2 < PLACE.as_millis());

/// A caller that waits in the queue of a key.
#[derive(Debug, Clone)]
pub(crate) struct Waiter {
    holder: String,
    pub(crate) term: Duration,
    /// When its last sign of life was given, or a little earlier.
    renewed: Instant,
}

impl Waiter {
    /// A caller whose place was renewed at this moment or a little later.
    pub(crate) fn new(request: &GrantRequest, renewed: Instant) -> Self {
        let (holder, term) = (request.holder.clone(), request.term);
        Self { holder, term, renewed }
    }

    /// Notes a sign of life of this time. The answer to a later one may have arrived before.
    fn lives_at(&mut self, time: Instant) {
        self.renewed = self.renewed.max(time);
    }

    /// Whether its place has ended, because it gave no sign of life for too long.
    pub(crate) fn has_ended(&self) -> bool {
        self.renewed.elapsed() >= PLACE
    }

    pub(crate) fn taker(&self, owner: Uuid) -> Taker<'_> {
        Taker { owner, holder: &self.holder, term: milliseconds(self.term) }
    }
}

/// The callers that wait, by key and owner.
type Entered = HashMap<String, HashMap<Uuid, Waiter>>;

#[derive(Clone)]
pub(crate) struct Waiters {
    locks: Arc<Locks>,
    entered: Arc<Mutex<Entered>>,
}

impl Waiters {
    pub(crate) fn new(locks: Arc<Locks>) -> Self {
        Self { locks, entered: Arc::default() }
    }

    fn entered(&self) -> MutexGuard<'_, Entered> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a caller is in the queue of a key.
    pub(crate) fn enter(&self, key: &str, owner: Uuid, mut waiter: Waiter) {
        let mut entered = self.entered();
        let of_key = entered.entry(key.to_owned()).or_default();
        if let Some(before) = of_key.get(&owner) {
            waiter.lives_at(before.renewed);
        }
        of_key.insert(owner, waiter);
    }

    pub(crate) fn remove(&self, key: &str, owner: Uuid) {
        let mut entered = self.entered();
        if let Some(of_key) = entered.get_mut(key) {
            of_key.remove(&owner);
            if of_key.is_empty() {
                entered.remove(key);
            }
        }
    }

    pub(crate) fn get(&self, key: &str, owner: Uuid) -> Option<Waiter> {
        self.entered().get(key)?.get(&owner).cloned()
    }

    /// Those that wait for a key and whose places are due.
    fn due(&self, key: &str) -> Vec<Uuid> {
        let (entered, now) = (self.entered(), Instant::now());
        let of_key = entered.get(key).into_iter().flatten();
        let due = of_key.filter(|(_, waiter)| now - waiter.renewed >= RENEWAL);
        due.map(|(owner, _)| *owner).collect()
    }

    /// Notes that the places of these were renewed at this time, or later.
    fn renewed(&self, key: &str, owners: &[Uuid], asked: Instant) {
        if let Some(of_key) = self.entered().get_mut(key) {
            for owner in owners {
                if let Some(waiter) = of_key.get_mut(owner) {
                    waiter.lives_at(asked);
                }
            }
        }
    }

    /// The state of a key for those here that wait for it: free if one of them has to do something.
    fn state(&self, key: &str, row: &LockRow) -> KeyState {
        let now = self.locks.clock.now();
        let turn = self.entered().get(key).into_iter().flatten().any(|(owner, waiter)| {
            row.is_turn_of(&waiter.taker(*owner), now) || !row.waits(*owner)
        });
        let rest = row.rest(now).map(Duration::from_millis);
        let remaining = if turn { Some(Duration::ZERO) } else { rest };
        KeyState { key: key.to_owned(), grant: row.token(), remaining }
    }

    /// Looks at keys whose rows are at one server.
    async fn look_at(self, keys: Vec<String>) -> Vec<KeyState> {
        let asked = Instant::now();
        let due: Vec<Vec<Uuid>> = keys.iter().map(|key| self.due(key)).collect();
        let rows = self.locks.look_at(&keys, &due).await;
        let states = keys.iter().zip(due).zip(rows).map(|((key, due), row)| match row {
            Ok(row) => {
                self.renewed(key, &due, asked);
                self.state(key, &row)
            }
            Err(error) => {
                tracing::debug!(%error, key, "a key that is waited for could not be looked at");
                // What was seen before is old by now.
                self.locks.forget(key);
                // An error that stays is found by those that wait, and ends their waiting.
                let remaining = (!error.may_pass()).then_some(Duration::ZERO);
                KeyState { remaining, ..unknown(key) }
            }
        });
        states.collect()
    }
}

#[async_trait]
impl KeyStates for Waiters {
    async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
        let look = |keys| self.clone().look_at(keys);
        Ok(by_server(keys, |key| self.locks.server_of(key), look).await)
    }
}

#[cfg(test)]
mod tests {
    use ekbatan_core::config::DataSourceConfig;

    use super::*;
    use crate::address::Address;
    use crate::client::Client;
    use crate::names::RowNames;

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_sets_the_time_of_a_sign_of_life_not_back() {
        let server = DataSourceConfig::new("hbase://127.0.0.1:1");
        let client = Client::new(Address::of(&server).unwrap());
        let names = RowNames::within("app").unwrap();
        let waiters = Waiters::new(Arc::new(Locks::new(client, names)));
        let request = GrantRequest::new(Uuid::new_v4(), "me", PLACE);
        let owner = request.owner;
        let first = Instant::now();
        waiters.enter("k", owner, Waiter::new(&request, first));
        tokio::time::sleep(PLACE - RENEWAL).await;
        let later = Instant::now();
        waiters.renewed("k", &[owner], later);
        // The answers to an earlier look, and to an earlier request for the place.
        waiters.renewed("k", &[owner], first);
        assert!(waiters.due("k").is_empty());
        waiters.enter("k", owner, Waiter::new(&request, first));
        assert!(waiters.due("k").is_empty());
        tokio::time::sleep(RENEWAL).await;
        assert_eq!(waiters.due("k"), [owner]);
        assert!(!waiters.get("k", owner).unwrap().has_ended());
        tokio::time::sleep(PLACE).await;
        assert!(waiters.get("k", owner).unwrap().has_ended());
    }
}
