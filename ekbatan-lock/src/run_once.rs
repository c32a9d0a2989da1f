//! Work that runs on one node only, such as a job that every node's clock starts at the same
//! hour: the first node runs it, the others skip it.
//!
//! Invariants: once the work has begun, the key stays taken for `at_least`, however the work
//! ends. The work does not outlive its lease. With a fire that is named, it is the fire that stays
//! taken, and the work outlives neither its lease nor that of the fire. The caller gets the answer of the
//! work also if the server is away by then, after a minute at most.

use std::future::IntoFuture;
use std::time::Duration;

use crate::slots::part_of;
use crate::with_lock::release_within_limit;
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
    /// The lease on the key, or on the fire, ended before the work did. The work was dropped, or did not
    /// begin.
    #[error("the work under `{key}` was stopped: {cause}")]
    Stopped {
        /// The key whose lease ended.
        key: LockKey,
        /// How it ended.
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
    run(provider, key, None, at_least, at_most, work).await
}

/// Runs the work if the key is free. The fire stays taken for `at_least`, or the key if no fire is named.
async fn run<P, F, T, E>(
    provider: &P,
    key: &LockKey,
    fire: Option<&Lease>,
    at_least: Duration,
    at_most: Duration,
    work: impl FnOnce(Lease) -> F,
) -> Result<RunOnce<T>, RunOnceError<E>>
where
    P: KeyedLockProvider + ?Sized,
    F: IntoFuture<Output = Result<T, E>>,
{
    let kept_for = if fire.is_some() { Duration::ZERO } else { at_least };
    let term = kept_for.max(TERM).min(at_most);
    let options = LockOptions::wait(Duration::ZERO).hold(at_most).renewed(term);
    LockScope::run(async {
        let Some(lease) = provider.take(key, &options).await? else {
            tracing::debug!(%key, "work skipped: another holder has the key");
            return Ok(RunOnce::Skipped);
        };
        let kept = fire.unwrap_or(&lease);
        let lost = async {
            tokio::select! {
                biased;
                cause = lease.lost() => (key.clone(), cause),
                // Without it, nothing keeps another node from the same fire.
                cause = kept.lost() => (kept.key().clone(), cause),
            }
        };
        let working = LockScope::run_work(async {
            kept.keep(at_least);
            work(lease.clone()).into_future().await
        });
        let answer = tokio::select! {
            biased;
            // First, so that work does not go on after a standstill.
            (key, cause) = lost => Err(RunOnceError::Stopped { key, cause }),
            worked = working => worked.map(RunOnce::Done).map_err(RunOnceError::Work),
        };
        release_within_limit(&lease).await;
        answer
    })
    .await
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
        let ran = run(provider, key, Some(&of_fire), at_least, at_most, work).await;
        release_within_limit(&of_fire).await;
        ran
    })
    .await
}
