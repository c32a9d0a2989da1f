//! Semaphores: a key that a limited number of holders have at the same time.

use std::fmt;
use std::future::IntoFuture;

use crate::slots::{MOST, Slots};
use crate::with_lock::with_lease;
use crate::{KeyedLockProvider, Lease, LockError, LockKey, LockOptions, WithLockError};

/// A key with a number of permits. As many holders have it at the same time, in all processes
/// together. Returned by [`LockSource::semaphore`](crate::LockSource::semaphore).
///
/// A permit is a [`Lease`] like that of a lock: it ends after `max_hold`, can be extended and lost,
/// is released when it is dropped, and fences a commit. Its key says which permit it is:
/// `gateway#0`, `gateway#1` and so on. Its token grows with each grant of this permit.
///
/// Callers that have to wait are served in the order in which they came, over processes as far as
/// the backend serves them in order. A caller that does not wait (a `max_wait` of zero) gets `None`
/// if each permit was taken when it looked, or if others wait.
///
/// Calls within the work re-enter the permit of their scope. Only calls that run side by side in one
/// scope, and begin before it has a permit, can get one each.
///
/// Name the same number of permits everywhere. If callers name different numbers, each uses as many
/// of the first permits as it names, so that never more permits are out than the greatest number.
///
/// A permit that is free costs two round trips: one looks for callers that wait, one takes it. If
/// most permits are taken, a few more round trips find the free one. A caller that waits asks for
/// every permit.
pub struct Semaphore<'l, P: ?Sized>(Slots<'l, P>);

impl<'l, P: KeyedLockProvider + ?Sized> Semaphore<'l, P> {
    /// The greatest number of permits.
    pub const MOST_PERMITS: usize = MOST;

    pub(crate) fn new(locks: &'l P, key: &LockKey, permits: usize) -> Self {
        Self(Slots { locks, key: key.clone(), count: permits, what: "permits" })
    }

    /// Takes a permit. Returns `None` if none was free within `max_wait`.
    ///
    /// # Errors
    ///
    /// An error of the locks; [`LockError::Count`] if the number of permits is zero or greater than
    /// [`MOST_PERMITS`](Self::MOST_PERMITS).
    pub async fn take(&self, options: &LockOptions) -> Result<Option<Lease>, LockError> {
        self.0.take_one(options).await
    }

    /// Takes a permit, runs the work and releases the permit, however the work ends.
    ///
    /// # Errors
    ///
    /// The work's own error; or an error of the locks, in which case the work did not begin.
    pub async fn with_permit<F, T, E>(
        &self,
        options: LockOptions,
        work: impl FnOnce(Lease) -> F,
    ) -> Result<T, WithLockError<E>>
    where
        F: IntoFuture<Output = Result<T, E>>,
    {
        with_lease(&self.0.key, self.0.take_one(&options), work).await
    }
}

impl<P: ?Sized> fmt::Debug for Semaphore<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, permits) = (self.0.key.id(), self.0.count);
        f.debug_struct("Semaphore").field("key", &key).field("permits", &permits).finish()
    }
}
