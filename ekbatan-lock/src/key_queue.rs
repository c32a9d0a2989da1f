//! The queue of one key: the callers of this process that wait for it.
//!
//! A task, the key's [worker](crate::key_worker), serves the waiters in order. Only the worker
//! talks to the server about this key.
//!
//! Invariants: a caller only enqueues and waits for the answer, so a caller that is dropped
//! leaves nothing behind.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tracing::Span;

use crate::lease::Hold;
use crate::telemetry::{Counts, increment};
use crate::{Lease, LockError, LockKey, LockOptions, LockScope, LossCause};

/// Maximum time to pass the key between local waiters before other processes get a chance.
/// Every term is longer than its holder asked for by this time, so that passing the key on
/// needs no round trip.
pub(crate) const MAX_TURN: Duration = Duration::from_millis(50);

type Answer = Result<Option<Lease>, LockError>;

/// A caller of this process that wants the key.
pub(crate) struct Waiter {
    pub(crate) scope: Option<LockScope>,
    pub(crate) options: LockOptions,
    /// Whether the caller does not wait for a busy key.
    pub(crate) only_try: bool,
    pub(crate) since: Instant,
    /// Whether the key was taken when the caller enqueued.
    pub(crate) contended: bool,
    /// The span that the caller was in.
    pub(crate) caller_span: Span,
    /// The span of this acquisition.
    pub(crate) acquire_span: Span,
    pub(crate) answer: oneshot::Sender<Answer>,
}

impl Waiter {
    /// The term to ask the server for.
    pub(crate) fn term(&self) -> Duration {
        let term = self.options.term.unwrap_or(self.options.max_hold).min(self.options.max_hold);
        term + MAX_TURN
    }
}

pub(crate) struct KeyQueue {
    key: LockKey,
    stored: String,
    state: Mutex<QueueState>,
    changed: Notify,
}

struct QueueState {
    waiting: VecDeque<Waiter>,
    hold: Option<Arc<Hold>>,
    /// The span of the current hold, or of the last one.
    hold_span: Option<Span>,
    /// Begin and end of the last hold.
    last_hold: Option<(Instant, Instant)>,
    /// Whether the worker is asking the server for the key.
    contending: bool,
    /// Whether the key stays taken here although its work is over.
    keeping: bool,
    closed: bool,
}

impl QueueState {
    fn still_waiting(&self) -> usize {
        self.waiting.iter().filter(|waiter| !waiter.answer.is_closed()).count()
    }

    /// Whether a new waiter has to wait.
    fn is_busy(&self) -> bool {
        self.contending
            || self.keeping
            || self.still_waiting() > 0
            || self.hold.as_ref().is_some_and(|hold| !hold.is_over())
    }
}

/// What came before a hold, for its spans and counters.
pub(crate) struct Predecessor {
    /// When the hold before this one ended.
    pub(crate) ended: Instant,
    /// The span of the hold before, if that hold began after the waiter had enqueued.
    pub(crate) span: Option<Span>,
}

impl KeyQueue {
    pub(crate) fn new(key: LockKey, stored: String, first: Waiter) -> Self {
        let state = QueueState {
            waiting: VecDeque::from([first]),
            hold: None,
            hold_span: None,
            last_hold: None,
            contending: false,
            keeping: false,
            closed: false,
        };
        Self { key, stored, state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn key(&self) -> &LockKey {
        &self.key
    }

    pub(crate) fn stored(&self) -> &str {
        &self.stored
    }

    /// Returns the answer if it is known at once; otherwise enqueues the waiter.
    pub(crate) fn enqueue(&self, mut waiter: Waiter, counts: &Counts) -> Option<Option<Lease>> {
        let mut state = self.state();
        if let Some(hold) = &state.hold
            && waiter.scope == Some(hold.scope())
            && let Some(lease) = hold.reenter()
        {
            increment(&counts.reentered);
            return Some(Some(lease));
        }
        waiter.contended = state.is_busy();
        if waiter.contended {
            increment(&counts.contended);
        }
        if let Some(hold_span) = &state.hold_span
            && state.hold.is_some()
        {
            waiter.acquire_span.follows_from(hold_span);
        }
        if waiter.only_try && waiter.contended {
            return Some(None);
        }
        state.waiting.push_back(waiter);
        drop(state);
        self.wake_worker();
        None
    }

    /// Has the worker look at the queue again.
    pub(crate) fn wake_worker(&self) {
        self.changed.notify_one();
    }

    /// Resolves after [`wake_worker`](Self::wake_worker).
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn waiting(&self) -> usize {
        self.state().still_waiting()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state().waiting.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Ends the current lease; `false` if there is none.
    pub(crate) fn force(&self, why: &str) -> bool {
        let mut state = self.state();
        if std::mem::take(&mut state.keeping) {
            drop(state);
            self.wake_worker();
            return true;
        }
        let hold = state.hold.clone();
        drop(state);
        hold.is_some_and(|hold| hold.lose(LossCause::Forced(why.to_owned())))
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.keeping = false;
        // Waiters notice that their sender is dropped.
        state.waiting.clear();
        let hold = state.hold.clone();
        drop(state);
        if let Some(hold) = hold {
            hold.lose(LossCause::Closed);
        }
        self.wake_worker();
    }

    /// Removes the next waiter that still waits.
    pub(crate) fn next(&self) -> Option<Waiter> {
        let mut state = self.state();
        while let Some(waiter) = state.waiting.pop_front() {
            if !waiter.answer.is_closed() {
                return Some(waiter);
            }
        }
        None
    }

    pub(crate) fn set_contending(&self, contending: bool) {
        self.state().contending = contending;
    }

    /// Stores the hold that begins now, and returns what came before it if the waiter waited
    /// for that.
    pub(crate) fn hold_began(
        &self,
        hold: Arc<Hold>,
        hold_span: Span,
        waiter: &Waiter,
    ) -> Option<Predecessor> {
        let mut state = self.state();
        let last = state.last_hold.take().filter(|(_, ended)| *ended > waiter.since);
        let predecessor = last.map(|(began, ended)| {
            // If that hold began earlier, `enqueue` has linked its span already.
            let span = state.hold_span.clone().filter(|_| began > waiter.since);
            Predecessor { ended, span }
        });
        state.hold = Some(hold);
        state.hold_span = Some(hold_span);
        state.contending = false;
        predecessor
    }

    /// Notes that the hold is over. With `keep`, the key stays taken after it.
    pub(crate) fn hold_ended(&self, began: Instant, ended: Instant, keep: bool) {
        let mut state = self.state();
        state.hold = None;
        state.last_hold = Some((began, ended));
        state.keeping = keep && !state.closed;
    }

    pub(crate) fn is_keeping(&self) -> bool {
        self.state().keeping
    }

    pub(crate) fn stop_keeping(&self) {
        self.state().keeping = false;
    }
}
