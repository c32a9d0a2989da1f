//! Work that one node at a time should run, such as what every node's clock asks for at the
//! same hour: the first to come runs it, the others skip it.
//!
//! What always holds: once the work has begun the key stays taken for `at_least`, whatever
//! becomes of the work, and the work is over when the lease is.

use std::future::IntoFuture;
use std::time::Duration;

use crate::{
    KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockProvider, LockScope, LossCause,
};

/// By how long a term a key is held at the server at least, renewed while the work runs: what
/// a node that died keeps the others waiting for.
const TERM: Duration = Duration::from_secs(30);

/// What became of work that one node at a time runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "it says whether the work ran"]
pub enum RunOnce<T> {
    /// It ran here.
    Done(T),
    /// Somebody runs it, or did so a moment ago.
    Skipped,
}

/// Why work that one node at a time runs has no output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunOnceError<E> {
    /// The work's own error, untouched.
    #[error(transparent)]
    Work(E),
    /// The lease ended before the work did, which was dropped then.
    #[error("the work under `{key}` was stopped: {cause}")]
    Stopped {
        /// The key.
        key: LockKey,
        /// How the lease ended.
        cause: LossCause,
    },
    /// Times between which no work can end.
    #[error(
        "`{key}`: at_least is {at_least:?} and at_most {at_most:?}; at_most must be longer than \
         zero, and no shorter than at_least"
    )]
    Times {
        /// The key.
        key: LockKey,
        /// For how long the key was to be kept.
        at_least: Duration,
        /// How long the work was to take.
        at_most: Duration,
    },
    /// The lock failed; the work did not begin.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Runs the work if nobody holds the key, and skips it otherwise, without waiting.
///
/// The key stays taken for `at_least` from when it was granted, also when the work ends sooner,
/// fails, panics or is dropped: a node whose clock is late finds it taken, and does not run the
/// same work again. The server counts that time; no node's clock takes part, and no task and no
/// connection is held for it. Where a server knows of no terms, as with the session locks of
/// PostgreSQL, this process holds the key for so long, and its end frees it.
///
/// After `at_most`, or when the lease is lost otherwise, the work is dropped at its next await,
/// and the answer is [`RunOnceError::Stopped`]. What it has spawned goes on: that has to
/// look at [`Lease::lost`]. A commit that has begun goes on, too, unless it is fenced by the
/// lease, when it is refused.
///
/// While the work runs the key is held by a term of half a minute or `at_least`, if that is
/// longer, which is renewed: so long after its death a node keeps the key at most.
///
/// In a scope that holds the key already the work runs under the lease that is there.
///
/// [`LockProvider::run_once`] is the same for a provider whose type is known.
pub async fn run_once<P, F, T, E>(
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
            tracing::debug!(%key, "skipped, as somebody else runs it");
            return Ok(RunOnce::Skipped);
        };
        lease.keep(at_least);
        let answer = tokio::select! {
            biased;
            worked = work(lease.clone()).into_future() => {
                worked.map(RunOnce::Done).map_err(RunOnceError::Work)
            }
            cause = lease.lost() => Err(RunOnceError::Stopped { key: key.clone(), cause }),
        };
        lease.release().await;
        answer
    })
    .await
}

impl LockProvider {
    /// Runs the work if nobody holds the key, and skips it otherwise; the key stays taken for
    /// `at_least`, and the work is stopped after `at_most`. See [`run_once`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ekbatan_lock::*;
    /// # async fn send_reports() -> std::io::Result<u32> { Ok(3) }
    /// # async fn run(locks: &LockProvider) -> Result<(), RunOnceError<std::io::Error>> {
    /// let (at_least, at_most) = (Duration::from_secs(60), Duration::from_secs(600));
    /// let key = lock_key!("nightly-report");
    /// match locks.run_once(&key, at_least, at_most, async |_| send_reports().await).await? {
    ///     RunOnce::Done(sent) => println!("{sent} reports sent"),
    ///     RunOnce::Skipped => println!("another node sends them"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn run_once<F, T, E>(
        &self,
        key: &LockKey,
        at_least: Duration,
        at_most: Duration,
        work: impl FnOnce(Lease) -> F,
    ) -> Result<RunOnce<T>, RunOnceError<E>>
    where
        F: IntoFuture<Output = Result<T, E>>,
    {
        run_once(self, key, at_least, at_most, work).await
    }
}
