//! Leases that are granted in advance, so that a take waits for one write of the members and not for two.
//!
//! Invariants: a lease is for one take. It is granted for a second more than its term and used within that
//! second, so the holder has its whole term. The lease of a take is remembered until the take is answered: a
//! further try of the same owner uses that lease, and an owner that gives up revokes it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::answer::left;
use crate::leases::{self, Leases};

/// How much longer than its term a lease is granted, in seconds.
const LONGER: i64 = 1;

/// Takes that follow each other within this time have leases granted in advance.
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
    /// The term for which leases are granted in advance: that of the last take.
    seconds: i64,
    last_take: Option<Instant>,
    ready: Vec<Spare>,
    /// How many are being granted.
    ordered: usize,
    /// By owner, the leases of takes that have no answer yet, and when they end.
    unanswered: HashMap<Uuid, (i64, Instant)>,
}

struct Spare {
    id: i64,
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
        if let Some((id, _)) = state.unanswered.get(&owner) {
            return LeaseOfTake { id: *id, is_granted: false };
        }
        if state.wants_more(seconds, now) {
            state.ordered += 1;
            tokio::spawn(self.clone().grant_one(seconds));
        }
        // The others end by themselves.
        state.ready.retain(|spare| now < spare.fresh_until);
        let (lease, ends) = match state.ready.pop() {
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

    async fn grant_one(self: Arc<Self>, seconds: i64) {
        let id = fastrand::i64(1..);
        let granted = self.leases.grant(id, seconds.saturating_add(LONGER)).await;
        let mut state = self.state();
        state.ordered -= 1;
        match granted {
            Ok(ends) if state.seconds == seconds => {
                let fresh_until = ends.checked_sub(left(seconds)).unwrap_or(ends);
                state.ready.push(Spare { id, fresh_until, ends });
            }
            Ok(_) => self.leases.discard(id),
            Err(error) => tracing::debug!(%error, "a lease was not granted in advance"),
        }
    }

    /// No panic can leave the state inconsistent.
    fn state(&self) -> MutexGuard<'_, SpareState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpareState {
    /// Takes note of a take. Answers whether a lease is to be granted in advance.
    fn wants_more(&mut self, seconds: i64, now: Instant) -> bool {
        if self.seconds != seconds {
            self.seconds = seconds;
            self.ready.clear();
        }
        let last = self.last_take.replace(now);
        let is_busy = last.is_some_and(|last| now.duration_since(last) < BUSY);
        is_busy && self.ready.len() + self.ordered < MOST
    }

    /// A take whose lease has ended has no effect any more.
    fn remember(&mut self, owner: Uuid, lease: i64, ends: Instant, now: Instant) {
        if self.unanswered.len() >= UNANSWERED {
            self.unanswered.retain(|_, (_, ends)| now < *ends);
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
    fn a_lease_of_another_term_is_not_used() {
        let (mut state, now) =
            (SpareState { seconds: 29, ..SpareState::default() }, Instant::now());
        state.ready.push(Spare { id: 1, fresh_until: now, ends: now });
        state.wants_more(30, now);
        assert!(state.ready.is_empty());
    }
}
