//! Work under a lock.
//!
//! What always holds: however the work ends, its lease is over at once, also for whoever kept
//! a clone of it; that the server hears of it is left to the desk, and the caller does not wait.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, IntoFuture};

use ekbatan_core::action::{Action, ExecuteError, Execution};
use tokio::time::Instant;

use crate::{
    KeyedLockProvider, Lease, LockKey, LockOptions, LockProvider, LockScope, WithLockError,
};

/// Takes the lock, runs the work, and gives the lock back, also when the work fails, panics
/// or is dropped. Within the work, the same lock is entered again at once.
///
/// The answer does not wait until the server has the lock back: the next of this process can
/// have it at once, another process a trip later. [`LockProvider::close`] waits for that. A
/// process that ends without it leaves the lock to its term, as one that dies does.
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
        let held = Held(lease);
        work(held.0.clone()).into_future().await.map_err(WithLockError::Work)
    })
    .await
}

/// Takes the locks on all of the keys or on none, runs the work, and gives them back, also when
/// the work fails, panics or is dropped. Within the work, each of them is entered again at once.
///
/// The work is given a lease for each key, in the order of `keys`; a key that is named twice is
/// locked once. Locks are taken in the order of [`LockKey`], whatever the order of `keys`, so
/// that two who name the same ones never wait for each other in a circle. Those that a scope
/// holds already are outside of this order: name all that is needed at once.
///
/// `max_wait` is for all of the waits together. `max_hold` counts, for each key, from when that
/// one was granted: the work begins only if all of the leases still stand.
///
/// [`LockProvider::with_locks`] is the same for a provider whose type is known.
pub async fn with_locks<P, F, T, E>(
    provider: &P,
    keys: &[LockKey],
    options: LockOptions,
    work: impl FnOnce(Vec<Lease>) -> F,
) -> Result<T, WithLockError<E>>
where
    P: KeyedLockProvider + ?Sized,
    F: IntoFuture<Output = Result<T, E>>,
{
    LockScope::run(async {
        let held = take_all(provider, keys, &options).await?;
        let leases = keys.iter().filter_map(|key| held.get(key)).map(|held| held.0.clone());
        work(leases.collect()).into_future().await.map_err(WithLockError::Work)
    })
    .await
}

/// A lease for each key, or none at all.
async fn take_all<'k, P, E>(
    provider: &P,
    keys: &'k [LockKey],
    options: &LockOptions,
) -> Result<BTreeMap<&'k LockKey, Held>, WithLockError<E>>
where
    P: KeyedLockProvider + ?Sized,
{
    let asked = Instant::now();
    let sorted: BTreeSet<&LockKey> = keys.iter().collect();
    let mut taken = BTreeMap::new();
    for key in sorted {
        let left = options.max_wait.saturating_sub(asked.elapsed());
        // No wait at all would be a try, which is not what was asked for.
        let answer = match left.is_zero() && !options.max_wait.is_zero() {
            true => Ok(None),
            false => provider.take(key, &LockOptions { max_wait: left, ..*options }).await,
        };
        let Some(lease) = answer? else {
            return Err(WithLockError::Busy { key: key.clone(), waited: asked.elapsed() });
        };
        taken.insert(key, Held(lease));
    }
    taken.values().try_for_each(|held| held.0.check())?;
    Ok(taken)
}

/// Ends the lease when it is dropped, however many clones of it there are.
struct Held(Lease);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.give_back();
    }
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

    /// Takes the locks on all of the keys or on none, runs the work, and gives them back; see
    /// [`with_locks`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ekbatan_lock::*;
    /// # async fn run(locks: &LockProvider) -> Result<(), WithLockError<std::io::Error>> {
    /// let keys = [lock_key!("wallet", 17), lock_key!("wallet", 4)];
    /// let options = LockOptions::wait(Duration::from_secs(2)).hold(Duration::from_secs(10));
    /// locks
    ///     .with_locks(&keys, options, async |leases: Vec<Lease>| {
    ///         assert_eq!(leases[0].key().id(), "wallet:17");
    ///         Ok(())
    ///     })
    ///     .await
    /// # }
    /// ```
    pub async fn with_locks<F, T, E>(
        &self,
        keys: &[LockKey],
        options: LockOptions,
        work: impl FnOnce(Vec<Lease>) -> F,
    ) -> Result<T, WithLockError<E>>
    where
        F: IntoFuture<Output = Result<T, E>>,
    {
        with_locks(self, keys, options, work).await
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

    /// Runs the call under the locks on all of the keys, as [`with_locks`] takes them. The
    /// commit is fenced by every one of the leases.
    fn with_locks<P: KeyedLockProvider + ?Sized>(
        self,
        locks: &P,
        keys: &[LockKey],
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

    async fn with_locks<P: KeyedLockProvider + ?Sized>(
        self,
        locks: &P,
        keys: &[LockKey],
        options: LockOptions,
    ) -> Result<A::Output, WithLockError<ExecuteError<A::Error>>> {
        let fenced =
            |leases: Vec<Lease>| leases.iter().fold(self, |call, lease| call.fenced_by(lease));
        with_locks(locks, keys, options, fenced).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ProcessBackend;

    #[tokio::test(start_paused = true)]
    async fn several_keys_are_waited_for_no_longer_than_one() {
        let locks = LockProvider::new(ProcessBackend::new(), "test");
        let keys = ["a", "b"].map(LockKey::named);
        let (half, wait) = (Duration::from_secs(5), Duration::from_secs(10));
        let _first = locks.acquire(&keys[0], half).await.unwrap();
        let _second = locks.acquire(&keys[1], wait * 10).await.unwrap();
        let work = async |_| -> Result<(), ()> { unreachable!("the second is held") };
        let busy = locks.with_locks(&keys, LockOptions::wait(wait), work).await;
        match busy.unwrap_err() {
            WithLockError::Busy { key, waited } => {
                assert_eq!(key, keys[1]);
                assert!(waited >= wait && waited < wait + half, "{waited:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}
