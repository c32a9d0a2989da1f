//! Locks within one process, without a server.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use tokio::time::Instant;
use uuid::Uuid;

use crate::options::countable;
use crate::{Attempt, BackendError, Grant, GrantRequest, Holder, LockBackend, Released};

/// Grants keys within this process. Two backends are independent of each other.
#[derive(Default)]
pub struct ProcessBackend {
    state: Mutex<ProcessKeys>,
}

/// So many keys may stay whose term is over.
const FEW: usize = 1_024;

#[derive(Default)]
struct ProcessKeys {
    taken: HashMap<String, TakenKey>,
    /// So many keys there may be before those are removed whose term is over.
    most: usize,
    last_token: i64,
}

struct TakenKey {
    owner: Uuid,
    token: i64,
    holder: String,
    since: Instant,
    until: Instant,
}

impl TakenKey {
    fn grant(&self) -> Grant {
        Grant { owner: self.owner, token: self.token }
    }

    fn holder(&self) -> Holder {
        Holder::new(self.holder.clone(), self.token)
            .owner(self.owner)
            .held(Some(self.since.elapsed()))
            .remaining(Some(self.until.saturating_duration_since(Instant::now())))
    }
}

impl ProcessBackend {
    /// A backend without keys.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, ProcessKeys> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProcessKeys {
    /// The token grows from one run of the process to the next, because fences outlive the
    /// process.
    fn next_token(&mut self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_millis()).unwrap_or(i64::MAX >> 16);
        self.last_token = now.max(self.last_token + 1);
        self.last_token
    }

    /// Removes the keys whose term is over, when there are twice as many as after the last time. A key
    /// that is kept after its work is not released.
    fn sweep(&mut self) {
        if self.taken.len() >= self.most.max(FEW) {
            let now = Instant::now();
            self.taken.retain(|_, taken| taken.until > now);
            self.most = self.taken.len() * 2;
        }
    }

    fn standing(&self, key: &str) -> Option<&TakenKey> {
        self.taken.get(key).filter(|taken| taken.until > Instant::now())
    }

    /// Changes the end of a grant. Returns whether it stands.
    fn set_end(&mut self, key: &str, grant: &Grant, end: impl FnOnce(Instant) -> Instant) -> bool {
        let now = Instant::now();
        let taken = self.taken.get_mut(key);
        let Some(taken) = taken.filter(|it| it.until > now && it.owner == grant.owner) else {
            return false;
        };
        taken.until = end(taken.until);
        true
    }
}

#[async_trait]
impl LockBackend for ProcessBackend {
    fn name(&self) -> &'static str {
        "in-process"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let mut state = self.state();
        if let Some(taken) = state.standing(key) {
            return Ok(Attempt::Busy(Some(taken.until - Instant::now())));
        }
        let grant = Grant { owner: request.owner, token: state.next_token() };
        let now = Instant::now();
        let taken = TakenKey {
            owner: grant.owner,
            token: grant.token,
            holder: request.holder.clone(),
            since: now,
            until: now + countable(request.term),
        };
        state.sweep();
        state.taken.insert(key.to_owned(), taken);
        Ok(Attempt::Granted(grant))
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        let until = Instant::now() + countable(term);
        Ok(self.state().set_end(key, grant, |before| before.max(until)))
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        let until = Instant::now() + countable(term);
        Ok(self.state().set_end(key, grant, |_| until))
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let mut state = self.state();
        let ours = state.standing(key).is_some_and(|taken| taken.owner == grant.owner);
        if state.taken.get(key).is_some_and(|taken| taken.owner == grant.owner) {
            state.taken.remove(key);
        }
        Ok(Released { ours, wanted: false })
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        Ok(self.state().standing(key).map(TakenKey::holder))
    }

    async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        let state = self.state();
        let wanted = state.taken.keys().filter(|key| prefixes.iter().any(|it| key.starts_with(it)));
        let held = wanted.filter_map(|key| Some((key.clone(), state.standing(key)?.holder())));
        Ok(held.take(most).collect())
    }

    async fn force_release(
        &self,
        key: &str,
        seen: &Grant,
        _why: &str,
    ) -> Result<bool, BackendError> {
        let mut state = self.state();
        let stands = state.standing(key).is_some_and(|taken| taken.grant() == *seen);
        if stands {
            state.taken.remove(key);
        }
        Ok(stands)
    }

    fn frees_by_itself(&self) -> bool {
        true
    }

    fn spans_zones(&self) -> bool {
        false
    }
}

impl std::fmt::Debug for ProcessBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessBackend").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn keys_whose_term_is_over_do_not_pile_up() {
        let backend = ProcessBackend::new();
        let take = async |key: usize, term| {
            let request = GrantRequest::new(Uuid::new_v4(), "me", Duration::from_secs(term));
            let attempt = backend.try_grant(&key.to_string(), &request).await.unwrap();
            assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
        };
        for key in 0..FEW {
            take(key, 3_600).await;
        }
        for key in FEW..FEW * 20 {
            take(key, 1).await;
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        let left = backend.state().taken.len();
        assert!((FEW..=FEW * 3).contains(&left), "{left} keys");
        let prefixes = [String::new()];
        let standing = backend.list(&prefixes, usize::MAX).await.unwrap().len();
        assert!((FEW..FEW + 101).contains(&standing), "{standing} of them are held");
    }

    #[test]
    fn tokens_grow_although_the_clock_went_back() {
        let year = 365 * 86_400_000;
        let mut keys = ProcessKeys::default();
        let ahead = keys.next_token() + year;
        keys.last_token = ahead;
        assert_eq!([keys.next_token(), keys.next_token()], [ahead + 1, ahead + 2]);
    }
}
