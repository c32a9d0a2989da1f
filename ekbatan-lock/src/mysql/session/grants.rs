//! What one session holds, as this process knows it, and how the session ended.
//!
//! What always holds: once the session is over nothing stands, and nothing will.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::Grant;

pub(super) struct Grants {
    held: Mutex<HashMap<String, Grant>>,
    over: watch::Sender<Option<String>>,
}

impl Grants {
    pub(super) fn new() -> Self {
        Self { held: Mutex::default(), over: watch::Sender::new(None) }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<String, Grant>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The grant under which the key is held.
    pub(super) fn of(&self, key: &str) -> Option<Grant> {
        self.held().get(key).copied()
    }

    /// Whether the grant stands; by its owner alone where nobody heard of the token.
    pub(super) fn stands(&self, key: &str, grant: &Grant) -> bool {
        self.of(key).is_some_and(|held| {
            held.owner == grant.owner && (grant.token == 0 || grant.token == held.token)
        })
    }

    pub(super) fn granted(&self, key: &str, grant: Grant) {
        let mut held = self.held();
        if !self.is_over() {
            held.insert(key.to_owned(), grant);
        }
    }

    pub(super) fn gave_back(&self, key: &str) {
        self.held().remove(key);
    }

    /// The session is over. The first reason stays.
    pub(super) fn end(&self, why: String) {
        let mut held = self.held();
        held.clear();
        self.over.send_if_modified(|over| {
            let first = over.is_none();
            if first {
                *over = Some(why);
            }
            first
        });
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.borrow().is_some()
    }

    /// Resolves with the reason when the session is over.
    pub(super) async fn ended(&self) -> String {
        let mut over = self.over.subscribe();
        let why = over.wait_for(Option::is_some).await;
        why.map(|why| why.clone().unwrap_or_default()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_grant_stands_until_it_is_given_back_or_the_session_ends() {
        let (grants, grant) = (Grants::new(), Grant { owner: Uuid::new_v4(), token: 7 });
        grants.granted("k", grant);
        assert!(grants.stands("k", &grant) && grants.stands("k", &Grant { token: 0, ..grant }));
        assert!(!grants.stands("k", &Grant { token: 6, ..grant }));
        assert!(!grants.stands("k", &Grant { owner: Uuid::new_v4(), token: 7 }));
        grants.gave_back("k");
        assert_eq!(grants.of("k"), None);
        grants.granted("k", grant);
        grants.end("first".to_owned());
        grants.end("second".to_owned());
        grants.granted("k", grant);
        assert!(grants.is_over() && !grants.stands("k", &grant));
    }
}
