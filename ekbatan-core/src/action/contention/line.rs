//! Who waits for a key in this process.
//!
//! What always holds: a line is there exactly as long as somebody has its turn, and so it is
//! as many lines as keys are worked on, however many there are. Whoever has to run again
//! takes the place that it had.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::Coalesced;
use super::group::Group;
use super::turn::{Told, Turn};
use crate::action::executor::Inner;
use crate::domain::LockKey;

/// How many locks the lines share: those who work on different keys seldom meet.
const SHELVES: usize = 64;

/// How a member of the line is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// With the others.
    First,
    /// With the others, once more.
    Again,
    /// By itself, as an ordinary call.
    Alone,
}

/// One who waits for its turn.
pub(super) struct Waiter {
    pub(super) ticket: u64,
    pub(super) run: Run,
    pub(super) options: Coalesced,
    pub(super) tell: oneshot::Sender<Told>,
}

type Line = BTreeMap<u64, Waiter>;

/// Every line of an executor.
pub(in crate::action) struct Lines {
    shelves: Vec<Mutex<HashMap<LockKey, Line>>>,
    hasher: RandomState,
    tickets: AtomicU64,
    /// A caller may be dropped where there is no runtime, and leave a group to be committed.
    runtime: OnceLock<Handle>,
}

/// Who has the turn next.
pub(super) enum Next {
    /// This one.
    Waiter(Waiter),
    /// Nobody yet: the group is to be committed first.
    Commit,
    /// Nobody: the line is no more.
    Nobody,
}

/// What one who enters a line finds.
pub(super) enum Place {
    /// Nobody before it.
    Turn(Turn),
    /// It will be told.
    Waits(oneshot::Receiver<Told>),
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            shelves: (0..SHELVES).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            tickets: AtomicU64::new(0),
            runtime: OnceLock::new(),
        }
    }
}

impl Lines {
    fn shelf(&self, key: &LockKey) -> MutexGuard<'_, HashMap<LockKey, Line>> {
        let shelf = self.hasher.hash_one(key) as usize % SHELVES;
        self.shelves[shelf].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many lines there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        let shelves = self.shelves.iter();
        shelves.map(|shelf| shelf.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    /// Runs what nobody can drop.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        match Handle::try_current().ok().as_ref().or(self.runtime.get()) {
            Some(runtime) => drop(runtime.spawn(work)),
            // Nobody has ever entered a line, so that there is nothing to be done.
            None => drop(work),
        }
    }

    pub(super) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    /// Enters the line, behind all who have older tickets.
    pub(super) fn enter(
        &self,
        inner: &Arc<Inner>,
        key: &LockKey,
        ticket: u64,
        run: Run,
        options: Coalesced,
    ) -> Place {
        self.runtime.get_or_init(Handle::current);
        let mut shelf = self.shelf(key);
        if let Some(line) = shelf.get_mut(key) {
            let (tell, told) = oneshot::channel();
            line.insert(ticket, Waiter { ticket, run, options, tell });
            return Place::Waits(told);
        }
        shelf.insert(key.clone(), Line::new());
        drop(shelf);
        Place::Turn(Turn::new(inner.clone(), key.clone(), Group::new(options)))
    }

    /// Lets some back in at their old places. The answer is the turn of the line, if they are
    /// the first in it.
    pub(super) fn put_back(
        &self,
        inner: &Arc<Inner>,
        key: &LockKey,
        waiters: Vec<Waiter>,
    ) -> Option<Turn> {
        let options = waiters.first()?.options;
        let waiters = waiters.into_iter().map(|waiter| (waiter.ticket, waiter));
        let mut shelf = self.shelf(key);
        match shelf.entry(key.clone()) {
            Entry::Occupied(mut line) => {
                line.get_mut().extend(waiters);
                None
            }
            Entry::Vacant(line) => {
                line.insert(waiters.collect());
                drop(shelf);
                Some(Turn::new(inner.clone(), key.clone(), Group::new(options)))
            }
        }
    }

    /// Whether anybody waits.
    pub(super) fn has_waiters(&self, key: &LockKey) -> bool {
        let mut shelf = self.shelf(key);
        shelf.get_mut(key).is_some_and(|line| first(line).is_some())
    }

    /// Takes out who is next after a group so far.
    pub(super) fn next(&self, key: &LockKey, group: &Group) -> Next {
        let mut shelf = self.shelf(key);
        let Some(line) = shelf.get_mut(key) else { return Next::Nobody };
        let may_join = |waiter: &Waiter| {
            group.is_empty()
                || (waiter.run != Run::Alone
                    && waiter.options.lease == group.options.lease
                    && !group.is_full())
        };
        match first(line) {
            Some(waiter) if !may_join(waiter) => Next::Commit,
            Some(_) => line.pop_first().map_or(Next::Nobody, |(_, waiter)| Next::Waiter(waiter)),
            None if group.is_empty() => {
                shelf.remove(key);
                Next::Nobody
            }
            None => Next::Commit,
        }
    }
}

/// The first in line who still waits.
fn first(line: &mut Line) -> Option<&Waiter> {
    while line.first_key_value()?.1.tell.is_closed() {
        line.pop_first();
    }
    line.first_key_value().map(|(_, waiter)| waiter)
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::action::ActionExecutor;
    use crate::shard::Databases;

    #[tokio::test]
    async fn a_line_is_there_only_while_somebody_has_its_turn() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().join("lines.db").display());
        let executor = ActionExecutor::new(&Databases::open(&url).await.unwrap(), "tests").unwrap();
        let (inner, options) = (executor.inner, Coalesced::default());
        let lines = &inner.strategies.lines;
        let enter = |key: &LockKey| lines.enter(&inner, key, lines.ticket(), Run::First, options);
        for n in 0..10_000 {
            let key = LockKey::of("wallet", n);
            let Place::Turn(turn) = enter(&key) else { panic!("{key} is new") };
            let (Place::Waits(gone), Place::Waits(next)) = (enter(&key), enter(&key)) else {
                panic!("somebody has the turn of {key}");
            };
            assert_eq!((lines.count(), lines.has_waiters(&key)), (1, true));
            drop(gone);
            drop(turn);
            let Ok(Told::Turn(turn, Run::First)) = next.await else { panic!("{key} has no turn") };
            assert!(!lines.has_waiters(&key));
            drop(turn);
            assert_eq!(lines.count(), 0);
        }
    }
}
