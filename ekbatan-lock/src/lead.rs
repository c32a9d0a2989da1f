//! Work that the leader among several processes does: one process works, the others stand by.
//!
//! Invariant: the work of a process that is no longer the leader is dropped before the process
//! stands for leader again.

use std::future::IntoFuture;
use std::time::Duration;

use crate::with_lock::ReleaseOnDrop;
use crate::{KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockScope, WithLockError};

/// Pause before a process stands for leader again, after its request had no certain answer.
const PAUSE: Duration = Duration::from_secs(1);

/// Behind [`LockSource::lead`](crate::LockSource::lead).
pub(crate) async fn lead<P, F, T, E>(
    provider: &P,
    key: &LockKey,
    term: Duration,
    mut work: impl FnMut(Lease) -> F,
) -> Result<T, WithLockError<E>>
where
    P: KeyedLockProvider + ?Sized,
    F: IntoFuture<Output = Result<T, E>>,
{
    let options = LockOptions::wait(Duration::MAX).hold(Duration::MAX).renewed(term);
    loop {
        let worked = LockScope::run(async {
            let lease = match provider.take(key, &options).await {
                Ok(Some(lease)) => lease,
                // Nobody waits for so long.
                Ok(None) => return Ok(None),
                Err(error @ (LockError::Unavailable { .. } | LockError::InDoubt { .. })) => {
                    tracing::warn!(%error, %key, "standing for leader again");
                    tokio::time::sleep(PAUSE).await;
                    return Ok(None);
                }
                Err(error) => return Err(WithLockError::Lock(error)),
            };
            let guard = ReleaseOnDrop::new(lease);
            let lease = guard.lease();
            tokio::select! {
                biased;
                worked = LockScope::run_work(async { work(lease.clone()).into_future().await }) => {
                    worked.map(Some).map_err(WithLockError::Work)
                }
                cause = lease.lost() => {
                    tracing::warn!(%cause, %key, "no longer the leader");
                    Ok(None)
                }
            }
        });
        if let Some(done) = worked.await? {
            return Ok(done);
        }
    }
}
