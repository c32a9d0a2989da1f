//! A lease: the right to hold a key for a limited time.
//!
//! Invariants: a lease ends exactly once, by the first of release, loss and deadline.
//! The leases of one scope on one key share a hold, which is over when the last of them is
//! released.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ekbatan_core::action::{AsFence, Fence};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::options::countable;
use crate::provider::inline_task::InlineTask;
use crate::{LockError, LockKey, LockScope, LossCause};

/// The right to hold a key until the lease is released, lost or expired. Clones are the same
/// lease. Dropping the last clone releases it without waiting.
///
/// A commit that is fenced by a lease (`executor.execute(..).fenced_by(&lease)`) succeeds only
/// while the lease is held.
#[must_use = "a lease that is dropped is released at once: keep it for as long as the key has to be held"]
#[derive(Clone)]
pub struct Lease {
    acquisition: Arc<Acquisition>,
}

/// One acquisition of a hold.
struct Acquisition {
    hold: Arc<Hold>,
    released: AtomicBool,
}

/// The hold of one scope on one key, however often the scope entered.
pub(crate) struct Hold {
    key: LockKey,
    /// The name of the key's fence.
    fence: String,
    scope: LockScope,
    token: i64,
    max_hold: Duration,
    state: Mutex<HoldState>,
    /// How the hold ended, once it has. Written only while `state` is locked.
    over: watch::Sender<Option<Ended>>,
    /// Whether the key was still ours when the worker released it.
    returned: watch::Sender<Option<bool>>,
    extensions: mpsc::UnboundedSender<Extension>,
    /// The task of the key's worker.
    worker: Weak<InlineTask>,
}

struct HoldState {
    leases: usize,
    deadline: Instant,
    /// When the term at the server ends, unless it is renewed before.
    term_ends: Instant,
    /// Until when the key stays taken, even if the lease is released earlier.
    kept_until: Option<Instant>,
}

/// How a hold ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Released,
    Lost(LossCause),
}

impl HoldState {
    fn ends(&self) -> Instant {
        self.deadline.min(self.term_ends)
    }
}

/// A request for more time, which the key's worker handles.
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
        fence: String,
        scope: LockScope,
        token: i64,
        (deadline, term_ends): (Instant, Instant),
        max_hold: Duration,
        worker: Weak<InlineTask>,
    ) -> (Arc<Self>, Lease, mpsc::UnboundedReceiver<Extension>) {
        let (extensions, asked) = mpsc::unbounded_channel();
        let hold = Arc::new(Self {
            key,
            fence,
            scope,
            token,
            max_hold,
            state: Mutex::new(HoldState { leases: 1, deadline, term_ends, kept_until: None }),
            over: watch::Sender::new(None),
            returned: watch::Sender::new(None),
            extensions,
            worker,
        });
        let lease = Lease::of(&hold);
        (hold, lease, asked)
    }

    pub(crate) fn scope(&self) -> &LockScope {
        &self.scope
    }

    /// Makes a change that the worker waits for, and has the worker go on in place.
    fn poll_worker_after(&self, change: impl FnOnce()) {
        match self.worker.upgrade() {
            Some(worker) => worker.poll_after(change),
            None => change(),
        }
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

    /// How long the key has to stay taken from now on, after its release.
    pub(crate) fn kept(&self) -> Option<Duration> {
        let rest = lock(&self.state).kept_until?.saturating_duration_since(Instant::now());
        (!rest.is_zero()).then_some(rest)
    }

    /// When the hold ends, unless it is extended or renewed before.
    pub(crate) fn ends(&self) -> Instant {
        lock(&self.state).ends()
    }

    /// Extends the hold, whose term at the server ends then. Returns `false` if it has ended
    /// before: `lost()` may have said so.
    pub(crate) fn extend(&self, by: Duration, term_ends: Instant) -> bool {
        let mut state = lock(&self.state);
        if !self.stands(&state) {
            return false;
        }
        state.deadline = state.deadline.checked_add(by).unwrap_or(state.deadline);
        state.term_ends = term_ends;
        true
    }

    /// Notes that the term was renewed. Returns `false` if the hold has ended before.
    pub(crate) fn renew(&self, term_ends: Instant) -> bool {
        let mut state = lock(&self.state);
        let stands = self.stands(&state);
        if stands {
            state.term_ends = term_ends;
        }
        stands
    }

    /// Ends the hold if its time has passed.
    pub(crate) fn expire(&self) {
        let state = lock(&self.state);
        if let Some(cause) = self.expiry(&state) {
            self.end(Ended::Lost(cause));
        }
    }

    /// The cause of the loss, if the time of the hold has passed.
    fn expiry(&self, state: &HoldState) -> Option<LossCause> {
        let now = Instant::now();
        if now >= state.deadline {
            Some(LossCause::Expired(self.max_hold))
        } else if now >= state.term_ends {
            Some(LossCause::NotRenewed("it was not renewed before it ended".to_owned()))
        } else {
            None
        }
    }

    /// Ends the hold as lost. Returns `false` if it was over already.
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
                std::future::pending::<()>().await; // cannot happen: `self` owns the sender
            }
        }
    }

    /// Answers [`Lease::release`] if the worker ends before it has.
    pub(crate) fn abandon(&self) {
        self.returned.send_if_modified(|returned| {
            let first = returned.is_none();
            *returned = returned.or(Some(false));
            first
        });
    }

    /// Reports to [`Lease::release`] whether the key was still ours.
    pub(crate) fn return_as(&self, ours: bool) {
        self.returned.send_replace(Some(ours));
    }

    fn leave(&self) {
        let mut state = lock(&self.state);
        state.leases -= 1;
        if state.leases == 0 {
            // After its time the lease counts as lost: `Lease::lost` may have said so.
            self.end(match self.expiry(&state) {
                None => Ended::Released,
                Some(cause) => Ended::Lost(cause),
            });
        }
    }

    /// Called with the state locked, so that exactly one end wins.
    fn end(&self, ended: Ended) -> bool {
        self.over.send_if_modified(|over| match over {
            Some(_) => false,
            None => {
                *over = Some(ended);
                true
            }
        })
    }

    fn stands(&self, state: &HoldState) -> bool {
        self.over.borrow().is_none() && Instant::now() < state.ends()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.borrow().is_some()
    }

    fn is_held(&self) -> bool {
        self.stands(&lock(&self.state))
    }

    fn remaining(&self) -> Duration {
        let state = lock(&self.state);
        if self.stands(&state) {
            state.deadline.saturating_duration_since(Instant::now())
        } else {
            Duration::ZERO
        }
    }

    /// Why the hold cannot be extended any more.
    pub(crate) fn end_of_extensions(&self) -> LossCause {
        let state = lock(&self.state);
        match &*self.over.borrow() {
            Some(Ended::Lost(cause)) => cause.clone(),
            Some(Ended::Released) => LossCause::Released,
            // The worker is about to end.
            None => self.expiry(&state).unwrap_or(LossCause::Abandoned),
        }
    }

    /// The cause of the loss, if the hold is lost. A deadline that has passed is a loss even
    /// before the worker has noticed.
    fn loss(&self) -> Option<LossCause> {
        let state = lock(&self.state);
        match &*self.over.borrow() {
            Some(Ended::Lost(cause)) => Some(cause.clone()),
            Some(Ended::Released) => None,
            None => self.expiry(&state),
        }
    }
}

impl Lease {
    fn of(hold: &Arc<Hold>) -> Self {
        Self {
            acquisition: Arc::new(Acquisition {
                hold: hold.clone(),
                released: AtomicBool::new(false),
            }),
        }
    }

    /// The key.
    pub fn key(&self) -> &LockKey {
        &self.acquisition.hold.key
    }

    /// The token. It grows with every grant of the key, without end.
    pub fn token(&self) -> i64 {
        self.acquisition.hold.token
    }

    /// Whether the lease is held, as far as this process knows. Only the fence in a commit
    /// knows for certain.
    pub fn is_held(&self) -> bool {
        !self.acquisition.released.load(Ordering::Acquire) && self.acquisition.hold.is_held()
    }

    /// The longest time that the lease can still last.
    pub fn remaining(&self) -> Duration {
        if self.is_held() { self.acquisition.hold.remaining() } else { Duration::ZERO }
    }

    /// Resolves with the cause when the lease is lost. Never resolves if the last lease of
    /// its scope is released.
    pub async fn lost(&self) -> LossCause {
        let hold = &self.acquisition.hold;
        loop {
            if let Some(cause) = hold.loss() {
                return cause;
            }
            tokio::select! {
                ended = hold.ended() => match ended {
                    Ended::Lost(cause) => return cause,
                    Ended::Released => std::future::pending::<()>().await,
                },
                () = tokio::time::sleep_until(hold.ends()) => {}
            }
        }
    }

    /// Returns an error if the lease is lost. Use it between the steps of long work.
    pub fn check(&self) -> Result<(), LockError> {
        match self.acquisition.hold.loss() {
            None => Ok(()),
            Some(cause) => Err(LockError::Lost { key: self.key().clone(), cause }),
        }
    }

    /// Makes the lease last longer than `max_hold`. If the server cannot be reached, repeats that
    /// until the lease ends. If the call is dropped, it is not repeated; a request that has been sent
    /// may still take effect.
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if the lease has ended or was released, also if that was before the server
    /// answered: a lease whose [`lost`](Self::lost) has resolved is never held again. Otherwise the
    /// server's error.
    pub async fn extend(&self, by: Duration) -> Result<(), LockError> {
        self.check()?;
        let over = |cause| Err(LockError::Lost { key: self.key().clone(), cause });
        if self.acquisition.released.load(Ordering::Acquire) {
            return over(LossCause::Released);
        }
        let hold = &self.acquisition.hold;
        let (answer, answered) = oneshot::channel();
        hold.poll_worker_after(|| {
            let asked = Extension { by: countable(by), answer };
            // A worker that has ended drops the request, which ends the wait for its answer.
            let _ = hold.extensions.send(asked);
        });
        if let Ok(answer) = answered.await {
            return answer;
        }
        over(hold.end_of_extensions())
    }

    /// Keeps the key taken for at least this long from now, even if the lease is released or
    /// dropped earlier.
    pub(crate) fn keep(&self, at_least: Duration) {
        let until = Instant::now() + countable(at_least);
        let mut state = lock(&self.acquisition.hold.state);
        state.kept_until = state.kept_until.max(Some(until));
    }

    /// Releases the lease without waiting. The key's worker releases the key at the server.
    pub(crate) fn give_back(&self) {
        self.acquisition.leave();
    }

    /// Releases the lease and waits until the next waiter can have the key. If the server cannot
    /// be reached, waits at most until it frees the key by itself.
    ///
    /// Returns `false` if the lease was no longer held, or if that is not known because the
    /// server did not answer. Releasing it again has no effect and returns `false`.
    pub async fn release(&self) -> bool {
        let hold = &self.acquisition.hold;
        if !self.acquisition.leave() {
            return false;
        }
        if !matches!(*hold.over.borrow(), Some(Ended::Released)) {
            // The scope has another lease on the key, or this one was lost.
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

impl Acquisition {
    /// Takes effect once. Returns whether it did.
    fn leave(&self) -> bool {
        let first = !self.released.swap(true, Ordering::AcqRel);
        if first {
            self.hold.poll_worker_after(|| self.hold.leave());
        }
        first
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        self.leave();
    }
}

impl AsFence for Lease {
    fn as_fence(&self) -> Fence {
        Fence {
            key: self.acquisition.hold.fence.clone(),
            token: self.token(),
            remaining: self.remaining(),
        }
    }

    /// A lease can be extended.
    fn remaining_later(&self) -> Option<Arc<dyn Fn() -> Duration + Send + Sync>> {
        let hold = self.acquisition.hold.clone();
        Some(Arc::new(move || hold.remaining()))
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
