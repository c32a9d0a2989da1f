//! Read/write locks: a key that several readers or one writer have.
//!
//! A reader has one slot and a writer has all of them. So the fences of a writer are those of all
//! readers before and after it, while readers do not touch each other's.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use ekbatan_core::action::{AsFence, Fence};
use futures_util::StreamExt;
use futures_util::future::{join_all, try_join_all};
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::slots::{MOST, Slots};
use crate::with_lock::{ReleaseOnDrop, with_lease};
use crate::{
    KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockScope, LossCause, WithLockError,
};

/// A key that either several readers have at the same time, or one writer. Returned by
/// [`LockSource::read_write`](crate::LockSource::read_write).
///
/// Readers and writers that have to wait are served in the order in which they came, as far as the
/// backend serves processes in order. A reader that comes after a writer waits behind it, so a
/// writer does not wait for ever. A caller that does not wait (a `max_wait` of zero) gets `None` if
/// others wait, or if a writer tries at the same moment.
///
/// Commits are fenced: once a writer's action has begun, no earlier reader commits, and once a
/// reader's action has begun, no earlier writer commits. Readers do not refuse each other.
///
/// **Every process must name the same number of readers.** A writer that names a smaller number than
/// a reader does not exclude that reader. To raise the number, first deploy writers that name the
/// greater one, then the readers; to lower it, first the readers.
///
/// A scope that reads or writes re-enters the lock to read. A scope that reads cannot write
/// ([`LockError::Upgrade`]). Calls that run side by side in one scope are one holder: give a reader and
/// a writer that run side by side a scope each.
///
/// The number of readers is what a writer pays: it takes as many leases, all at the same time, and a
/// commit under it has as many fences. Each fence after the first is one more round trip before the
/// action reads. A reader costs what a permit of a [`Semaphore`](crate::Semaphore) costs.
pub struct ReadWriteLock<'l, P: ?Sized>(Slots<'l, P>);

impl<'l, P: KeyedLockProvider + ?Sized> ReadWriteLock<'l, P> {
    /// The greatest number of readers.
    pub const MOST_READERS: usize = MOST;

    pub(crate) fn new(locks: &'l P, key: &LockKey, readers: usize) -> Self {
        Self(Slots { locks, key: key.clone(), count: readers, what: "readers" })
    }

    /// Waits for writers that came before, and for a place among the readers. Returns `None` if
    /// that took longer than `max_wait`. The lease has the key of its place: `catalog#0`,
    /// `catalog#1` and so on.
    ///
    /// # Errors
    ///
    /// An error of the locks; [`LockError::Count`] if the number of readers is zero or greater than
    /// [`MOST_READERS`](Self::MOST_READERS).
    pub async fn read(&self, options: &LockOptions) -> Result<Option<Lease>, LockError> {
        self.0.take_one(options).await
    }

    /// Waits for all that came before. Returns `None` if that took longer than `max_wait`.
    /// `max_hold` counts from the end of the wait.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read); [`LockError::Upgrade`] within a scope that reads.
    pub async fn write(&self, options: &LockOptions) -> Result<Option<WriteLease>, LockError> {
        let leases = self.0.take_all(options).await?;
        Ok(leases.map(|leases| WriteLease { key: self.0.key.clone(), leases: leases.into() }))
    }

    /// Runs the work as a reader, and releases the lease, however the work ends.
    ///
    /// # Errors
    ///
    /// The work's own error; or an error of the locks, in which case the work did not begin.
    pub async fn with_read<F, T, E>(
        &self,
        options: LockOptions,
        work: impl FnOnce(Lease) -> F,
    ) -> Result<T, WithLockError<E>>
    where
        F: IntoFuture<Output = Result<T, E>>,
    {
        with_lease(&self.0.key, self.0.take_one(&options), work).await
    }

    /// Runs the work as the writer, and releases the lease, however the work ends.
    ///
    /// # Errors
    ///
    /// The work's own error; or an error of the locks, in which case the work did not begin.
    pub async fn with_write<F, T, E>(
        &self,
        options: LockOptions,
        work: impl FnOnce(WriteLease) -> F,
    ) -> Result<T, WithLockError<E>>
    where
        F: IntoFuture<Output = Result<T, E>>,
    {
        LockScope::run(async {
            let asked = Instant::now();
            let Some(lease) = self.write(&options).await? else {
                let (key, waited) = (self.0.key.clone(), asked.elapsed());
                return Err(WithLockError::Busy { key, waited });
            };
            let _guards: Vec<_> = lease.leases.iter().cloned().map(ReleaseOnDrop::new).collect();
            let working = LockScope::run_work(async { work(lease).into_future().await });
            working.await.map_err(WithLockError::Work)
        })
        .await
    }
}

impl<P: ?Sized> fmt::Debug for ReadWriteLock<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, readers) = (self.0.key.id(), self.0.count);
        f.debug_struct("ReadWriteLock").field("key", &key).field("readers", &readers).finish()
    }
}

/// The right to write under a [`ReadWriteLock`], until it is released, lost or expired. It consists
/// of one lease for each reader that there may be, and is held while all of them are. Clones are the
/// same lease. Dropping the last clone releases it without waiting.
///
/// A commit that is fenced by it (`executor.execute(..).fenced_by(&lease)`) is fenced by each of its
/// leases.
#[must_use = "a lease that is dropped is released at once: keep it for as long as the key has to be held"]
#[derive(Clone)]
pub struct WriteLease {
    key: LockKey,
    /// At least one.
    leases: Arc<[Lease]>,
}

impl WriteLease {
    /// The key.
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Whether the lease is held, as far as this process knows. Only the fence in a commit knows for
    /// certain.
    pub fn is_held(&self) -> bool {
        self.leases.iter().all(Lease::is_held)
    }

    /// The longest time that the lease can still last.
    pub fn remaining(&self) -> Duration {
        self.leases.iter().map(Lease::remaining).min().unwrap_or_default()
    }

    /// Resolves with the cause when the lease is lost. Never resolves if it is released.
    pub async fn lost(&self) -> LossCause {
        let mut lost: FuturesUnordered<_> = self.leases.iter().map(Lease::lost).collect();
        match lost.next().await {
            Some(cause) => cause,
            None => std::future::pending().await,
        }
    }

    /// Returns an error if the lease is lost. Use it between the steps of long work.
    pub fn check(&self) -> Result<(), LockError> {
        self.leases.iter().try_for_each(Lease::check)
    }

    /// Makes the lease last longer than `max_hold`.
    ///
    /// # Errors
    ///
    /// As for [`Lease::extend`]. The lease may then end when it would have ended before.
    pub async fn extend(&self, by: Duration) -> Result<(), LockError> {
        try_join_all(self.leases.iter().map(|lease| lease.extend(by))).await.map(drop)
    }

    /// Releases the lease and waits until those that come next can have the key.
    ///
    /// Returns `false` if the lease was no longer held, or if that is not known.
    pub async fn release(&self) -> bool {
        join_all(self.leases.iter().map(Lease::release)).await.into_iter().all(|held| held)
    }
}

impl AsFence for WriteLease {
    fn as_fence(&self) -> Fence {
        self.leases[0].as_fence()
    }

    fn remaining_later(&self) -> Option<Arc<dyn Fn() -> Duration + Send + Sync>> {
        self.leases[0].remaining_later()
    }

    fn others(&self) -> Vec<&dyn AsFence> {
        self.leases[1..].iter().map(|lease| lease as &dyn AsFence).collect()
    }
}

impl fmt::Debug for WriteLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteLease")
            .field("key", &self.key.id())
            .field("held", &self.is_held())
            .finish_non_exhaustive()
    }
}
