//! Work that runs on one node only, such as a job that every node's clock starts at the same
//! hour: the first node runs it, the others skip it.
//!
//! Invariants: once the work has begun, the key stays taken for `at_least`, however the work
//! ends. The work does not outlive its lease. With a fire that is named, it is the fire that stays
//! taken, and the work outlives neither its lease nor that of the fire. The caller gets its answer also
//! if the server is away by then.

use std::future::IntoFuture;
use std::time::Duration;

use crate::slots::part_of;
use crate::{
    KeyPart, KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockScope, LossCause,
};

/// Minimum term of a key at the server, renewed while the work runs. After a node dies, the
/// others wait this long.
const TERM: Duration = Duration::from_secs(30);

/// Result of [`LockSource::run_once`](crate::LockSource::run_once).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "it says whether the work ran"]
pub enum RunOnce<T> {
    /// The work ran here.
    Done(T),
    /// The key was taken: another caller runs the work, or ran it within `at_least`.
    Skipped,
}

/// Error of [`LockSource::run_once`](crate::LockSource::run_once).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunOnceError<E> {
    /// The work's own error, unchanged.
    #[error(transparent)]
    Work(E),
    /// The lease ended before the work did, and the work was dropped.
    #[error("the work under `{key}` was stopped: {cause}")]
    Stopped {
        /// The key.
        key: LockKey,
        /// How the lease ended.
        cause: LossCause,
    },
    /// `at_most` is zero or shorter than `at_least`.
    #[error(
        "`{key}`: at_least is {at_least:?} and at_most {at_most:?}; at_most must be longer than \
         zero, and no shorter than at_least"
    )]
    Times {
        /// The key.
        key: LockKey,
        /// Minimum time for which the key was to stay taken.
        at_least: Duration,
        /// Maximum time that the work was to take.
        at_most: Duration,
    },
    /// The lock failed. The work did not begin.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Behind [`LockSource::run_once`](crate::LockSource::run_once).
pub(crate) async fn run_once<P, F, T, E>(
    provider: &P,
    key: &LockKey,
    at_least: Duration,
    at_most: Duration,
    work: impl FnOnce(Lease) -> F,
) -> Result<RunOnce<T>, RunOnceError<E>>
where
    P: KeyedLockProvider + ?Sized,
    F: IntoFuture<Output = Result<T, E>>,
{
    if at_most.is_zero() || at_least > at_most {
        return Err(RunOnceError::Times { key: key.clone(), at_least, at_most });
    }
    let term = at_least.max(TERM).min(at_most);
    let options = LockOptions::wait(Duration::ZERO).hold(at_most).renewed(term);
    LockScope::run(async {
        let Some(lease) = provider.take(key, &options).await? else {
            tracing::debug!(%key, "work skipped: another holder has the key");
            return Ok(RunOnce::Skipped);
        };
        lease.keep(at_least);
        let answer = tokio::select! {
            biased;
            // First, so that work does not go on after a standstill.
            cause = lease.lost() => Err(RunOnceError::Stopped { key: key.clone(), cause }),
            worked = LockScope::run_work(async { work(lease.clone()).into_future().await }) => {
                worked.map(RunOnce::Done).map_err(RunOnceError::Work)
            }
        };
        release(&lease).await;
        answer
    })
    .await
}

/// Waits until the server has the key back, which may take as long as the term if the server is away. Then
/// the caller does not wait for it, and the key's worker goes on.
async fn release(lease: &Lease) {
    if tokio::time::timeout(TERM, lease.release()).await.is_err() {
        tracing::warn!(key = %lease.key(), "the lock server does not take a key back; the work is over");
    }
}

/// Behind [`LockSource::run_once_at`](crate::LockSource::run_once_at).
pub(crate) async fn run_once_at<P, F, T, E>(
    provider: &P,
    key: &LockKey,
    fire: impl KeyPart,
    at_least: Duration,
    at_most: Duration,
    work: impl FnOnce(Lease) -> F,
) -> Result<RunOnce<T>, RunOnceError<E>>
where
    P: KeyedLockProvider + ?Sized,
    F: IntoFuture<Output = Result<T, E>>,
{
    if at_most.is_zero() {
        let (key, what) = (key.clone(), "at_most");
        return Err(LockError::Duration { key, what, value: at_most }.into());
    }
    // Longer than the work: a lease that ends before it is released keeps nothing.
    let hold = at_least.saturating_add(at_most).saturating_add(TERM);
    let options = LockOptions::wait(Duration::ZERO).hold(hold).renewed(at_least.max(TERM));
    LockScope::run(async {
        // The fire first: a late node that took the key first would have the next fire skipped.
        let fire_key = part_of(key, format!("fire:{}", fire.text()));
        let Some(of_fire) = provider.take(&fire_key, &options).await? else {
            tracing::debug!(%key, fire = fire.text(), "work skipped: the fire was taken before");
            return Ok(RunOnce::Skipped);
        };
        let running = run_once(provider, key, Duration::ZERO, at_most, |lease| {
            of_fire.keep(at_least);
            work(lease)
        });
        let ran = tokio::select! {
            biased;
            // First: without it, nothing keeps another node from the same fire.
            cause = of_fire.lost() => Err(RunOnceError::Stopped { key: fire_key, cause }),
            ran = running => ran,
        };
        release(&of_fire).await;
        ran
    })
    .await
}
