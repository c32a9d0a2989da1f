//! One key at the server, as the worker of this process sees it: its grants, and whose turn it
//! is among the processes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ekbatan_core::__private::TOKEN_BITS;
use tokio::time::Instant;
use uuid::Uuid;

use super::backoff::Backoff;
use crate::options::countable;
use crate::provider::inline_task::InlineTask;
use crate::provider::key_queue::{KeyQueue, MAX_TURN};
use crate::provider::state::ProviderState;
use crate::{BackendError, Grant, HandOver, LockBackend, LockError};

/// Maximum number of hand-offs in a row within this process, once they have taken
/// [`ROUND_TRIP`].
const HAND_OFFS: u16 = 16;

/// About one round trip to the server. Holders that only read something under the key would
/// otherwise spend most of the time on releasing it.
const ROUND_TRIP: Duration = Duration::from_millis(1);

/// How long releasing the grant of an earlier worker is repeated.
const ORPHAN: Duration = Duration::from_secs(90);

/// The low bits of a lease's token, which count hand-offs. The server's token is above them.
pub(crate) const HAND_OFF_BITS: u32 = TOKEN_BITS;

/// A grant of the server, and how far this process has used it.
pub(super) struct ServerGrant {
    pub(super) grant: Grant,
    /// When the server frees the key, counted from before the request was sent.
    pub(super) until: Instant,
    /// The same, if an extension has taken effect that was not answered.
    unanswered_until: Instant,
    /// When the row of hand-offs began.
    pub(super) since: Instant,
    pub(super) hand_offs: u16,
    /// Whether the term is a short one, which has to be extended to the one that was asked for.
    pub(super) is_short: bool,
}

impl ServerGrant {
    pub(super) fn new(grant: Grant, since: Instant, term: Duration) -> Self {
        let until = since + term;
        Self { grant, until, unanswered_until: until, since, hand_offs: 0, is_short: false }
    }

    /// A grant that another process has handed over.
    pub(super) fn handed_over(HandOver { grant, until }: HandOver) -> Self {
        let since = Instant::now();
        Self { grant, until, unanswered_until: until, since, hand_offs: 0, is_short: true }
    }

    /// Notes that an extension until then is about to be sent. It may take effect although its answer
    /// is late or lost. Returns what [`extended`](Self::extended) and [`ends`](Self::ends) need.
    pub(super) fn extending(&mut self, until: Instant) -> Instant {
        let before = self.unanswered_until;
        self.unanswered_until = before.max(until);
        before
    }

    /// Notes that the server has made the grant last until then, or for longer if it would before.
    pub(super) fn extended(&mut self, until: Instant, unanswered_until: Instant) {
        self.ends(until, unanswered_until.max(self.until));
    }

    /// Notes that the server has made the grant last until then, and no longer.
    pub(super) fn ends(&mut self, until: Instant, unanswered_until: Instant) {
        (self.until, self.unanswered_until) = (until, unanswered_until);
        self.is_short = false;
    }

    /// Whether the server may have freed the key by now.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// When the server frees the key at the latest.
    pub(super) fn at_latest(&self) -> Instant {
        self.until.max(self.unanswered_until)
    }

    /// The token of the lease that this grant stands for now.
    pub(super) fn token(&self) -> i64 {
        (self.grant.token << HAND_OFF_BITS) | i64::from(self.hand_offs)
    }

    /// Whether another waiter of this process may have the key without a new grant.
    pub(super) fn may_hand_off(&self) -> bool {
        let passed = self.since.elapsed();
        // `u16::MAX`: the count must fit into its bits of the token.
        let limit = if passed < ROUND_TRIP { u16::MAX } else { HAND_OFFS };
        self.hand_offs < limit && passed < MAX_TURN
    }
}

pub(super) struct ServerKey {
    pub(super) provider: Arc<ProviderState>,
    pub(super) queue: Arc<KeyQueue>,
    /// The task of the worker itself.
    pub(super) task: Weak<InlineTask>,
    /// When the turn of another process ends.
    other_turn: Option<Instant>,
    /// How long this process's last turn was, if it ended while more of its callers waited.
    pub(super) cut_short: Option<Duration>,
    /// Grants that the server may have, although a try failed or a lease is over, and when their terms end. A
    /// server that does not free keys by itself keeps them until they are released.
    doubts: Vec<(Grant, Instant)>,
}

impl ServerKey {
    pub(super) fn new(
        provider: Arc<ProviderState>,
        queue: Arc<KeyQueue>,
        task: Weak<InlineTask>,
    ) -> Self {
        let mut server =
            Self { provider, queue, task, other_turn: None, cut_short: None, doubts: Vec::new() };
        if let Some(owner) = server.queue.take_orphan() {
            server.doubt(owner, Instant::now() + ORPHAN);
        }
        server
    }

    pub(super) fn backend(&self) -> &dyn LockBackend {
        &*self.provider.backend
    }

    pub(super) fn stored(&self) -> &str {
        self.queue.stored()
    }

    pub(super) fn failed(&self, source: BackendError) -> LockError {
        LockError::of(self.queue.key(), source)
    }

    /// Awaits the server's answer. Callers whose wait ends meanwhile learn that there is none.
    pub(super) async fn asking<T>(&self, request: impl Future<Output = T>) -> T {
        self.queue.set_asked(Some(Instant::now()));
        // Wakes the worker when its runtime ends, whatever the request waits for.
        let answer = match tokio::time::timeout(countable(Duration::MAX), request).await {
            Ok(answer) => answer,
            Err(_) => std::future::pending().await,
        };
        self.queue.set_asked(None);
        answer
    }

    /// When the server frees the key by itself; much later, if it does not.
    pub(super) fn term_ends(&self, granted: &ServerGrant) -> Instant {
        if self.backend().frees_by_itself() {
            granted.until
        } else {
            Instant::now() + countable(Duration::MAX)
        }
    }

    pub(super) fn backoff(&self) -> Backoff {
        Backoff::new(self.provider.retry_sleep())
    }

    /// Waits this long before a request is repeated. Callers that do not wait learn
    /// of the failure. Returns early, with `true`, if the queue is closed or `stop` says so
    /// after a change of the queue.
    pub(super) async fn pause(&self, pause: Duration, stop: impl Fn() -> bool) -> bool {
        let closed = self.queue.is_closed();
        let until = Instant::now() + pause;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return false,
                () = self.queue.changed() => {
                    if stop() || self.queue.is_closed() != closed {
                        return true;
                    }
                    self.queue.repeat_failure();
                }
            }
        }
    }

    /// Notes a try that the server may have granted although it failed.
    pub(super) fn doubt(&mut self, owner: Uuid, until: Instant) {
        self.doubts.push((Grant { owner, token: 0 }, until));
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        !self.doubts.is_empty()
    }

    /// Releases what the server may have granted or extended although the request failed. Otherwise
    /// this process would wait for itself.
    pub(super) async fn settle(&mut self) -> Result<(), BackendError> {
        while let Some((grant, until)) = self.doubts.last().copied() {
            if Instant::now() < until || !self.backend().frees_by_itself() {
                let releasing = self.backend().release(self.stored(), &grant);
                match self.asking(releasing).await {
                    Err(error) if error.may_pass() => return Err(error),
                    Err(error) => {
                        tracing::warn!(%error, key = %self.queue.key(), "it is unknown whether a failed try was granted, or a lease extended; if so, the key is free when its term ends");
                    }
                    Ok(_) => {}
                }
            }
            self.doubts.pop();
        }
        self.queue.set_owner(None);
        Ok(())
    }

    /// Settles what is in doubt while nobody waits, until its term has ended.
    pub(super) async fn settle_in_the_end(&mut self) {
        let mut backoff = self.backoff();
        while let Err(error) = self.settle().await {
            if self.queue.is_closed() {
                self.doubts.clear();
                self.queue.set_owner(None);
                return;
            }
            self.queue.failed(error);
            if self.pause(backoff.pause(), || self.queue.waiting() > 0).await {
                return;
            }
        }
        self.queue.answered();
    }

    /// When the turn of the process that wanted the released key ends, if it has a turn.
    pub(super) fn other_turn(&mut self) -> Option<Instant> {
        self.other_turn = self.other_turn.filter(|ends| *ends > Instant::now());
        self.other_turn
    }

    pub(super) fn end_other_turn(&mut self) {
        self.other_turn = None;
    }

    /// Releases the key, and repeats that until the server frees the key by itself. If an extension
    /// that was not answered may have made it later, that is settled afterwards. Returns whether this
    /// process is known to have had the key.
    pub(super) async fn release(&mut self, granted: ServerGrant) -> bool {
        self.cut_short = None;
        let mut backoff = self.backoff();
        let ours = loop {
            let last = self.queue.is_closed();
            let releasing = self.backend().release(self.stored(), &granted.grant);
            let error = match self.asking(releasing).await {
                Ok(released) => {
                    self.queue.answered();
                    if released.wanted {
                        self.other_turn = Some(Instant::now() + self.backend().give_way());
                    }
                    break released.ours;
                }
                Err(error) => error,
            };
            let now = Instant::now();
            let rest = granted.until.saturating_duration_since(now);
            if rest.is_zero() && now < granted.at_latest() && !last && error.may_pass() {
                tracing::debug!(%error, key = %self.queue.key(), "releasing a lock failed, and its term may have been extended");
                self.doubts.push((granted.grant, granted.at_latest()));
                return false;
            }
            if last || rest.is_zero() || !error.may_pass() {
                tracing::warn!(%error, key = %self.queue.key(), "a lock could not be released; it is free when its term ends");
                break false;
            }
            tracing::debug!(%error, key = %self.queue.key(), "releasing a lock failed; trying again");
            self.queue.failed(error);
            self.pause(backoff.pause().min(rest), || false).await;
        };
        self.queue.set_owner(None);
        ours
    }
}
