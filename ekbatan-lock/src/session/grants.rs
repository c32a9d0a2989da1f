//! The locks of one session, as this process knows them, and how the session ended.
//!
//! Invariants: a session is granted its own locks again, so a key goes to the server only
//! while this table has no entry for it. Each lock is released by one caller. After the
//! session has ended, no grant is valid, and none becomes valid.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::{Grant, GrantRequest};

/// The grants of one session. `L` identifies a lock at the server.
pub(crate) struct SessionGrants<L> {
    locks: Mutex<HashMap<L, Stage>>,
    /// Why the session ended, once it has. Written only while `locks` is locked.
    ended: watch::Sender<Option<String>>,
}

enum Stage {
    /// A request for the lock, or its release, is at the server.
    InFlight,
    Held(HeldLock),
}

/// A lock that the session has.
#[derive(Debug, Clone)]
pub(crate) struct HeldLock {
    pub(crate) grant: Grant,
    pub(crate) holder: String,
    pub(crate) since: Instant,
}

impl HeldLock {
    /// A token of zero stands for a grant whose answer was lost.
    fn is_of(&self, grant: &Grant) -> bool {
        self.grant.owner == grant.owner && (grant.token == 0 || grant.token == self.grant.token)
    }
}

impl<L: Eq + Hash> SessionGrants<L> {
    pub(crate) fn new() -> Self {
        Self { locks: Mutex::default(), ended: watch::Sender::new(None) }
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<L, Stage>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a request for a lock. Returns `false` if this process has the lock or has a
    /// request for it at the server.
    pub(crate) fn begin_take(&self, lock: L) -> bool {
        let mut locks = self.locks();
        if self.is_over() || locks.contains_key(&lock) {
            return false;
        }
        locks.insert(lock, Stage::InFlight);
        true
    }

    /// Stores a grant. Returns `None` if the session has ended meanwhile.
    pub(crate) fn granted(&self, lock: L, request: &GrantRequest, token: i64) -> Option<Grant> {
        let mut locks = self.locks();
        if self.is_over() {
            return None;
        }
        let grant = Grant { owner: request.owner, token };
        let held = HeldLock { grant, holder: request.holder.clone(), since: Instant::now() };
        locks.insert(lock, Stage::Held(held));
        Some(grant)
    }

    /// Begins the release of a lock. Returns `false` if the grant is not valid.
    pub(crate) fn begin_release(&self, lock: L, grant: &Grant) -> bool {
        let mut locks = self.locks();
        let valid = matches!(locks.get(&lock), Some(Stage::Held(held)) if held.is_of(grant));
        if valid {
            locks.insert(lock, Stage::InFlight);
        }
        valid
    }

    /// Removes a lock that the server has back or did not grant.
    pub(crate) fn remove(&self, lock: &L) {
        self.locks().remove(lock);
    }

    pub(crate) fn held(&self, lock: &L) -> Option<HeldLock> {
        match self.locks().get(lock) {
            Some(Stage::Held(held)) => Some(held.clone()),
            _ => None,
        }
    }

    /// Whether the grant is valid.
    pub(crate) fn is_valid(&self, lock: &L, grant: &Grant) -> bool {
        self.held(lock).is_some_and(|held| held.is_of(grant))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.locks().is_empty()
    }

    /// Notes that the session has ended, and drops every grant. The first reason is kept.
    pub(crate) fn end(&self, why: String) {
        let mut locks = self.locks();
        locks.clear();
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(why);
            }
            first
        });
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Resolves with the reason when the session has ended.
    pub(crate) async fn ended(&self) -> String {
        let mut ended = self.ended.subscribe();
        let why = ended.wait_for(Option::is_some).await;
        why.map(|why| why.clone().unwrap_or_default()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;

    fn request() -> GrantRequest {
        GrantRequest::new(Uuid::new_v4(), "me", Duration::from_secs(1))
    }

    #[test]
    fn a_lock_is_requested_once_and_released_once() {
        let grants = SessionGrants::new();
        assert!(grants.begin_take(1) && !grants.begin_take(1) && grants.begin_take(2));
        let grant = grants.granted(1, &request(), 7).unwrap();
        assert!(!grants.begin_take(1));
        assert!(!grants.begin_release(1, &Grant { token: 6, ..grant }), "an older grant");
        assert!(!grants.is_valid(&1, &Grant { owner: Uuid::new_v4(), token: 7 }));
        assert!(grants.is_valid(&1, &grant));
        assert!(grants.begin_release(1, &Grant { token: 0, ..grant }));
        assert!(!grants.begin_release(1, &grant));
        assert!(!grants.begin_take(1), "its release is in flight");
        grants.remove(&1);
        assert!(grants.begin_take(1));
    }

    #[test]
    fn a_session_that_ended_grants_nothing_and_keeps_the_first_reason() {
        let grants = SessionGrants::new();
        assert!(grants.begin_take(1));
        grants.end("first".to_owned());
        grants.end("second".to_owned());
        assert_eq!(grants.granted(1, &request(), 7), None);
        assert!(!grants.begin_take(2) && grants.is_empty());
        assert_eq!(grants.ended.borrow().as_deref(), Some("first"));
    }
}
