//! The queue of one key: the callers of this process that wait for it.
//!
//! The key's [worker](crate::provider::key_worker) serves the waiters in order. Only the worker talks to the
//! server about this key.
//!
//! Invariants: a caller only enqueues and waits for the answer, so a caller that is dropped
//! leaves nothing behind. If the worker ends before its work, a waiting caller starts another.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tracing::Span;
use uuid::Uuid;

use crate::provider::lease::Hold;
use crate::provider::telemetry::{Counts, increment};
use crate::{BackendError, Grant, Lease, LockError, LockKey, LockOptions, LockScope, LossCause};

/// Maximum time to pass the key between local waiters before other processes get a chance.
/// Every term is longer than its holder asked for by this time, so that passing the key on
/// needs no round trip.
pub(crate) const MAX_TURN: Duration = Duration::from_millis(50);

/// Maximum time to rely on the server's last answer while it does not answer the next request.
const SILENCE: Duration = Duration::from_secs(1);

type Answer = Result<Option<Lease>, LockError>;

/// A caller of this process that wants the key.
pub(crate) struct Waiter {
    /// The scope of the caller, which re-enters what it and the scopes around it hold.
    pub(crate) scope: Option<LockScope>,
    /// The scope that will hold the lease.
    pub(crate) holder: LockScope,
    pub(crate) options: LockOptions,
    /// Whether the caller does not wait for a busy key.
    pub(crate) only_try: bool,
    /// Whether the caller set no limit to its wait.
    pub(crate) waits_for_ever: bool,
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
    worker_gone: Notify,
}

struct QueueState {
    waiting: VecDeque<Waiter>,
    /// Whether a worker serves the queue.
    has_worker: bool,
    /// The owner of a grant that a worker left behind.
    orphan: Option<Uuid>,
    hold: Option<(Grant, Arc<Hold>)>,
    /// The span of the current hold, or of the last one.
    hold_span: Option<Span>,
    /// Begin and end of the last hold.
    last_hold: Option<(Instant, Instant)>,
    /// Begin of the wait of the caller for which the worker asks the server.
    contending: Option<Instant>,
    /// The owner of the worker's grant, or of its request for one.
    owner: Option<Uuid>,
    /// When the request was sent that the server has not answered yet.
    asked: Option<Instant>,
    /// Whether another process is known to have the key. Unknown again when the worker asks for
    /// the next caller.
    busy: bool,
    /// When another process was last known to have the key, or to be about to take it.
    last_busy: Option<Instant>,
    /// Why the last request failed, if none has been answered since.
    failure: Option<BackendError>,
    /// When the first of the requests failed that none has been answered after.
    failing: Option<Instant>,
    /// The grant with which the key stays taken here although its work is over.
    kept: Option<(Grant, Arc<Hold>)>,
    closed: bool,
}

impl QueueState {
    /// One more lease on the hold, if the scope or one around it has it.
    fn reenter(&self, scope: &LockScope) -> Option<Lease> {
        let (_, hold) = self.hold.as_ref()?;
        scope.is_within(hold.scope()).then(|| hold.reenter()).flatten()
    }

    fn still_waiting(&self) -> usize {
        self.waiting.iter().filter(|waiter| !waiter.answer.is_closed()).count()
    }

    /// Whether a new waiter has to wait.
    fn is_busy(&self) -> bool {
        self.contending.is_some() || self.still_waiting() > 0 || self.is_held_here()
    }

    fn set_busy(&mut self) {
        (self.busy, self.last_busy) = (true, Some(Instant::now()));
    }

    fn is_held_here(&self) -> bool {
        self.kept.is_some() || self.hold.as_ref().is_some_and(|(_, hold)| !hold.is_over())
    }

    /// Whether another process is known to have the key. What a server said before it failed or
    /// became silent does not count.
    fn is_held_elsewhere(&self) -> bool {
        self.busy && !self.is_silent()
    }

    fn is_silent(&self) -> bool {
        self.failure.is_some() || self.asked.is_some_and(|asked| asked.elapsed() >= SILENCE)
    }
}

/// The holder of the key in this process.
pub(crate) struct LocalHolder {
    pub(crate) hold: Arc<Hold>,
    /// Whether its work is over and the key stays taken.
    is_kept: bool,
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
            has_worker: false,
            orphan: None,
            hold: None,
            hold_span: None,
            last_hold: None,
            contending: None,
            owner: None,
            asked: None,
            busy: false,
            last_busy: None,
            failure: None,
            failing: None,
            kept: None,
            closed: false,
        };
        let (changed, worker_gone) = (Notify::new(), Notify::new());
        Self { key, stored, state: Mutex::new(state), changed, worker_gone }
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
        if let Some(lease) = waiter.scope.as_ref().and_then(|scope| state.reenter(scope)) {
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
        // Otherwise wait: the answer to the caller ahead also answers this one.
        if waiter.only_try && (state.is_held_here() || state.is_held_elsewhere()) {
            return Some(None);
        }
        state.waiting.push_back(waiter);
        drop(state);
        self.wake_worker();
        None
    }

    /// One more lease on the key, if the scope or one around it holds it.
    pub(crate) fn reenter(&self, scope: &LockScope) -> Option<Lease> {
        self.state().reenter(scope)
    }

    /// Whether the caller has to start a worker: the queue has none, and there is work. The
    /// queue counts on it from now on.
    pub(crate) fn claim_worker(&self) -> bool {
        let mut state = self.state();
        let needs = state.orphan.is_some() || !state.waiting.is_empty() || state.closed;
        if state.has_worker || !needs {
            return false;
        }
        state.has_worker = true;
        true
    }

    /// Resolves when the worker has ended before its work. Counts from this call.
    pub(crate) fn worker_gone(&self) -> Notified<'_> {
        self.worker_gone.notified()
    }

    /// Notes that the worker has ended before its work. The lease that it kept is lost.
    /// Returns whether there was one.
    pub(crate) fn lose_worker(&self) -> bool {
        let mut state = self.state();
        state.has_worker = false;
        let owner = state.owner.take();
        state.orphan = owner.or(state.orphan);
        (state.contending, state.asked, state.kept) = (None, None, None);
        state.busy = false;
        let hold = state.hold.take();
        drop(state);
        let lost = hold.is_some_and(|(_, hold)| hold.lose(LossCause::Abandoned));
        self.worker_gone.notify_waiters();
        lost
    }

    /// The grant that an earlier worker left behind.
    pub(crate) fn take_orphan(&self) -> Option<Uuid> {
        self.state().orphan.take()
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
        let state = self.state();
        state.waiting.is_empty() && state.orphan.is_none()
    }

    /// Whether there is neither work nor a worker.
    pub(crate) fn is_deserted(&self) -> bool {
        !self.state().has_worker && self.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// The answer to a caller whose wait since this time has ended without one.
    pub(crate) fn unanswered(&self, since: Instant) -> Answer {
        let state = self.state();
        // The worker may have asked for another caller then.
        let during_the_wait = |at: Option<Instant>| at.is_some_and(|at| at > since);
        let held_before = during_the_wait(state.last_hold.map(|(_, ended)| ended))
            || during_the_wait(state.last_busy);
        if state.is_held_here() || ((held_before || state.busy) && !state.is_silent()) {
            return Ok(None);
        }
        let waited = since.elapsed();
        let error = match (&state.failure, state.asked) {
            (Some(failure), _) => failure.repeated(),
            (None, Some(_)) if state.contending == Some(since) => {
                BackendError::in_doubt(format!("no answer within {waited:?}"))
            }
            _ => BackendError::unavailable(format!("the server was not asked within {waited:?}")),
        };
        Err(LockError::of(&self.key, error))
    }

    /// Whether the grant is the worker's own.
    pub(crate) fn owns(&self, grant: &Grant) -> bool {
        self.state().owner == Some(grant.owner)
    }

    /// The holder in this process, with its grant.
    pub(crate) fn holder(&self) -> Option<(Grant, LocalHolder)> {
        let state = self.state();
        if let Some((grant, hold)) = &state.kept {
            return Some((*grant, LocalHolder { hold: hold.clone(), is_kept: true }));
        }
        let (grant, hold) = state.hold.as_ref()?;
        Some((*grant, LocalHolder { hold: hold.clone(), is_kept: false }))
    }

    /// Ends this hold by force, or stops keeping the key after it. Returns `false` if the hold
    /// was over already.
    pub(crate) fn force(&self, holder: &LocalHolder, why: &str) -> bool {
        if !holder.is_kept {
            return holder.hold.lose(LossCause::Forced(why.to_owned()));
        }
        let mut state = self.state();
        let kept = state.kept.take_if(|(_, hold)| Arc::ptr_eq(hold, &holder.hold)).is_some();
        drop(state);
        self.wake_worker();
        kept
    }

    /// Rejects the waiters. The lease that is held stays.
    pub(crate) fn refuse(&self) {
        let mut state = self.state();
        state.closed = true;
        state.kept = None;
        // Waiters notice that their sender is dropped.
        state.waiting.clear();
        drop(state);
        self.wake_worker();
    }

    /// Ends the lease that is held, because the provider is closed.
    pub(crate) fn lose_hold(&self) {
        let hold = self.state().hold.clone();
        if let Some((_, hold)) = hold {
            hold.lose(LossCause::Closed);
        }
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

    /// Notes that the worker begins to ask for the caller that waits since this time.
    pub(crate) fn begin_contending(&self, since: Instant) {
        let mut state = self.state();
        state.contending = Some(since);
        state.busy = false;
    }

    /// Notes that the worker has stopped asking, without a grant.
    pub(crate) fn stop_contending(&self) {
        let mut state = self.state();
        if state.is_held_elsewhere() {
            // A server that has queued the request said so long ago.
            state.last_busy = Some(Instant::now());
        }
        state.contending = None;
        state.busy = false;
    }

    /// Notes when a request was sent to the server, or that it was answered.
    pub(crate) fn set_asked(&self, asked: Option<Instant>) {
        self.state().asked = asked;
    }

    /// Notes that a request failed and will be repeated, and tells the callers that do not wait.
    pub(crate) fn failed(&self, error: BackendError) {
        self.answer_tries(|| Err(LockError::of(&self.key, error.repeated())));
        let mut state = self.state();
        state.failure = Some(error);
        state.failing.get_or_insert_with(Instant::now);
    }

    /// Since when no request has been answered. Requests fail from now on if they did not before.
    pub(crate) fn failing_since(&self) -> Instant {
        *self.state().failing.get_or_insert_with(Instant::now)
    }

    /// Tells the callers that do not wait why the last request failed.
    pub(crate) fn repeat_failure(&self) {
        let failure = self.state().failure.as_ref().map(BackendError::repeated);
        if let Some(failure) = failure {
            self.failed(failure);
        }
    }

    /// Notes that the server answers.
    pub(crate) fn answered(&self) {
        let mut state = self.state();
        (state.failure, state.failing) = (None, None);
    }

    /// Notes the owner of the worker's grant, or of its request for one.
    pub(crate) fn set_owner(&self, owner: Option<Uuid>) {
        self.state().owner = owner;
    }

    /// Notes that another process has the key, and tells the callers that do not wait.
    pub(crate) fn held_elsewhere(&self) {
        self.state().set_busy();
        self.answer_tries(|| Ok(None));
    }

    /// Notes that another process is about to take the key.
    pub(crate) fn other_process_is_next(&self) {
        self.state().set_busy();
    }

    /// Answers the callers that do not wait for a busy key.
    pub(crate) fn answer_tries(&self, answer: impl Fn() -> Answer) {
        let mut state = self.state();
        if !state.waiting.iter().any(|waiter| waiter.only_try) {
            return;
        }
        let (tries, waiting) =
            std::mem::take(&mut state.waiting).into_iter().partition(|waiter| waiter.only_try);
        state.waiting = waiting;
        drop(state);
        let tries: VecDeque<Waiter> = tries;
        tries.into_iter().for_each(|waiter| drop(waiter.answer.send(answer())));
    }

    /// Stores the hold that begins now, and returns what came before it if the waiter waited
    /// for that.
    pub(crate) fn hold_began(
        &self,
        grant: Grant,
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
        state.hold = Some((grant, hold));
        state.hold_span = Some(hold_span);
        state.contending = None;
        state.busy = false;
        predecessor
    }

    /// Removes the waiters that the scope of the hold re-enters the key for, each with its lease.
    pub(crate) fn reentering(&self, hold: &Arc<Hold>) -> Vec<(Waiter, Lease)> {
        let mut state = self.state();
        let within = |waiter: &Waiter| {
            waiter.scope.as_ref().is_some_and(|scope| scope.is_within(hold.scope()))
        };
        if !state.waiting.iter().any(within) {
            return Vec::new();
        }
        let mut reentering = Vec::new();
        for waiter in std::mem::take(&mut state.waiting) {
            match within(&waiter).then(|| hold.reenter()).flatten() {
                Some(lease) => reentering.push((waiter, lease)),
                None => state.waiting.push_back(waiter),
            }
        }
        reentering
    }

    /// Notes that the hold is over. With `keep`, the key stays taken after it.
    pub(crate) fn hold_ended(&self, began: Instant, ended: Instant, keep: bool) {
        let mut state = self.state();
        let hold = state.hold.take();
        state.last_hold = Some((began, ended));
        state.kept = hold.filter(|_| keep && !state.closed);
    }

    pub(crate) fn is_keeping(&self) -> bool {
        self.state().kept.is_some()
    }

    pub(crate) fn stop_keeping(&self) {
        self.state().kept = None;
    }
}
