//! Work that the leader among several processes does: one process works, the others stand by.
//!
//! Invariants: the work of a process that is no longer the leader is dropped before the process
//! asks to lead again. A process asks at most once a [`PAUSE`], however soon it loses the lead, and one
//! that waited or led for longer asks at once.

use std::future::IntoFuture;
use std::time::Duration;

use tokio::time::Instant;

use crate::with_lock::{ReleaseOnDrop, release_within_limit};
use crate::{KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockScope, WithLockError};

/// Time between two requests to lead, at least.
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
        let asked = Instant::now();
        let led = LockScope::run(async {
            let lease = match provider.take(key, &options).await {
                Ok(Some(lease)) => lease,
                // Nobody waits for so long.
                Ok(None) => return Ok(None),
                Err(error @ (LockError::Unavailable { .. } | LockError::InDoubt { .. })) => {
                    tracing::warn!(%error, %key, "the lock server is not available; this process asks to lead again");
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
                    release_within_limit(&lease).await;
                    worked.map(Some).map_err(WithLockError::Work)
                }
            }
        });
        if let Some(done) = led.await? {
            return Ok(done);
        }
        tokio::time::sleep_until(asked + PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LockProvider, ProcessBackend};

    /// Leads so many times, each time until the lease is ended by force after this time. Returns how long
    /// that took.
    async fn led(times: usize, each: Duration) -> Duration {
        let locks = LockProvider::new(ProcessBackend::new(), "test");
        let (key, begun, mut leads) = (LockKey::named("k"), Instant::now(), 0);
        let work = |_: Lease| {
            leads += 1;
            let (is_last, locks, key) = (leads == times, locks.clone(), key.clone());
            async move {
                if is_last {
                    return Ok::<_, ()>(());
                }
                tokio::time::sleep(each).await;
                assert!(locks.force_release(&key, "a test").await.unwrap());
                std::future::pending().await
            }
        };
        lead(&locks, &key, PAUSE * 30, work).await.unwrap();
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_loses_at_once_asks_once_a_pause() {
        let took = led(11, Duration::ZERO).await;
        assert!(took >= PAUSE * 10 && took < PAUSE * 15, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_has_led_for_long_asks_at_once() {
        let (times, each) = (11, PAUSE * 10);
        let took = led(times, each).await;
        assert!(took < each * 10 + PAUSE * 5, "{took:?}");
    }
}
