//! The contract of keyed locks, and the provider that implements it over any backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_core::config::LockSettings;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use crate::options::countable;
use crate::provider::key_queue::{KeyQueue, Waiter};
use crate::provider::key_worker;
use crate::provider::state::{Enqueued, ProviderState};
use crate::provider::telemetry::{self, increment};
use crate::{
    BackendError, Grant, HeldKey, HeldKeys, Holder, Lease, LockBackend, LockCounters, LockError,
    LockKey, LockLevel, LockOptions, LockScope,
};

/// Locks by key. Two callers that name the same key exclude each other. Contention is never an
/// error. Every future can be dropped at any await and leaves nothing behind.
#[async_trait]
pub trait KeyedLockProvider: Send + Sync + 'static {
    /// Waits until the lock is free. The lease ends by itself after `max_hold`.
    ///
    /// The wait for a holder has no limit. If the lock server is not available for 90 s in a
    /// row, the answer is an error.
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

    /// One more lease on the key if the scope of the caller, or one around it, holds it. Asks
    /// nothing of the server. A provider of your own that returns `None` re-enters no semaphores and
    /// no read/write locks.
    fn reenter(&self, key: &LockKey) -> Option<Lease> {
        let _ = key;
        None
    }

    /// The key by the one name that its lock has, if keys of several names lead to one lock. Locks that
    /// are taken together are taken in the order of these names.
    fn named(&self, key: &LockKey) -> LockKey {
        key.clone()
    }

    /// The holder of the key, as the server knows it.
    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, LockError>;

    /// The keys that are held, with their holders: at most `most` of them. If more are held,
    /// [`HeldKeys::more`] is set. A provider lists the keys of its zone and those of all zones.
    ///
    /// ```
    /// # use ekbatan_lock::*;
    /// # async fn run(locks: &LockProvider) -> Result<(), LockError> {
    /// let held = locks.list(100).await?;
    /// for HeldKey { key, holder, .. } in &held.keys {
    ///     println!("{key} is held by {} for {:?}", holder.holder, holder.held);
    /// }
    /// if held.more {
    ///     println!("and others");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LockError::List`] if the server cannot be asked, or does not know the keys: session locks
    /// of PostgreSQL are numbers to their server.
    async fn list(&self, most: usize) -> Result<HeldKeys, LockError>;

    /// Ends the lease of the holder that the call finds, and never the lease of one that follows
    /// it. Returns `false` if there was none, or if it ended by itself meanwhile; also if the
    /// connection broke before the answer, and the repeated request found the lease over.
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

    /// The same locks, with the term, the pauses between retries and the threshold of warnings
    /// that a configuration names. For crates that open a provider of their own.
    #[must_use]
    pub fn configured(self, settings: &LockSettings) -> Self {
        let threshold = settings.server.leak_detection_threshold;
        self.renewing(settings.term)
            .retrying(settings.retry_sleep.0, settings.retry_sleep.1)
            .warning_after((!threshold.is_zero()).then_some(threshold))
    }

    /// The name of the backend.
    pub fn name(&self) -> &'static str {
        self.state.backend.name()
    }

    /// The counters since the provider was made.
    pub fn counters(&self) -> LockCounters {
        self.state.counts.read()
    }

    /// The same locks, with these pauses before a request that failed is repeated. The first
    /// pause is about `first`; each following one is twice as long, up to `longest`. Defaults:
    /// 50 ms and 2 s.
    ///
    /// A request that the server refused is not repeated. Taking is repeated until the caller
    /// stops waiting, extending and renewing until the lease ends, and releasing until the
    /// server frees the key by itself. The setting holds for all clones.
    #[must_use]
    pub fn retrying(self, first: Duration, longest: Duration) -> Self {
        let first = countable(first).max(LEAST_RETRY);
        self.state.set_retry_sleep(first, countable(longest).max(first));
        self
    }

    /// The same locks, with fences of their own. Two lock servers count tokens independently. If
    /// both have keys of the same name, and their leases fence commits in the same databases,
    /// give the keys of one of them another fence: any name that is the same in every process
    /// and differs from that of the other server. [`LockRegistry`](crate::LockRegistry) does so
    /// by itself. The first call counts.
    #[must_use]
    pub fn fenced_as(self, server: &str) -> Self {
        let _ = self.state.fences.set(server.to_owned());
        self
    }

    /// The same locks, which log a lease that is held for longer than this: it may have been
    /// forgotten. The setting holds for all clones.
    #[must_use]
    pub fn warning_after(self, held: Option<Duration>) -> Self {
        self.state.set_warn_after(held.map(countable));
        self
    }

    /// Like [`close_within`](Self::close_within), with 10 s.
    pub async fn close(&self) {
        self.close_within(CLOSE_GRACE).await;
    }

    /// Rejects callers from now on, also those that wait; waits until the holders have released
    /// their leases; and closes the backend.
    ///
    /// Leases that are held after `grace` are lost, and their work may still run. A server that
    /// ends leases by itself therefore keeps their keys until their terms end. The locks of a
    /// session are free when the session is closed: then only the fence keeps the work of the
    /// old holder from committing after that of the next one has begun.
    pub async fn close_within(&self, grace: Duration) {
        let state = &self.state;
        state.refuse();
        if tokio::time::timeout(countable(grace), key_worker::all_done(state)).await.is_err() {
            state.open().iter().for_each(|queue| queue.lose_hold());
            key_worker::all_done(state).await;
        }
        state.backend.close().await;
    }

    /// Whether both are clones of one provider.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// The name of the key's fence.
    pub(crate) fn fence(&self, key: &LockKey) -> String {
        self.state.fence(key)
    }

    /// The key as the server knows it.
    pub(crate) fn stored(&self, key: &LockKey) -> String {
        self.state.stored(key)
    }

    /// Ends the lease of the holder that is found.
    pub(crate) async fn force(&self, key: &LockKey, why: &str) -> Result<Option<Grant>, LockError> {
        let ended = self.end_holder(key, why).await;
        if matches!(ended, Ok(Some(_))) {
            tracing::warn!(name: "ekbatan.lock.forced", key = %key, why, "a lock was released by force");
        }
        ended
    }

    async fn end_holder(&self, key: &LockKey, why: &str) -> Result<Option<Grant>, LockError> {
        let (stored, backend) = (self.stored(key), &self.state.backend);
        let failed = |source| LockError::of(key, source);
        let (until, mut pause) = (Instant::now() + FORCE_PATIENCE, LOOK_AGAIN);
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
                // The same grant may have been handed on meanwhile, so end this hold only. The server may
                // count the token from another number by now; each grant has an owner of its own.
                Some((grant, holder)) if grant.owner == seen.owner => {
                    let ended = queue.force(&holder, why);
                    // Until the worker has released the key, a caller would find it taken.
                    while ended && queue.owns(&seen) && Instant::now() < until {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(LOOK_AGAIN_LATEST);
                    }
                    return Ok(ended.then_some(seen));
                }
                // The worker of this process is about to hand out the grant, or to pass it on.
                _ if Instant::now() >= until => {
                    let why = format!(
                        "this process has been handing the key out or giving it back for {FORCE_PATIENCE:?}; call again, or wait until the term ends"
                    );
                    return Err(failed(BackendError::unavailable(why)));
                }
                _ => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(LOOK_AGAIN_LATEST);
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
        if key.level() == LockLevel::Global && !self.state.backend.spans_zones() {
            return Err(LockError::OneZone { key: key.clone(), backend: self.name() });
        }
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
            holder: LockScope::of_new_lease(),
            options: *options,
            only_try: max_wait.is_some_and(|wait| wait.is_zero()),
            waits_for_ever: max_wait.is_none(),
            since,
            contended: false,
            caller_span,
            acquire_span,
            answer,
        };
        let queue = match self.state.enqueue(key, waiter)? {
            Enqueued::Answered(lease) => return Ok(lease),
            Enqueued::Waits(queue) => queue,
        };
        let _wake = WakeOnDrop(&queue);
        let answered = self.answer(&queue, answered);
        match deadline {
            // A try without a wait takes as long as the server takes to answer.
            Some(deadline) if max_wait.is_some_and(|wait| !wait.is_zero()) => {
                match tokio::time::timeout_at(deadline, answered).await {
                    Ok(answer) => answer,
                    Err(_) => queue.unanswered(since),
                }
            }
            _ => answered.await,
        }
    }

    /// Waits for the answer, and sees to it that the queue has a worker meanwhile.
    async fn answer(
        &self,
        queue: &Arc<KeyQueue>,
        mut answered: oneshot::Receiver<Result<Option<Lease>, LockError>>,
    ) -> Result<Option<Lease>, LockError> {
        loop {
            let worker_gone = queue.worker_gone();
            if queue.claim_worker() {
                key_worker::start(self.state.clone(), queue.clone());
            }
            tokio::select! {
                biased;
                answer = &mut answered => return match answer {
                    Ok(answer) => answer,
                    Err(_) if queue.is_closed() => {
                        Err(LockError::Closed { key: queue.key().clone() })
                    }
                    Err(_) => Err(LockError::of(
                        queue.key(),
                        BackendError::in_doubt("the task that asked for it has ended"),
                    )),
                },
                () = worker_gone => {}
            }
        }
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

    fn reenter(&self, key: &LockKey) -> Option<Lease> {
        let scope = LockScope::current()?;
        let lease = self.state.queue_of(&self.stored(key))?.reenter(&scope)?;
        increment(&self.state.counts.reentered);
        Some(lease)
    }

    /// The lock of a key is the same whatever shard the key names.
    fn named(&self, key: &LockKey) -> LockKey {
        LockKey::named(key.id()).at_level(key.level())
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

    async fn list(&self, most: usize) -> Result<HeldKeys, LockError> {
        let state = &self.state;
        let found = state.backend.list(&state.prefixes(), most.saturating_add(1)).await;
        let mut found = found.map_err(|source| LockError::List { source })?;
        let more = found.len() > most;
        found.truncate(most);
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        let keys = found.into_iter().filter_map(|(stored, mut holder)| {
            if let Some(queue) = state.queue_of(&stored) {
                holder.waiting_here = queue.waiting();
            }
            Some(HeldKey { key: state.named(&stored)?, holder })
        });
        Ok(HeldKeys { keys: keys.collect(), more })
    }

    async fn force_release(&self, key: &LockKey, why: &str) -> Result<bool, LockError> {
        Ok(self.force(key, why).await?.is_some())
    }
}

/// Time for holders to release their leases when the locks are closed.
const CLOSE_GRACE: Duration = Duration::from_secs(10);

/// Pause before a release by force looks again at a grant that its process is handing out.
/// It doubles with each look.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The longest such pause.
const LOOK_AGAIN_LATEST: Duration = Duration::from_millis(100);

/// How long a release by force waits for the worker of this process, which may have to wait for the
/// server.
const FORCE_PATIENCE: Duration = Duration::from_secs(10);

/// The shortest pause before a request that failed is repeated.
const LEAST_RETRY: Duration = Duration::from_millis(1);

impl fmt::Debug for LockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockProvider").field("backend", &self.name()).finish_non_exhaustive()
    }
}

/// Rejects a blank key, and durations of zero that must be longer.
pub(crate) fn check(key: &LockKey, options: &LockOptions) -> Result<(), LockError> {
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
