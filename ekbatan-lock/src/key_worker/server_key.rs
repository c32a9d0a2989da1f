//! One key at the server, as the worker of this process sees it: its grants, and whose turn it
//! is among the processes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::key_queue::{KeyQueue, MAX_TURN};
use crate::provider_state::ProviderState;
use crate::{BackendError, Grant, HandOver, LockBackend, LockError};

/// Maximum number of hand-offs in a row within this process, once they have taken
/// [`ROUND_TRIP`].
const HAND_OFFS: u16 = 16;

/// About one round trip to the server. Holders that only read something under the key would
/// otherwise spend most of the time on releasing it.
const ROUND_TRIP: Duration = Duration::from_millis(1);

/// The low bits of a lease's token, which count hand-offs. The server's token is above them.
pub(crate) const HAND_OFF_BITS: u32 = 16;

/// A grant of the server, and how far this process has used it.
pub(super) struct ServerGrant {
    pub(super) grant: Grant,
    /// When the server frees the key, counted from before the request was sent.
    pub(super) until: Instant,
    /// When the row of hand-offs began.
    pub(super) since: Instant,
    pub(super) hand_offs: u16,
    /// Whether the term is a short one, which has to be extended to the one that was asked for.
    pub(super) is_short: bool,
}

impl ServerGrant {
    pub(super) fn new(grant: Grant, since: Instant, term: Duration) -> Self {
        Self { grant, until: since + term, since, hand_offs: 0, is_short: false }
    }

    /// A grant that another process has handed over.
    pub(super) fn handed_over(HandOver { grant, until }: HandOver) -> Self {
        Self { grant, until, since: Instant::now(), hand_offs: 0, is_short: true }
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
    /// When the turn of another process ends.
    other_turn: Option<Instant>,
    /// How long this process's last turn was, if it ended while more of its callers waited.
    pub(super) cut_short: Option<Duration>,
}

impl ServerKey {
    pub(super) fn new(provider: Arc<ProviderState>, queue: Arc<KeyQueue>) -> Self {
        Self { provider, queue, other_turn: None, cut_short: None }
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
        let answer = request.await;
        self.queue.set_asked(None);
        answer
    }

    /// When the turn of the process that wanted the released key ends, if it has a turn.
    pub(super) fn other_turn(&mut self) -> Option<Instant> {
        self.other_turn = self.other_turn.filter(|ends| *ends > Instant::now());
        self.other_turn
    }

    pub(super) fn end_other_turn(&mut self) {
        self.other_turn = None;
    }

    /// Releases the key. Returns whether this process still had it.
    pub(super) async fn release(&mut self, granted: ServerGrant) -> bool {
        self.cut_short = None;
        let released = self.asking(self.backend().release(self.stored(), &granted.grant)).await;
        self.queue.set_owner(None);
        match released {
            Ok(released) => {
                if released.wanted {
                    self.other_turn = Some(Instant::now() + self.backend().give_way());
                }
                released.ours
            }
            Err(error) => {
                tracing::warn!(%error, key = %self.queue.key(), "a lock could not be released; it is free when its term ends");
                false
            }
        }
    }
}
