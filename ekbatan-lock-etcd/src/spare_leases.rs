//! Leases that are granted in advance, so that a take waits for one write of the members and not for two.
//!
//! Invariants: a lease is for one take. It is granted for a second more than its term and used within that
//! second, so the holder has its whole term. One that is not used within that second is revoked at a later take. The
//! lease of a take is remembered until the take is answered: a further try of the same owner uses that lease, and an
//! owner that gives up revokes it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::answer::left;
use crate::leases::{self, Leases};

/// How much longer than its term a lease is granted, in seconds.
const LONGER: i64 = 1;

/// Takes for one term that follow each other within this time have leases granted in advance.
const BUSY: Duration = Duration::from_secs(1);

/// How many leases are granted in advance at most.
const MOST: usize = 8;

/// So many takes without an answer are remembered in any case.
const UNANSWERED: usize = 1_024;

pub(crate) struct SpareLeases {
    leases: Arc<Leases>,
    state: Mutex<SpareState>,
}

#[derive(Default)]
struct SpareState {
    /// When the last take was, and its term.
    last_take: Option<(Instant, i64)>,
    /// In the order in which they were granted.
    ready: VecDeque<Spare>,
    /// How many are being granted.
    ordered: usize,
    /// By owner, the leases of takes that have no answer yet, and when they end.
    unanswered: HashMap<Uuid, (i64, Instant)>,
    /// Whether no more are granted in advance.
    closed: bool,
    /// How many may be remembered until those are forgotten that have ended.
    most: usize,
}

struct Spare {
    id: i64,
    /// The term.
    seconds: i64,
    /// Until then it lasts for its term.
    fresh_until: Instant,
    ends: Instant,
}

/// The lease of a take.
pub(crate) struct LeaseOfTake {
    pub(crate) id: i64,
    /// Whether it is granted for the term already.
    pub(crate) is_granted: bool,
}

impl SpareLeases {
    pub(crate) fn new(leases: Arc<Leases>) -> Arc<Self> {
        Arc::new(Self { leases, state: Mutex::default() })
    }

    /// The lease for a take of this owner.
    pub(crate) fn of_take(self: &Arc<Self>, owner: Uuid, seconds: i64) -> LeaseOfTake {
        let now = Instant::now();
        let mut state = self.state();
        if let Some((id, ends)) = state.unanswered.get_mut(&owner) {
            // It is about to be prolonged.
            *ends = now + left(seconds);
            return LeaseOfTake { id: *id, is_granted: false };
        }
        state.take_stale(now).for_each(|spare| self.leases.discard(spare.id));
        if state.wants_more(seconds, now) {
            state.ordered += 1;
            tokio::spawn(Ordered(self.clone()).grant_one(seconds));
        }
        let (lease, ends) = match state.take_for(seconds) {
            Some(Spare { id, ends, .. }) => (LeaseOfTake { id, is_granted: true }, ends),
            None => {
                let id = leases::of_holder(owner);
                (LeaseOfTake { id, is_granted: false }, now + left(seconds))
            }
        };
        state.remember(owner, lease.id, ends, now);
        lease
    }

    /// The lease of a take of this owner that may be on its way.
    pub(crate) fn unanswered(&self, owner: Uuid) -> i64 {
        let state = self.state();
        state.unanswered.get(&owner).map_or_else(|| leases::of_holder(owner), |(id, _)| *id)
    }

    /// Says that what became of the takes of this owner is known.
    pub(crate) fn answered(&self, owner: Uuid) {
        self.state().unanswered.remove(&owner);
    }

    /// Discards those that are ready, and grants no more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        for spare in state.ready.drain(..) {
            self.leases.discard(spare.id);
        }
    }

    /// Keeps a lease that ends then, unless no more are used. One whose grant was not answered may be there. It
    /// has no keys, and ends with its term.
    fn has_kept(&self, id: i64, seconds: i64, ends: Option<Instant>) -> bool {
        let mut state = self.state();
        let Some(ends) = ends.filter(|_| !state.closed) else { return !state.closed };
        let fresh_until = ends.checked_sub(left(seconds)).unwrap_or(ends);
        state.ready.push_back(Spare { id, seconds, fresh_until, ends });
        true
    }

    /// No panic can leave the state inconsistent.
    fn state(&self) -> MutexGuard<'_, SpareState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease that is being granted in advance, until its task ends in any way, such as with its runtime.
struct Ordered(Arc<SpareLeases>);

impl Ordered {
    async fn grant_one(self, seconds: i64) {
        let (spares, id) = (&self.0, fastrand::i64(1..));
        let granted = spares.leases.grant(id, seconds.saturating_add(LONGER)).await;
        if let Err(error) = &granted {
            tracing::debug!(%error, "a lease was not granted in advance");
        }
        if !spares.has_kept(id, seconds, granted.ok()) {
            drop(spares.leases.revoke(id).await);
        }
    }
}

impl Drop for Ordered {
    fn drop(&mut self) {
        self.0.state().ordered -= 1;
    }
}

impl SpareState {
    /// Takes those out that do not last for their term any more.
    fn take_stale(&mut self, now: Instant) -> impl Iterator<Item = Spare> {
        let (fresh, stale): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.ready).into_iter().partition(|it| now < it.fresh_until);
        self.ready = fresh;
        stale.into_iter()
    }

    /// Takes the oldest for this term.
    fn take_for(&mut self, seconds: i64) -> Option<Spare> {
        let at = self.ready.iter().position(|spare| spare.seconds == seconds)?;
        self.ready.remove(at)
    }

    /// Takes note of a take. Answers whether a lease is to be granted in advance.
    fn wants_more(&mut self, seconds: i64, now: Instant) -> bool {
        let last = self.last_take.replace((now, seconds));
        let is_busy =
            last.is_some_and(|(last, of)| of == seconds && now.duration_since(last) < BUSY);
        is_busy && !self.closed && self.ready.len() + self.ordered < MOST
    }

    /// A take whose lease has ended has no effect any more.
    fn remember(&mut self, owner: Uuid, lease: i64, ends: Instant, now: Instant) {
        if self.unanswered.len() >= self.most.max(UNANSWERED) {
            self.unanswered.retain(|_, (_, ends)| now < *ends);
            self.most = 2 * self.unanswered.len();
        }
        self.unanswered.insert(owner, (lease, ends));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_granted_in_advance_while_takes_follow_each_other() {
        let (mut state, now) = (SpareState::default(), Instant::now());
        assert!(!state.wants_more(30, now), "there was one take");
        assert!(state.wants_more(30, now));
        assert!(!state.wants_more(30, now + BUSY), "the last take is long ago");
        state.ordered = MOST;
        assert!(!state.wants_more(30, now + BUSY), "there are enough");
    }

    #[test]
    fn takes_without_an_answer_are_remembered_until_their_leases_end() {
        let (mut state, now) = (SpareState::default(), Instant::now());
        let last = Uuid::new_v4();
        (0..UNANSWERED).for_each(|_| state.remember(Uuid::new_v4(), 1, now, now));
        state.remember(last, 2, now + BUSY, now);
        assert_eq!(state.unanswered.len(), 1);
        state.remember(Uuid::new_v4(), 3, now + BUSY, now);
        assert_eq!(state.unanswered[&last].0, 2);
    }

    #[test]
    fn only_a_fresh_lease_of_the_term_is_used_and_the_oldest_first() {
        let (mut state, now) = (SpareState::default(), Instant::now());
        let stale = now;
        let fresh = now + BUSY;
        for (id, seconds, fresh_until) in
            [(1, 30, stale), (2, 90, fresh), (3, 30, fresh), (4, 30, fresh)]
        {
            state.ready.push_back(Spare { id, seconds, fresh_until, ends: fresh });
        }
        assert_eq!(state.take_stale(now).map(|spare| spare.id).collect::<Vec<_>>(), [1]);
        assert_eq!(state.take_for(30).map(|spare| spare.id), Some(3));
        assert_eq!(state.take_for(60).map(|spare| spare.id), None);
        assert_eq!(state.ready.iter().map(|spare| spare.id).collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn takes_for_terms_in_turn_have_no_lease_granted_in_advance() {
        let (mut state, now) = (SpareState::default(), Instant::now());
        assert!((0..10).all(|n| !state.wants_more(30 + n % 2, now)));
        assert!(state.wants_more(31, now));
    }
}
