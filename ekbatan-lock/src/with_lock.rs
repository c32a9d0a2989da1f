//! Work under one lock or several.
//!
//! Invariants: when the work ends, for whatever reason, its lease ends at once, clones
//! included. The key's worker releases the key at the server in the background; callers of
//! `with_lock` and `with_locks` do not wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::IntoFuture;
use std::time::Duration;

use tokio::time::Instant;

use crate::{KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockScope, WithLockError};

/// For how long at most a caller whose work is over waits for the server.
const LONGEST_RELEASE: Duration = Duration::from_secs(30);

/// Behind [`LockSource::with_lock`](crate::LockSource::with_lock).
pub(crate) async fn with_lock<P, F, T, E>(
    provider: &P,
    key: &LockKey,
    options: LockOptions,
    work: impl FnOnce(Lease) -> F,
) -> Result<T, WithLockError<E>>
where
    P: KeyedLockProvider + ?Sized,
    F: IntoFuture<Output = Result<T, E>>,
{
    with_lease(key, provider.take(key, &options), work).await
}

/// Runs the work under the lease that is taken. `None` means that the key was busy.
pub(crate) async fn with_lease<F, T, E>(
    key: &LockKey,
    taking: impl Future<Output = Result<Option<Lease>, LockError>>,
    work: impl FnOnce(Lease) -> F,
) -> Result<T, WithLockError<E>>
where
    F: IntoFuture<Output = Result<T, E>>,
{
    LockScope::run(async {
        let asked = Instant::now();
        let Some(lease) = taking.await? else {
            return Err(WithLockError::Busy { key: key.clone(), waited: asked.elapsed() });
        };
        let guard = ReleaseOnDrop::new(lease);
        let lease = guard.lease();
        // It may have ended on its way to this task.
        lease.check()?;
        let working = LockScope::run_work(async { work(lease).into_future().await });
        working.await.map_err(WithLockError::Work)
    })
    .await
}

/// Behind [`LockSource::with_locks`](crate::LockSource::with_locks).
pub(crate) async fn with_locks<P, F, T, E>(
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
        let guards = take_all(provider, keys, &options).await?;
        let leases = keys.iter().filter_map(|key| guards.get(key)).map(ReleaseOnDrop::lease);
        let leases = leases.collect();
        let working = LockScope::run_work(async { work(leases).into_future().await });
        working.await.map_err(WithLockError::Work)
    })
    .await
}

/// Takes every key or none.
async fn take_all<'k, P, E>(
    provider: &P,
    keys: &'k [LockKey],
    options: &LockOptions,
) -> Result<BTreeMap<&'k LockKey, ReleaseOnDrop>, WithLockError<E>>
where
    P: KeyedLockProvider + ?Sized,
{
    let asked = Instant::now();
    // In one order, so that two callers never wait for each other in a circle.
    let sorted: BTreeSet<(LockKey, &LockKey)> =
        keys.iter().map(|key| (provider.named(key), key)).collect();
    let mut guards = BTreeMap::new();
    for (_, key) in sorted {
        let left = options.max_wait.saturating_sub(asked.elapsed());
        // A `max_wait` of zero means "try once". A wait that is used up must not become a try.
        let answer = if left.is_zero() && !options.max_wait.is_zero() {
            Ok(None)
        } else {
            provider.take(key, &LockOptions { max_wait: left, ..*options }).await
        };
        let Some(lease) = answer? else {
            return Err(WithLockError::Busy { key: key.clone(), waited: asked.elapsed() });
        };
        guards.insert(key, ReleaseOnDrop::new(lease));
    }
    guards.values().try_for_each(|guard| guard.0.check())?;
    Ok(guards)
}

/// Ends the lease when dropped, even if clones of the lease remain.
pub(crate) struct ReleaseOnDrop(Lease);

impl ReleaseOnDrop {
    pub(crate) fn new(lease: Lease) -> Self {
        Self(lease)
    }

    pub(crate) fn lease(&self) -> Lease {
        self.0.clone()
    }
}

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// Releases a lease, and waits for at most [`LONGEST_RELEASE`] until the server has the key back. After
/// that the key's worker goes on alone.
pub(crate) async fn release_within_limit(lease: &Lease) {
    if tokio::time::timeout(LONGEST_RELEASE, lease.release()).await.is_err() {
        tracing::warn!(key = %lease.key(), "the lock server does not take a key back; the work is over");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LockProvider, LockSource, ProcessBackend};

    #[tokio::test(start_paused = true)]
    async fn work_does_not_begin_under_a_lease_that_is_over() {
        let locks = LockProvider::new(ProcessBackend::new(), "test");
        let (key, hold) = (LockKey::named("a"), Duration::from_secs(1));
        let taking = async {
            let lease = locks.acquire(&key, hold).await;
            tokio::time::sleep(hold * 2).await;
            lease.map(Some)
        };
        let work = async |_| -> Result<(), ()> { unreachable!("the lease is over") };
        let lost = with_lease(&key, taking, work).await.unwrap_err();
        assert!(matches!(lost, WithLockError::Lock(LockError::Lost { .. })), "{lost:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn max_wait_bounds_the_wait_for_all_keys_together() {
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
