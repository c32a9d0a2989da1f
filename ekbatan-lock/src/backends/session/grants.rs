//! The locks of one session, as this process knows them, and how the session ended.
//!
//! Invariants: a session is granted its own locks again, so a key goes to the server only
//! while this table has no entry for it. Each lock is released by one caller. After the
//! session has ended, no grant is valid, and none becomes valid. A lock counts for
//! [`idle_limit`](SessionGrants::idle_limit) from before its request is sent.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::options::countable;
use crate::{Grant, GrantRequest};

/// The grants of one session. `L` identifies a lock at the server.
pub(crate) struct SessionGrants<L> {
    table: Mutex<Table<L>>,
    /// Why the session ended, once it has. Written only while `table` is locked.
    ended: watch::Sender<Option<String>>,
}

struct Table<L> {
    locks: HashMap<L, Stage>,
    /// When the locks end, with the number of locks for each time.
    ends: BTreeMap<Instant, usize>,
}

enum Stage {
    /// A request for the lock is at the server. A grant ends at this time.
    Taking(Instant),
    Held(HeldLock),
    /// The release of the lock is at the server.
    Releasing,
}

impl<L: Eq + Hash> Table<L> {
    /// Replaces the stage of the lock, and when it ends.
    fn set(&mut self, lock: L, stage: Stage) {
        let ends = stage.ends();
        let before = self.locks.insert(lock, stage).and_then(|before| before.ends());
        if before != ends {
            self.forget(before);
            if let Some(ends) = ends {
                *self.ends.entry(ends).or_default() += 1;
            }
        }
    }

    fn remove(&mut self, lock: &L) {
        let before = self.locks.remove(lock).and_then(|before| before.ends());
        self.forget(before);
    }

    fn forget(&mut self, ends: Option<Instant>) {
        if let Some(ends) = ends
            && let Some(count) = self.ends.get_mut(&ends)
        {
            *count -= 1;
            if *count == 0 {
                self.ends.remove(&ends);
            }
        }
    }
}

impl Stage {
    fn ends(&self) -> Option<Instant> {
        match self {
            Self::Taking(until) => Some(*until),
            Self::Held(held) => Some(held.until),
            Self::Releasing => None,
        }
    }
}

/// A lock that the session has.
#[derive(Debug, Clone)]
pub(crate) struct HeldLock {
    pub(crate) grant: Grant,
    pub(crate) holder: String,
    pub(crate) since: Instant,
    /// When this process releases it at the latest.
    pub(crate) until: Instant,
}

impl HeldLock {
    /// A token of zero stands for a grant whose answer was lost.
    fn is_of(&self, grant: &Grant) -> bool {
        self.grant.owner == grant.owner && (grant.token == 0 || grant.token == self.grant.token)
    }
}

impl<L: Eq + Hash> SessionGrants<L> {
    pub(crate) fn new() -> Self {
        let table = Table { locks: HashMap::new(), ends: BTreeMap::new() };
        Self { table: Mutex::new(table), ended: watch::Sender::new(None) }
    }

    fn table(&self) -> MutexGuard<'_, Table<L>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a request for a lock. Returns `false` if this process has the lock or has a
    /// request for it at the server.
    pub(crate) fn begin_take(&self, lock: L, request: &GrantRequest) -> bool {
        let mut table = self.table();
        if self.is_over() || table.locks.contains_key(&lock) {
            return false;
        }
        table.set(lock, Stage::Taking(Instant::now() + countable(request.term)));
        true
    }

    /// Stores a grant. Returns `None` if the session has ended meanwhile.
    pub(crate) fn granted(&self, lock: L, request: &GrantRequest, token: i64) -> Option<Grant> {
        let mut table = self.table();
        if self.is_over() {
            return None;
        }
        let (grant, since) = (Grant { owner: request.owner, token }, Instant::now());
        let until =
            table.locks.get(&lock).and_then(Stage::ends).unwrap_or(since + countable(request.term));
        let held = HeldLock { grant, holder: request.holder.clone(), since, until };
        table.set(lock, Stage::Held(held));
        Some(grant)
    }

    /// Makes a lock end after `term` from now. Returns `false` if the grant is not valid.
    pub(crate) fn extend(&self, lock: L, grant: &Grant, term: Duration) -> bool {
        let mut table = self.table();
        match table.locks.get(&lock) {
            Some(Stage::Held(held)) if held.is_of(grant) => {
                let held = HeldLock { until: Instant::now() + countable(term), ..held.clone() };
                table.set(lock, Stage::Held(held));
                true
            }
            _ => false,
        }
    }

    /// Begins the release of a lock. Returns `false` if the grant is not valid.
    pub(crate) fn begin_release(&self, lock: L, grant: &Grant) -> bool {
        let mut table = self.table();
        let valid = matches!(table.locks.get(&lock), Some(Stage::Held(held)) if held.is_of(grant));
        if valid {
            table.set(lock, Stage::Releasing);
        }
        valid
    }

    /// Removes a lock that the server has back or did not grant.
    pub(crate) fn remove(&self, lock: &L) {
        self.table().remove(lock);
    }

    pub(crate) fn held(&self, lock: &L) -> Option<HeldLock> {
        match self.table().locks.get(lock) {
            Some(Stage::Held(held)) => Some(held.clone()),
            _ => None,
        }
    }

    /// Whether the grant is valid.
    pub(crate) fn is_valid(&self, lock: &L, grant: &Grant) -> bool {
        self.held(lock).is_some_and(|held| held.is_of(grant))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table().locks.is_empty()
    }

    /// How long the server may wait for the next statement before it ends the session: until
    /// the first of the locks ends, and `slack`. `None` if the session has no lock.
    ///
    /// A process that runs sends a statement in less than `slack`, so that only a process that
    /// stands still exceeds the limit.
    pub(crate) fn idle_limit(&self, slack: Duration) -> Option<Duration> {
        let first = *self.table().ends.first_key_value()?.0;
        Some(first.saturating_duration_since(Instant::now()) + slack)
    }

    /// Notes that the session has ended, and drops every grant. The first reason is kept.
    pub(crate) fn end(&self, why: String) {
        let mut table = self.table();
        table.locks.clear();
        table.ends.clear();
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
        let (grants, request) = (SessionGrants::new(), request());
        assert!(grants.begin_take(1, &request) && !grants.begin_take(1, &request));
        assert!(grants.begin_take(2, &request));
        let grant = grants.granted(1, &request, 7).unwrap();
        assert!(!grants.begin_take(1, &request));
        assert!(!grants.begin_release(1, &Grant { token: 6, ..grant }), "an older grant");
        assert!(!grants.is_valid(&1, &Grant { owner: Uuid::new_v4(), token: 7 }));
        assert!(grants.is_valid(&1, &grant));
        assert!(grants.begin_release(1, &Grant { token: 0, ..grant }));
        assert!(!grants.begin_release(1, &grant));
        assert!(!grants.begin_take(1, &request), "its release is in flight");
        grants.remove(&1);
        assert!(grants.begin_take(1, &request));
    }

    #[test]
    fn a_session_that_ended_grants_nothing_and_keeps_the_first_reason() {
        let (grants, request) = (SessionGrants::new(), request());
        assert!(grants.begin_take(1, &request));
        grants.end("first".to_owned());
        grants.end("second".to_owned());
        assert_eq!(grants.granted(1, &request, 7), None);
        assert!(!grants.begin_take(2, &request) && grants.is_empty());
        assert_eq!(grants.idle_limit(Duration::ZERO), None);
        assert_eq!(grants.ended.borrow().as_deref(), Some("first"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_lock_that_ends_first_limits_the_session() {
        let grants = SessionGrants::new();
        let slack = Duration::from_secs(5);
        let limit = || grants.idle_limit(slack).map(|limit| (limit - slack).as_secs());
        let lasting = |secs| GrantRequest::new(Uuid::new_v4(), "me", Duration::from_secs(secs));
        assert_eq!(limit(), None);
        assert!(grants.begin_take(1, &lasting(60)) && grants.begin_take(2, &lasting(60)));
        assert_eq!(limit(), Some(60), "a request counts before its answer");
        let one = grants.granted(1, &lasting(60), 7).unwrap();
        grants.remove(&2);
        assert!(grants.begin_take(3, &lasting(10)));
        assert_eq!(limit(), Some(10));
        let three = grants.granted(3, &lasting(10), 8).unwrap();
        tokio::time::advance(Duration::from_secs(8)).await;
        assert_eq!(limit(), Some(2));
        assert!(grants.extend(3, &three, Duration::from_secs(30)));
        assert!(!grants.extend(1, &three, Duration::from_secs(90)));
        assert_eq!(limit(), Some(30));
        tokio::time::advance(Duration::from_secs(40)).await;
        assert_eq!(limit(), Some(0), "a lock that is over counts until it is released");
        assert!(grants.begin_release(3, &three));
        assert_eq!(limit(), Some(12));
        assert!(grants.begin_release(1, &one));
        assert_eq!(limit(), None);
    }
}
