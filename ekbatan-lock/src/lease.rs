//! A lease: the right to hold a key, for a while.
//!
//! What always holds: a lease ends once, by release, by loss or by its deadline, whichever
//! comes first; the others find it ended. Several leases of one scope stand on one hold,
//! which is over when the last of them is.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ekbatan_core::action::{AsFence, Fence};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::{LockError, LockKey, LockScope, LossCause};

/// The right to hold a key until it is released, lost or expired. Clones are the same lease;
/// when the last is dropped it is released, without waiting.
///
/// A commit that is fenced by a lease (`executor.execute(..).fenced_by(&lease)`) goes through
/// only while the lease holds.
#[derive(Clone)]
pub struct Lease {
    ticket: Arc<Ticket>,
}

/// One acquisition.
struct Ticket {
    hold: Arc<Hold>,
    left: AtomicBool,
}

/// What one scope holds of one key, however often it entered.
pub(crate) struct Hold {
    key: LockKey,
    stored: String,
    scope: LockScope,
    token: i64,
    max_hold: Duration,
    state: Mutex<State>,
    /// Of the state: whether it is over.
    over: watch::Sender<Option<Ended>>,
    /// Whether the key was still ours when it was given back.
    returned: watch::Sender<Option<bool>>,
    extensions: mpsc::UnboundedSender<Extension>,
}

struct State {
    leases: usize,
    deadline: Instant,
    /// Until when the key stays taken, however early it is given back.
    kept_until: Option<Instant>,
}

/// How a hold is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Released,
    Lost(LossCause),
}

impl Ended {
    /// Whether it is over by the will of this process.
    pub(crate) fn is_orderly(&self) -> bool {
        matches!(self, Ended::Released | Ended::Lost(LossCause::Closed))
    }
}

/// More time, asked of whoever keeps the key at the server.
pub(crate) struct Extension {
    pub(crate) by: Duration,
    pub(crate) answer: oneshot::Sender<Result<(), LockError>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hold {
    /// A hold with its first lease.
    pub(crate) fn begin(
        key: LockKey,
        stored: String,
        scope: LockScope,
        token: i64,
        deadline: Instant,
        max_hold: Duration,
    ) -> (Arc<Self>, Lease, mpsc::UnboundedReceiver<Extension>) {
        let (extensions, asked) = mpsc::unbounded_channel();
        let hold = Arc::new(Self {
            key,
            stored,
            scope,
            token,
            max_hold,
            state: Mutex::new(State { leases: 1, deadline, kept_until: None }),
            over: watch::Sender::new(None),
            returned: watch::Sender::new(None),
            extensions,
        });
        let lease = Lease::of(&hold);
        (hold, lease, asked)
    }

    pub(crate) fn scope(&self) -> LockScope {
        self.scope
    }

    pub(crate) fn max_hold(&self) -> Duration {
        self.max_hold
    }

    /// One more lease, unless the hold is over.
    pub(crate) fn reenter(self: &Arc<Self>) -> Option<Lease> {
        let mut state = lock(&self.state);
        if !self.stands(&state) {
            return None;
        }
        state.leases += 1;
        drop(state);
        Some(Lease::of(self))
    }

    pub(crate) fn deadline(&self) -> Instant {
        lock(&self.state).deadline
    }

    /// For how long the key stays taken now that it was given back.
    pub(crate) fn kept(&self) -> Option<Duration> {
        let rest = lock(&self.state).kept_until?.saturating_duration_since(Instant::now());
        (!rest.is_zero()).then_some(rest)
    }

    pub(crate) fn defer(&self, by: Duration) {
        lock(&self.state).deadline += by;
    }

    /// Ends the hold as lost; `false` if it was over.
    pub(crate) fn lose(&self, cause: LossCause) -> bool {
        let _state = lock(&self.state);
        self.end(Ended::Lost(cause))
    }

    /// Resolves when the hold is over.
    pub(crate) async fn ended(&self) -> Ended {
        let mut over = self.over.subscribe();
        loop {
            if let Some(ended) = over.borrow_and_update().clone() {
                return ended;
            }
            if over.changed().await.is_err() {
                std::future::pending::<()>().await; // the sender is ours and lives
            }
        }
    }

    /// Tells those who released whether the key was still ours.
    pub(crate) fn return_as(&self, ours: bool) {
        self.returned.send_replace(Some(ours));
    }

    fn leave(&self) {
        let mut state = lock(&self.state);
        state.leases -= 1;
        if state.leases == 0 {
            // Whoever listens for the loss may have heard of it already.
            self.end(match Instant::now() < state.deadline {
                true => Ended::Released,
                false => Ended::Lost(LossCause::Expired(self.max_hold)),
            });
        }
    }

    /// Called with the state locked, so that one end wins.
    fn end(&self, ended: Ended) -> bool {
        self.over.send_if_modified(|over| match over {
            Some(_) => false,
            None => {
                *over = Some(ended);
                true
            }
        })
    }

    fn stands(&self, state: &State) -> bool {
        self.over.borrow().is_none() && Instant::now() < state.deadline
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.borrow().is_some()
    }

    fn is_held(&self) -> bool {
        self.stands(&lock(&self.state))
    }

    /// How it was lost, if it was. A deadline that has passed is a loss, also before anybody
    /// has noticed.
    fn loss(&self) -> Option<LossCause> {
        let state = lock(&self.state);
        match &*self.over.borrow() {
            Some(Ended::Lost(cause)) => Some(cause.clone()),
            Some(Ended::Released) => None,
            None if Instant::now() >= state.deadline => Some(LossCause::Expired(self.max_hold)),
            None => None,
        }
    }
}

impl Lease {
    fn of(hold: &Arc<Hold>) -> Self {
        Self { ticket: Arc::new(Ticket { hold: hold.clone(), left: AtomicBool::new(false) }) }
    }

    /// The key.
    pub fn key(&self) -> &LockKey {
        &self.ticket.hold.key
    }

    /// The token: it grows with every grant of the key, for ever.
    pub fn token(&self) -> i64 {
        self.ticket.hold.token
    }

    /// Whether the lease still stands, as far as this process knows. Only the fence in a
    /// commit knows for certain.
    pub fn is_held(&self) -> bool {
        !self.ticket.left.load(Ordering::Acquire) && self.ticket.hold.is_held()
    }

    /// How long it lasts at most.
    pub fn remaining(&self) -> Duration {
        match self.is_held() {
            true => self.ticket.hold.deadline().saturating_duration_since(Instant::now()),
            false => Duration::ZERO,
        }
    }

    /// Resolves with the cause when the lease is lost; never, if it is released.
    pub async fn lost(&self) -> LossCause {
        let hold = &self.ticket.hold;
        loop {
            if let Some(cause) = hold.loss() {
                return cause;
            }
            tokio::select! {
                ended = hold.ended() => match ended {
                    Ended::Lost(cause) => return cause,
                    Ended::Released => std::future::pending::<()>().await,
                },
                () = tokio::time::sleep_until(hold.deadline()) => {}
            }
        }
    }

    /// An error that says how the lease was lost, if it was: for work that goes on in steps.
    pub fn check(&self) -> Result<(), LockError> {
        match self.ticket.hold.loss() {
            None => Ok(()),
            Some(cause) => Err(LockError::Lost { key: self.key().clone(), cause }),
        }
    }

    /// Lets the lease last longer than was first asked for.
    pub async fn extend(&self, by: Duration) -> Result<(), LockError> {
        self.check()?;
        let hold = &self.ticket.hold;
        let (answer, answered) = oneshot::channel();
        let over = || hold.loss().unwrap_or(LossCause::Expired(hold.max_hold));
        if hold.extensions.send(Extension { by, answer }).is_ok()
            && let Ok(answer) = answered.await
        {
            return answer;
        }
        Err(LockError::Lost { key: self.key().clone(), cause: over() })
    }

    /// Keeps the key taken for so long from now on, also if the lease is given back or dropped
    /// before.
    pub(crate) fn keep(&self, at_least: Duration) {
        let until = Instant::now() + at_least;
        let mut state = lock(&self.ticket.hold.state);
        state.kept_until = state.kept_until.max(Some(until));
    }

    /// Gives the lease back and leaves it to the desk to tell the server.
    pub(crate) fn give_back(&self) {
        self.ticket.leave();
    }

    /// Gives the lease back and waits until it is given back: the next one may have the key.
    /// `false` says that it was no longer ours. Giving it back again changes nothing.
    pub async fn release(&self) -> bool {
        let hold = &self.ticket.hold;
        self.ticket.leave();
        if !matches!(*hold.over.borrow(), Some(Ended::Released)) {
            // Another lease of the scope holds on, or it was lost.
            return hold.is_held();
        }
        let mut returned = hold.returned.subscribe();
        loop {
            if let Some(ours) = *returned.borrow_and_update() {
                return ours;
            }
            if returned.changed().await.is_err() {
                return false;
            }
        }
    }
}

impl Ticket {
    /// Once, whoever comes first.
    fn leave(&self) {
        if !self.left.swap(true, Ordering::AcqRel) {
            self.hold.leave();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave();
    }
}

impl AsFence for Lease {
    fn as_fence(&self) -> Fence {
        Fence {
            key: self.ticket.hold.stored.clone(),
            token: self.token(),
            remaining: self.remaining(),
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", &self.key().id())
            .field("token", &self.token())
            .field("held", &self.is_held())
            .finish_non_exhaustive()
    }
}
