//! Work under a lock.

use std::future::{Future, IntoFuture};

use ekbatan_core::action::{Action, ExecuteError, Execution};
use tokio::time::Instant;

use crate::{
    KeyedLockProvider, Lease, LockKey, LockOptions, LockProvider, LockScope, WithLockError,
};

/// Takes the lock, runs the work, and gives the lock back, also when the work fails, panics
/// or is dropped. Within the work, the same lock is entered again at once.
///
/// [`LockProvider::with_lock`] is the same for a provider whose type is known.
pub async fn with_lock<P, F, T, E>(
    provider: &P,
    key: &LockKey,
    options: LockOptions,
    work: impl FnOnce(Lease) -> F,
) -> Result<T, WithLockError<E>>
where
    P: KeyedLockProvider + ?Sized,
    F: IntoFuture<Output = Result<T, E>>,
{
    LockScope::run(async {
        let asked = Instant::now();
        let Some(lease) = provider.take(key, &options).await? else {
            return Err(WithLockError::Busy { key: key.clone(), waited: asked.elapsed() });
        };
        let worked = work(lease.clone()).into_future().await.map_err(WithLockError::Work);
        lease.release().await;
        worked
    })
    .await
}

impl LockProvider {
    /// Takes the lock, runs the work, and gives the lock back, also when the work fails,
    /// panics or is dropped. Within the work, the same lock is entered again at once.
    ///
    /// An action is fenced by the lease that it is given, so that it cannot commit once the
    /// lease is over:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ekbatan_core::action::{Action, ActionExecutor, ExecuteError};
    /// # use ekbatan_lock::*;
    /// # async fn run<A: Action>(locks: &LockProvider, executor: &ActionExecutor, action: A, params: A::Params) -> Result<(), WithLockError<ExecuteError<A::Error>>> {
    /// let options = LockOptions::wait(Duration::from_secs(2)).hold(Duration::from_secs(10));
    /// let output = locks
    ///     .with_lock(&lock_key!("wallet", 17), options, |lease| {
    ///         executor.execute(&action, params).fenced_by(&lease)
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub async fn with_lock<F, T, E>(
        &self,
        key: &LockKey,
        options: LockOptions,
        work: impl FnOnce(Lease) -> F,
    ) -> Result<T, WithLockError<E>>
    where
        F: IntoFuture<Output = Result<T, E>>,
    {
        with_lock(self, key, options, work).await
    }
}

/// A call of an action under a lock that is held from before it reads until after it has
/// committed, and by which its commit is fenced.
pub trait ExecuteLocked<A: Action>: Sized {
    /// Runs the call under the lock.
    fn with_lock<P: KeyedLockProvider + ?Sized>(
        self,
        locks: &P,
        key: &LockKey,
        options: LockOptions,
    ) -> impl Future<Output = Result<A::Output, WithLockError<ExecuteError<A::Error>>>> + Send;
}

impl<A: Action> ExecuteLocked<A> for Execution<'_, A> {
    async fn with_lock<P: KeyedLockProvider + ?Sized>(
        self,
        locks: &P,
        key: &LockKey,
        options: LockOptions,
    ) -> Result<A::Output, WithLockError<ExecuteError<A::Error>>> {
        with_lock(locks, key, options, |lease| self.fenced_by(&lease)).await
    }
}
