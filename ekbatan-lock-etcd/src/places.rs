//! The acquisitions of this process that wait at the server.
//!
//! Invariants: a place is kept while its caller waits, and ends at most [`PLACE`] after the caller
//! has gone or its process has died. An acquisition is known here before it is sent. A caller
//! whose place is not kept, because the runtime of the task stands still, tries again by itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use crate::leases::Leases;

/// How long a place is kept without a sign of life of its process.
pub(crate) const PLACE: Duration = Duration::from_secs(5);

/// How often a process gives a sign of life for its places.
const SIGN: Duration = Duration::from_millis(1_500);

pub(crate) struct Places {
    shared: Arc<Shared>,
}

struct Shared {
    leases: Arc<Leases>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: HashMap<Uuid, Told>,
    /// The number of acquisitions that have waited.
    waited: u64,
    /// The number of the task that gives signs of life, if there is one.
    keeper: Option<u64>,
    /// The number of tasks so far.
    keepers: u64,
}

/// An acquisition that waits, as the state knows it.
struct Told {
    number: u64,
    standing: watch::Sender<Standing>,
}

/// How an acquisition stands.
#[derive(Clone, Copy)]
enum Standing {
    /// It has no place yet.
    New,
    Waits(Entered),
    /// The server does not know its lease any more.
    Ended,
}

/// A place at the server.
#[derive(Clone, Copy)]
pub(crate) struct Entered {
    /// The revision at which it was made.
    pub(crate) created: i64,
    pub(crate) lease: i64,
    /// When it ends, or a little earlier.
    pub(crate) until: Instant,
}

/// An acquisition that waits, until it is dropped.
pub(crate) struct Waiting<'p> {
    shared: &'p Shared,
    owner: Uuid,
    number: u64,
    standing: watch::Receiver<Standing>,
}

impl Places {
    pub(crate) fn new(leases: Arc<Leases>) -> Self {
        Self { shared: Arc::new(Shared { leases, state: Mutex::default() }) }
    }

    /// Begins to wait.
    pub(crate) fn wait(&self, owner: Uuid) -> Waiting<'_> {
        let (told, standing) = watch::channel(Standing::New);
        let mut state = self.shared.state();
        state.waited += 1;
        let number = state.waited;
        state.waiting.insert(owner, Told { number, standing: told });
        Waiting { shared: &self.shared, owner, number, standing }
    }

    /// Notes the place of an acquisition. If nobody waits for it, the place ends by itself.
    pub(crate) fn entered(&self, owner: Uuid, entered: Entered) {
        let mut state = self.shared.state();
        let Some(told) = state.waiting.get(&owner) else { return };
        told.standing.send_modify(|standing| {
            let before = match *standing {
                Standing::Waits(before) if before.lease == entered.lease => before.until,
                _ => entered.until,
            };
            // The answer to a later sign of life may have arrived before.
            *standing = Standing::Waits(Entered { until: before.max(entered.until), ..entered });
        });
        if state.keeper.is_some() {
            return;
        }
        state.keepers += 1;
        let number = state.keepers;
        state.keeper = Some(number);
        // A runtime that ends drops the task at once, which locks the state.
        drop(state);
        let keeper = Keeper { shared: self.shared.clone(), number };
        tokio::spawn(async move { while keeper.shared.give_sign().await {} });
    }
}

impl Waiting<'_> {
    /// Waits for the place. `None` if it has ended.
    pub(crate) async fn place(&mut self) -> Option<Entered> {
        let known = self.standing.wait_for(|standing| !matches!(standing, Standing::New)).await;
        match known.as_deref() {
            Ok(Standing::Waits(entered)) => Some(*entered),
            _ => None,
        }
    }

    /// Resolves when the place has ended, or may have ended because there was no sign of life.
    pub(crate) async fn ended(&mut self) {
        loop {
            let Standing::Waits(Entered { until, .. }) = *self.standing.borrow_and_update() else {
                return;
            };
            tokio::select! {
                changed = self.standing.changed() => {
                    // Somebody else waits in the name of the same owner.
                    if changed.is_err() {
                        return;
                    }
                }
                () = sleep_until(until) => return,
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        // Another future may wait in the name of the same owner by now.
        if state.waiting.get(&self.owner).is_some_and(|told| told.number == self.number) {
            state.waiting.remove(&self.owner);
        }
    }
}

/// Notes the end of the task, however it ends.
struct Keeper {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        // By now there may be another one.
        if state.keeper == Some(self.number) {
            state.keeper = None;
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a sign of life for all places, after a pause. Returns `false` when nobody waits.
    async fn give_sign(&self) -> bool {
        sleep(SIGN).await;
        let leases = {
            let state = self.state();
            let standing = state.waiting.values().map(|told| *told.standing.borrow());
            let lease = |standing| match standing {
                Standing::Waits(entered) => Some(entered.lease),
                _ => None,
            };
            standing.filter_map(lease).collect::<Vec<_>>()
        };
        if !leases.is_empty() {
            match self.leases.keep_alive(leases).await {
                Ok(ends) => self.note(&ends),
                Err(error) => tracing::debug!(%error, "the places of waiters were not renewed"),
            }
        }
        let mut state = self.state();
        if state.waiting.is_empty() {
            state.keeper = None;
        }
        state.keeper.is_some()
    }

    fn note(&self, ends: &HashMap<i64, Option<Instant>>) {
        for told in self.state().waiting.values() {
            told.standing.send_if_modified(|standing| {
                let Standing::Waits(entered) = standing else { return false };
                match ends.get(&entered.lease) {
                    Some(Some(until)) => entered.until = entered.until.max(*until),
                    Some(None) => *standing = Standing::Ended,
                    None => return false,
                }
                true
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use ekbatan_core::config::DataSourceConfig;
    use futures_util::FutureExt;
    use tokio::time::timeout;

    use super::*;
    use crate::address::Address;
    use crate::client::Client;

    #[tokio::test]
    async fn who_waits_learns_that_nobody_keeps_the_place() {
        // The task cannot keep places here: there is no server.
        let server = DataSourceConfig::new("etcd://127.0.0.1:1");
        let client = Arc::new(Client::new(Address::of(&server).unwrap()));
        let places = Places::new(Arc::new(Leases::new(client)));
        let soon = Instant::now() + SIGN;
        let enter = |owner, lease| {
            places.entered(owner, Entered { created: 1, lease, until: soon });
        };
        let owners = [1, 2, 3].map(|_| Uuid::new_v4());
        let [mut left, mut kept, mut again] = owners.map(|owner| places.wait(owner));
        (1..).zip(owners).for_each(|(lease, owner)| enter(owner, lease));
        // As if the server had answered a sign of life, and then an earlier one.
        let later = Instant::now() + Duration::from_secs(86_400);
        places.shared.note(&HashMap::from([(2, Some(later)), (3, Some(later))]));
        places.shared.note(&HashMap::from([(2, Some(soon))]));
        // The answer to an earlier request for the place.
        enter(owners[2], 3);
        timeout(PLACE * 2, left.ended()).await.expect("its time is over");
        assert!(kept.ended().now_or_never().is_none());
        assert!(again.ended().now_or_never().is_none());
    }
}
