//! The contract that every caller sees, and the one implementation of it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tracing::{Instrument, Span};

use crate::desk::{Desk, Waiter, serve};
use crate::telemetry::{self, Counts, one_more};
use crate::{Holder, Lease, LockBackend, LockCounters, LockError, LockKey, LockOptions, LockScope};

/// Locks by key. Two callers who name the same key exclude each other; contention is never
/// an error. Every future may be dropped at any await and leaves nothing behind.
#[async_trait]
pub trait KeyedLockProvider: Send + Sync + 'static {
    /// Waits until the lock is free. The lease ends by itself after `max_hold`.
    async fn acquire(&self, key: &LockKey, max_hold: Duration) -> Result<Lease, LockError>;

    /// Waits at most `max_wait`, everything counted, the wait for a connection too. `None`
    /// says that somebody else had the key for all of it; with no wait at all, that somebody
    /// has it now.
    async fn try_acquire(
        &self,
        key: &LockKey,
        max_wait: Duration,
        max_hold: Duration,
    ) -> Result<Option<Lease>, LockError> {
        self.take(key, &LockOptions::wait(max_wait).hold(max_hold)).await
    }

    /// As [`try_acquire`](Self::try_acquire), with every option there is.
    async fn take(&self, key: &LockKey, options: &LockOptions) -> Result<Option<Lease>, LockError>;

    /// Who holds the key, as the server has it.
    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, LockError>;

    /// Ends somebody's lease. `false` says that there was none. What a holder who has not
    /// noticed is committing may still go through, until a successor's action has begun;
    /// [`LockProvider::force_release_fenced`] shuts that out at once.
    async fn force_release(&self, key: &LockKey, why: &str) -> Result<bool, LockError>;
}

/// A provider over one backend. Cheap to clone.
///
/// Whoever waits in this process queues in front of the server, first come, first served: a
/// key has at most one contender per process there. A key that is given back goes to the next
/// in the queue without a trip, but only so often in a row, so that other processes have
/// their turn.
#[derive(Clone)]
pub struct LockProvider {
    pub(crate) shared: Arc<Shared>,
    /// Of leases whose options name none.
    term: Option<Duration>,
}

pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn LockBackend>,
    zone: String,
    pub(crate) holder: String,
    pub(crate) counts: Counts,
    desks: Mutex<Desks>,
    retired: Notify,
}

#[derive(Default)]
struct Desks {
    open: HashMap<String, Arc<Desk>>,
    closed: bool,
}

impl LockProvider {
    /// A provider of one zone.
    pub fn new(backend: impl LockBackend, zone: &str) -> Self {
        let shared = Shared {
            backend: Arc::new(backend),
            zone: zone.to_owned(),
            holder: holder_name(),
            counts: Counts::default(),
            desks: Mutex::default(),
            retired: Notify::new(),
        };
        Self { shared: Arc::new(shared), term: None }
    }

    /// The same locks, where leases whose options name no term are held by this one, and
    /// renewed.
    #[must_use]
    pub fn renewing(mut self, term: Option<Duration>) -> Self {
        self.term = term;
        self
    }

    /// What the backend is called.
    pub fn name(&self) -> &'static str {
        self.shared.backend.name()
    }

    /// What was counted since the provider was made.
    pub fn counters(&self) -> LockCounters {
        self.shared.counts.read()
    }

    /// Refuses whoever waits, gives back what is held, and ends. Leases that are out are
    /// lost.
    pub async fn close(&self) {
        let desks: Vec<Arc<Desk>> = {
            let mut desks = self.shared.desks();
            desks.closed = true;
            desks.open.values().cloned().collect()
        };
        desks.iter().for_each(|desk| desk.close());
        loop {
            let retired = self.shared.retired.notified();
            if self.shared.desks().open.is_empty() {
                break;
            }
            retired.await;
        }
        self.shared.backend.close().await;
    }

    /// The key as the server and the fences know it.
    pub(crate) fn stored(&self, key: &LockKey) -> String {
        key.stored(&self.shared.zone)
    }

    async fn enter(
        &self,
        key: &LockKey,
        max_wait: Option<Duration>,
        options: &LockOptions,
    ) -> Result<Option<Lease>, LockError> {
        let options = &LockOptions { term: options.term.or(self.term), ..*options };
        check(key, options)?;
        let since = Instant::now();
        let (within, asking) = (Span::current(), telemetry::acquiring(self.name(), key));
        let queueing = self.queue(key, max_wait, options, since, [within, asking.clone()]);
        let answer = queueing.instrument(asking.clone()).await;
        if matches!(answer, Ok(None)) {
            one_more(&self.shared.counts.busy);
        }
        telemetry::answered(&asking, &answer, since.elapsed());
        answer
    }

    async fn queue(
        &self,
        key: &LockKey,
        max_wait: Option<Duration>,
        options: &LockOptions,
        since: Instant,
        [within, asking]: [Span; 2],
    ) -> Result<Option<Lease>, LockError> {
        let deadline = max_wait.map(|wait| since + wait);
        let (answer, answered) = oneshot::channel();
        let waiter = Waiter {
            scope: LockScope::current(),
            options: *options,
            only_try: max_wait.is_some_and(|wait| wait.is_zero()),
            since,
            contended: false,
            within,
            asking,
            answer,
        };
        let desk = match self.line_up(key, waiter)? {
            Entry::Answered(lease) => return Ok(lease),
            Entry::Waits(desk) => desk,
        };
        // Whoever stops waiting tells the desk, so that it does not contend for nobody.
        let _gone = Gone(&desk);
        let answer = match deadline {
            // A mere try takes as long as the server takes to answer it.
            Some(deadline) if max_wait.is_some_and(|wait| !wait.is_zero()) => {
                match tokio::time::timeout_at(deadline, answered).await {
                    Ok(answer) => answer,
                    Err(_) => return Ok(None),
                }
            }
            _ => answered.await,
        };
        answer.unwrap_or_else(|_| Err(LockError::Closed { key: key.clone() }))
    }

    /// Enters the queue of the key, unless the answer is known at once.
    fn line_up(&self, key: &LockKey, waiter: Waiter) -> Result<Entry, LockError> {
        let stored = key.stored(&self.shared.zone);
        let mut desks = self.shared.desks();
        if desks.closed {
            return Err(LockError::Closed { key: key.clone() });
        }
        if let Some(desk) = desks.open.get(&stored) {
            return Ok(match desk.line_up(waiter, &self.shared.counts) {
                Some(answered) => Entry::Answered(answered),
                None => Entry::Waits(desk.clone()),
            });
        }
        let desk = Arc::new(Desk::new(key.clone(), stored.clone(), waiter));
        desks.open.insert(stored, desk.clone());
        drop(desks);
        tokio::spawn(serve(self.shared.clone(), desk.clone()));
        Ok(Entry::Waits(desk))
    }
}

enum Entry {
    Answered(Option<Lease>),
    Waits(Arc<Desk>),
}

/// Tells the desk, when it is dropped, that somebody may have stopped waiting.
struct Gone<'d>(&'d Desk);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.call();
    }
}

impl Shared {
    fn desks(&self) -> MutexGuard<'_, Desks> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a desk away at which nobody waits; `false` if somebody does.
    pub(crate) fn retire(&self, desk: &Desk) -> bool {
        let mut desks = self.desks();
        if !desk.is_deserted() {
            return false;
        }
        desks.open.remove(desk.stored());
        drop(desks);
        self.retired.notify_waiters();
        true
    }
}

#[async_trait]
impl KeyedLockProvider for LockProvider {
    async fn acquire(&self, key: &LockKey, max_hold: Duration) -> Result<Lease, LockError> {
        let options = LockOptions::default().hold(max_hold);
        match self.enter(key, None, &options).await? {
            Some(lease) => Ok(lease),
            // Only a wait that ends answers nothing, and this one does not.
            None => Err(LockError::Closed { key: key.clone() }),
        }
    }

    async fn take(&self, key: &LockKey, options: &LockOptions) -> Result<Option<Lease>, LockError> {
        self.enter(key, Some(options.max_wait), options).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, LockError> {
        let stored = key.stored(&self.shared.zone);
        let found = self.shared.backend.inspect(&stored).await;
        let mut holder = found.map_err(|source| LockError::Backend { key: key.clone(), source })?;
        if let Some(holder) = &mut holder
            && let Some(desk) = self.shared.desks().open.get(&stored)
        {
            holder.waiting_here = desk.waiting();
        }
        Ok(holder)
    }

    async fn force_release(&self, key: &LockKey, why: &str) -> Result<bool, LockError> {
        let stored = key.stored(&self.shared.zone);
        let here = self.shared.desks().open.get(&stored).is_some_and(|desk| desk.force(why));
        let there = self.shared.backend.force_release(&stored, why).await;
        tracing::warn!(name: "ekbatan.lock.forced", key = %key, why, "a lock was released by force");
        Ok(there.map_err(|source| LockError::Backend { key: key.clone(), source })? || here)
    }
}

impl fmt::Debug for LockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockProvider").field("backend", &self.name()).finish_non_exhaustive()
    }
}

fn check(key: &LockKey, options: &LockOptions) -> Result<(), LockError> {
    if key.id().trim().is_empty() {
        return Err(LockError::BlankKey);
    }
    let zero = |what, value: Duration| match value.is_zero() {
        true => Err(LockError::Duration { key: key.clone(), what, value }),
        false => Ok(()),
    };
    zero("max_hold", options.max_hold)?;
    options.term.map_or(Ok(()), |term| zero("the term", term))
}

/// How this process calls itself to those who ask who holds a key.
fn holder_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => format!("process {}", std::process::id()),
        host => format!("{host} process {}", std::process::id()),
    }
}
