//! Work that the leader among several processes does: one process works, the others stand by.
//!
//! Invariant: the work of a process that is no longer the leader is dropped before the process
//! asks to lead again.

use std::future::IntoFuture;
use std::time::Duration;

use crate::with_lock::ReleaseOnDrop;
use crate::{KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockScope, WithLockError};

/// Pause before a process asks to lead again, after a request without a certain answer.
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
        let led = LockScope::run(async {
            let lease = match provider.take(key, &options).await {
                Ok(Some(lease)) => lease,
                // Nobody waits for so long.
                Ok(None) => return Ok(None),
                Err(error @ (LockError::Unavailable { .. } | LockError::InDoubt { .. })) => {
                    tracing::warn!(%error, %key, "the lock server is not available; this process asks to lead again");
                    tokio::time::sleep(PAUSE).await;
                    return Ok(None);
                }
                Err(error) => return Err(WithLockError::Lock(error)),
            };
            let guard = ReleaseOnDrop::new(lease);
            let lease = guard.lease();
            tokio::select! {
                biased;
                // First, so that work does not go on after a standstill.
                cause = lease.lost() => {
                    tracing::warn!(%cause, %key, "no longer the leader");
                    Ok(None)
                }
                worked = LockScope::run_work(async { work(lease.clone()).into_future().await }) => {
                    lease.release().await;
                    worked.map(Some).map_err(WithLockError::Work)
                }
            }
        });
        if let Some(done) = led.await? {
            return Ok(done);
        }
    }
}
