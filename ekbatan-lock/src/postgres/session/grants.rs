//! What one session holds, as this process knows it.
//!
//! What always holds: a session grants its own locks again, so a key goes to the server only
//! while nothing here stands for it; each lock is given back by one caller.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::{Grant, GrantRequest};

/// The keys of one session, by the number of their lock.
#[derive(Default)]
pub(super) struct Grants {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    locks: HashMap<i64, Stage>,
    over: bool,
}

enum Stage {
    /// The server is being asked for it, or to take it back.
    Asked,
    Held(Held),
}

/// A lock that the session has.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) grant: Grant,
    pub(super) holder: String,
    pub(super) since: Instant,
}

impl Held {
    fn is_of(&self, grant: &Grant) -> bool {
        let heard = grant.token == 0 || grant.token == self.grant.token;
        self.grant.owner == grant.owner && heard
    }
}

impl Grants {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to ask for a lock; `false` if somebody of this process has it or asks for it.
    pub(super) fn ask(&self, lock: i64) -> bool {
        let mut state = self.state();
        if state.over || state.locks.contains_key(&lock) {
            return false;
        }
        state.locks.insert(lock, Stage::Asked);
        true
    }

    /// The lock was granted; `None` if the session ended before this was known.
    pub(super) fn granted(&self, lock: i64, request: &GrantRequest, token: i64) -> Option<Grant> {
        let mut state = self.state();
        if state.over {
            return None;
        }
        let grant = Grant { owner: request.owner, token };
        let held = Held { grant, holder: request.holder.clone(), since: Instant::now() };
        state.locks.insert(lock, Stage::Held(held));
        Some(grant)
    }

    /// Begins to give a lock back; `false` if it is not this grant's.
    pub(super) fn give_back(&self, lock: i64, grant: &Grant) -> bool {
        let mut state = self.state();
        let ours = matches!(state.locks.get(&lock), Some(Stage::Held(held)) if held.is_of(grant));
        if ours {
            state.locks.insert(lock, Stage::Asked);
        }
        ours
    }

    /// The server has the lock back, or never gave it.
    pub(super) fn gone(&self, lock: i64) {
        self.state().locks.remove(&lock);
    }

    pub(super) fn held(&self, lock: i64) -> Option<Held> {
        match self.state().locks.get(&lock) {
            Some(Stage::Held(held)) => Some(held.clone()),
            _ => None,
        }
    }

    /// Whether the grant stands.
    pub(super) fn stands(&self, lock: i64, grant: &Grant) -> bool {
        self.held(lock).is_some_and(|held| held.is_of(grant))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state().locks.is_empty()
    }

    /// The session ended: nothing is held, and nothing will be.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.over = true;
        state.locks.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;

    fn request() -> GrantRequest {
        let term = Duration::from_secs(1);
        GrantRequest { owner: Uuid::new_v4(), holder: "me".to_owned(), term }
    }

    #[test]
    fn a_lock_is_asked_for_once_and_given_back_once() {
        let grants = Grants::default();
        assert!(grants.ask(1) && !grants.ask(1) && grants.ask(2));
        let grant = grants.granted(1, &request(), 7).unwrap();
        assert!(!grants.ask(1));
        assert!(!grants.give_back(1, &Grant { token: 6, ..grant }), "an older grant");
        assert!(grants.stands(1, &grant));
        assert!(grants.give_back(1, &Grant { token: 0, ..grant }));
        assert!(!grants.give_back(1, &grant));
        assert!(!grants.ask(1), "it is on its way back");
        grants.gone(1);
        assert!(grants.ask(1));
    }

    #[test]
    fn nothing_is_granted_by_a_session_that_ended() {
        let grants = Grants::default();
        assert!(grants.ask(1));
        grants.end();
        assert_eq!(grants.granted(1, &request(), 7), None);
        assert!(!grants.ask(2) && grants.is_empty());
    }
}
