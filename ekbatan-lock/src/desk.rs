//! The desk of one key: the queue of those of this process who want it. A task, the clerk,
//! serves them one after another, and alone speaks of the key to the server.
//!
//! What always holds: callers only line up and listen, so that one who is dropped leaves
//! nothing behind.

mod clerk;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tracing::Span;

pub(crate) use self::clerk::{HAND_OFF_BITS, serve};
use crate::lease::Hold;
use crate::telemetry::{Counts, one_more};
use crate::{Lease, LockError, LockKey, LockOptions, LockScope, LossCause};

/// For how long in a row it does. A grant lasts by so much longer than its holder asked for,
/// so that handing it on needs no trip.
const IN_A_ROW: Duration = Duration::from_millis(50);

type Answer = Result<Option<Lease>, LockError>;

/// Somebody of this process who wants the key.
pub(crate) struct Waiter {
    pub(crate) scope: Option<LockScope>,
    pub(crate) options: LockOptions,
    /// Whether a busy key is answer enough.
    pub(crate) only_try: bool,
    pub(crate) since: Instant,
    /// Whether somebody else had the key when it came.
    pub(crate) contended: bool,
    /// The span that it asks in, and that of its asking.
    pub(crate) within: Span,
    pub(crate) asking: Span,
    pub(crate) answer: oneshot::Sender<Answer>,
}

impl Waiter {
    /// For how long the server is asked.
    fn term(&self) -> Duration {
        let term = self.options.term.unwrap_or(self.options.max_hold).min(self.options.max_hold);
        term + IN_A_ROW
    }
}

pub(crate) struct Desk {
    key: LockKey,
    stored: String,
    state: Mutex<State>,
    called: Notify,
}

struct State {
    waiting: VecDeque<Waiter>,
    hold: Option<Arc<Hold>>,
    /// The span of the hold that is out, or of the last one.
    holding: Option<Span>,
    /// From when until when the last one was.
    before: Option<(Instant, Instant)>,
    /// Whether the server is being asked for the key.
    contending: bool,
    /// Whether the key stays taken here though its work is over.
    keeping: bool,
    /// Until when another process has its turn.
    away: Option<Instant>,
    /// How long the last turn was, if it was given up while more of this process waited.
    cut_short: Option<Duration>,
    closed: bool,
}

impl State {
    fn still_waiting(&self) -> usize {
        self.waiting.iter().filter(|waiter| !waiter.answer.is_closed()).count()
    }

    /// Whether whoever comes now has to wait.
    fn is_busy(&self) -> bool {
        self.contending
            || self.keeping
            || self.still_waiting() > 0
            || self.hold.as_ref().is_some_and(|hold| !hold.is_over())
    }
}

impl Desk {
    pub(crate) fn new(key: LockKey, stored: String, first: Waiter) -> Self {
        let waiting = VecDeque::from([first]);
        let state = State {
            waiting,
            hold: None,
            holding: None,
            before: None,
            contending: false,
            keeping: false,
            away: None,
            cut_short: None,
            closed: false,
        };
        Self { key, stored, state: Mutex::new(state), called: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stored(&self) -> &str {
        &self.stored
    }

    /// Answers what is known at once, or takes the waiter into the queue.
    pub(crate) fn line_up(&self, mut waiter: Waiter, counts: &Counts) -> Option<Option<Lease>> {
        let mut state = self.state();
        if let Some(hold) = &state.hold
            && waiter.scope == Some(hold.scope())
            && let Some(lease) = hold.reenter()
        {
            one_more(&counts.reentered);
            return Some(Some(lease));
        }
        waiter.contended = state.is_busy();
        if waiter.contended {
            one_more(&counts.contended);
        }
        if let Some(holding) = &state.holding
            && state.hold.is_some()
        {
            waiter.asking.follows_from(holding);
        }
        if waiter.only_try && waiter.contended {
            return Some(None);
        }
        state.waiting.push_back(waiter);
        drop(state);
        self.call();
        None
    }

    /// Has the desk look again.
    pub(crate) fn call(&self) {
        self.called.notify_one();
    }

    pub(crate) fn waiting(&self) -> usize {
        self.state().still_waiting()
    }

    pub(crate) fn is_deserted(&self) -> bool {
        self.state().waiting.is_empty()
    }

    /// Ends the lease that is out; `false` if none is.
    pub(crate) fn force(&self, why: &str) -> bool {
        let mut state = self.state();
        if std::mem::take(&mut state.keeping) {
            drop(state);
            self.call();
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
        // Whoever waits hears that the sender is gone.
        state.waiting.clear();
        let hold = state.hold.clone();
        drop(state);
        if let Some(hold) = hold {
            hold.lose(LossCause::Closed);
        }
        self.call();
    }

    /// The next who still waits.
    fn next(&self) -> Option<Waiter> {
        let mut state = self.state();
        while let Some(waiter) = state.waiting.pop_front() {
            if !waiter.answer.is_closed() {
                return Some(waiter);
            }
        }
        None
    }

    fn is_wanted(&self) -> bool {
        self.state().still_waiting() > 0
    }

    fn is_closed(&self) -> bool {
        self.state().closed
    }
}
