//! The contract of keyed locks, and the provider that implements it over any backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use crate::key_queue::{KeyQueue, Waiter};
use crate::key_worker::serve;
use crate::options::countable;
use crate::provider_state::{Enqueued, ProviderState};
use crate::telemetry::{self, increment};
use crate::{
    Grant, Holder, Lease, LockBackend, LockCounters, LockError, LockKey, LockOptions, LockScope,
};

/// Locks by key. Two callers that name the same key exclude each other. Contention is never an
/// error. Every future can be dropped at any await and leaves nothing behind.
#[async_trait]
pub trait KeyedLockProvider: Send + Sync + 'static {
    /// Waits until the lock is free. The lease ends by itself after `max_hold`.
    async fn acquire(&self, key: &LockKey, max_hold: Duration) -> Result<Lease, LockError>;

    /// Waits at most `max_wait`, which includes the wait for a connection. Returns `None` if
    /// another holder had the key during the whole wait. With a `max_wait` of zero, returns
    /// `None` if the key is taken now.
    ///
    /// `None` says that the key is held. If the lock server does not say who holds the key, the
    /// answer is [`LockError::Unavailable`] or [`LockError::InDoubt`].
    async fn try_acquire(
        &self,
        key: &LockKey,
        max_wait: Duration,
        max_hold: Duration,
    ) -> Result<Option<Lease>, LockError> {
        self.take(key, &LockOptions::wait(max_wait).hold(max_hold)).await
    }

    /// Like [`try_acquire`](Self::try_acquire), with all options.
    async fn take(&self, key: &LockKey, options: &LockOptions) -> Result<Option<Lease>, LockError>;

    /// The holder of the key, as the server knows it.
    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, LockError>;

    /// Ends the lease of the holder that the call finds, and never the lease of one that follows
    /// it. Returns `false` if there was none, or if it ended by itself meanwhile.
    ///
    /// Of another process, the call ends the grant that the server reports. If that process has
    /// handed the key on to its next waiter under the same grant, that lease ends, too.
    ///
    /// A holder that has not noticed can still commit until an action of its successor has
    /// begun; [`LockProvider::force_release_fenced`] prevents that at once.
    async fn force_release(&self, key: &LockKey, why: &str) -> Result<bool, LockError>;
}

/// A provider over one backend. Cheap to clone.
///
/// Callers of this process wait in a queue, in order of arrival. For each key, at most one
/// contender per process talks to the server. A released key goes to the next local waiter
/// without a round trip, but only a limited number of times in a row, so that other processes
/// get their turn.
#[derive(Clone)]
pub struct LockProvider {
    state: Arc<ProviderState>,
    /// The term of leases whose options name none.
    term: Option<Duration>,
}

impl LockProvider {
    /// A provider for one zone.
    pub fn new(backend: impl LockBackend, zone: &str) -> Self {
        Self { state: Arc::new(ProviderState::new(backend, zone)), term: None }
    }

    /// The same locks, with a default term for leases whose options name none. Such leases are
    /// renewed.
    #[must_use]
    pub fn renewing(mut self, term: Option<Duration>) -> Self {
        self.term = term;
        self
    }

    /// The name of the backend.
    pub fn name(&self) -> &'static str {
        self.state.backend.name()
    }

    /// The counters since the provider was made.
    pub fn counters(&self) -> LockCounters {
        self.state.counts.read()
    }

    /// Rejects all waiters, releases the keys that are held and closes the backend. Leases
    /// that are held are lost.
    pub async fn close(&self) {
        self.state.close().await;
    }

    /// The key as the server and the fences know it.
    pub(crate) fn stored(&self, key: &LockKey) -> String {
        self.state.stored(key)
    }

    /// Ends the lease of the holder that is found.
    pub(crate) async fn force(&self, key: &LockKey, why: &str) -> Result<Option<Grant>, LockError> {
        let ended = self.end_holder(key, why).await;
        tracing::warn!(name: "ekbatan.lock.forced", key = %key, why, "a lock was released by force");
        ended
    }

    async fn end_holder(&self, key: &LockKey, why: &str) -> Result<Option<Grant>, LockError> {
        let (stored, backend) = (self.stored(key), &self.state.backend);
        let failed = |source| LockError::of(key, source);
        loop {
            let here = self.state.queue_of(&stored).and_then(|queue| queue.holder());
            let Some(seen) = backend.inspect(&stored).await.map_err(failed)? else {
                return Ok(None);
            };
            let seen = seen.grant();
            let Some(queue) = self.state.queue_of(&stored).filter(|queue| queue.owns(&seen)) else {
                let ended = backend.force_release(&stored, &seen, why).await;
                return Ok(ended.map_err(failed)?.then_some(seen));
            };
            match here {
                // The same grant may have been handed on meanwhile, so end this hold only.
                Some((grant, holder)) if grant == seen => {
                    let ended = queue.force(&holder, why);
                    // Until the worker has released the key, a caller would find it taken.
                    while ended && queue.owns(&seen) {
                        tokio::time::sleep(LOOK_AGAIN).await;
                    }
                    return Ok(ended.then_some(seen));
                }
                // The worker of this process is about to hand out the grant, or to pass it on.
                _ => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// Acquires within a span; counts and records the answer.
    async fn traced(
        &self,
        key: &LockKey,
        max_wait: Option<Duration>,
        options: &LockOptions,
    ) -> Result<Option<Lease>, LockError> {
        let options = LockOptions { term: options.term.or(self.term), ..*options };
        check(key, &options)?;
        let (max_wait, options) = (max_wait.map(countable), &options.countable());
        let since = Instant::now();
        let (caller_span, acquire_span) = (Span::current(), telemetry::acquiring(self.name(), key));
        let queueing =
            self.queued(key, max_wait, options, since, [caller_span, acquire_span.clone()]);
        let answer = queueing.instrument(acquire_span.clone()).await;
        if matches!(answer, Ok(None)) {
            increment(&self.state.counts.busy);
        }
        telemetry::answered(&acquire_span, &answer, since.elapsed());
        answer
    }

    /// Enqueues and waits for the answer.
    async fn queued(
        &self,
        key: &LockKey,
        max_wait: Option<Duration>,
        options: &LockOptions,
        since: Instant,
        [caller_span, acquire_span]: [Span; 2],
    ) -> Result<Option<Lease>, LockError> {
        let deadline = max_wait.map(|wait| since + wait);
        let (answer, answered) = oneshot::channel();
        let waiter = Waiter {
            scope: LockScope::current(),
            options: *options,
            only_try: max_wait.is_some_and(|wait| wait.is_zero()),
            since,
            contended: false,
            caller_span,
            acquire_span,
            answer,
        };
        let queue = match self.state.enqueue(key, waiter)? {
            Enqueued::Answered(lease) => return Ok(lease),
            Enqueued::Waits(queue) => queue,
            Enqueued::Opened(queue) => {
                tokio::spawn(serve(self.state.clone(), queue.clone()));
                queue
            }
        };
        let _wake = WakeOnDrop(&queue);
        let answer = match deadline {
            // A try without a wait takes as long as the server takes to answer.
            Some(deadline) if max_wait.is_some_and(|wait| !wait.is_zero()) => {
                match tokio::time::timeout_at(deadline, answered).await {
                    Ok(answer) => answer,
                    Err(_) => return queue.unanswered(since),
                }
            }
            _ => answered.await,
        };
        answer.unwrap_or_else(|_| Err(LockError::Closed { key: key.clone() }))
    }
}

/// Wakes the worker when a caller stops waiting, so that it does not contend for nobody.
struct WakeOnDrop<'q>(&'q KeyQueue);

impl Drop for WakeOnDrop<'_> {
    fn drop(&mut self) {
        self.0.wake_worker();
    }
}

#[async_trait]
impl KeyedLockProvider for LockProvider {
    async fn acquire(&self, key: &LockKey, max_hold: Duration) -> Result<Lease, LockError> {
        let options = LockOptions::default().hold(max_hold);
        match self.traced(key, None, &options).await? {
            Some(lease) => Ok(lease),
            // A wait without a deadline never returns `None`.
            None => Err(LockError::Closed { key: key.clone() }),
        }
    }

    async fn take(&self, key: &LockKey, options: &LockOptions) -> Result<Option<Lease>, LockError> {
        self.traced(key, Some(options.max_wait), options).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, LockError> {
        let stored = self.stored(key);
        let found = self.state.backend.inspect(&stored).await;
        let mut holder = found.map_err(|source| LockError::of(key, source))?;
        if let Some(holder) = &mut holder
            && let Some(queue) = self.state.queue_of(&stored)
        {
            holder.waiting_here = queue.waiting();
        }
        Ok(holder)
    }

    async fn force_release(&self, key: &LockKey, why: &str) -> Result<bool, LockError> {
        Ok(self.force(key, why).await?.is_some())
    }
}

/// Pause before a release by force looks again at a grant that its process is handing out.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl fmt::Debug for LockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockProvider").field("backend", &self.name()).finish_non_exhaustive()
    }
}

fn check(key: &LockKey, options: &LockOptions) -> Result<(), LockError> {
    if key.id().trim().is_empty() {
        return Err(LockError::BlankKey);
    }
    let longer_than_zero = |what, value: Duration| {
        if value.is_zero() {
            Err(LockError::Duration { key: key.clone(), what, value })
        } else {
            Ok(())
        }
    };
    longer_than_zero("max_hold", options.max_hold)?;
    options.term.map_or(Ok(()), |term| longer_than_zero("the term", term))
}
