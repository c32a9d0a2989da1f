//! Calls of actions under locks.

use std::future::Future;

use ekbatan_core::action::{Action, ExecuteError, Execution};

use crate::with_lock::{with_lock, with_locks};
use crate::{KeyedLockProvider, Lease, LockKey, LockOptions, WithLockError};

/// Executes an action under locks. The locks are held from before the action reads until
/// after it has committed, and the commit is fenced by their leases.
///
/// This trait extends the call, [`LockSource`](crate::LockSource) extends the locks:
/// `executor.execute(..).with_lock(&locks, ..)` adds the fence that
/// `locks.with_lock(.., |lease| ..)` leaves to the caller. The call answers an `O`.
pub trait ExecuteLocked<A: Action, O = <A as Action>::Output>: Sized {
    /// Executes the call under the lock.
    ///
    /// # Errors
    ///
    /// The action's error; or an error of the lock, in which case the action did not begin.
    fn with_lock<P: KeyedLockProvider + ?Sized>(
        self,
        locks: &P,
        key: &LockKey,
        options: LockOptions,
    ) -> impl Future<Output = Result<O, WithLockError<ExecuteError<A::Error>>>> + Send;

    /// Executes the call under the locks on all keys; see
    /// [`LockSource::with_locks`](crate::LockSource::with_locks). Every lease fences the
    /// commit.
    ///
    /// # Errors
    ///
    /// The action's error; or an error of a lock, in which case the action did not begin.
    fn with_locks<P: KeyedLockProvider + ?Sized>(
        self,
        locks: &P,
        keys: &[LockKey],
        options: LockOptions,
    ) -> impl Future<Output = Result<O, WithLockError<ExecuteError<A::Error>>>> + Send;
}

impl<A: Action, O: Send> ExecuteLocked<A, O> for Execution<'_, A, O> {
    async fn with_lock<P: KeyedLockProvider + ?Sized>(
        self,
        locks: &P,
        key: &LockKey,
        options: LockOptions,
    ) -> Result<O, WithLockError<ExecuteError<A::Error>>> {
        with_lock(locks, key, options, |lease| self.fenced_by(&lease)).await
    }

    async fn with_locks<P: KeyedLockProvider + ?Sized>(
        self,
        locks: &P,
        keys: &[LockKey],
        options: LockOptions,
    ) -> Result<O, WithLockError<ExecuteError<A::Error>>> {
        let fenced =
            |leases: Vec<Lease>| leases.iter().fold(self, |call, lease| call.fenced_by(lease));
        with_locks(locks, keys, options, fenced).await
    }
}
