//! Dropping a future at a chosen poll, to test cancellation.
//!
//! A future may be dropped at every point where it waits: a timeout fires, a `select!`
//! takes another branch, a client disconnects.
//!
//! Invariants: the future is polled exactly as often as requested, unless it finishes
//! first. It is dropped before the outcome is returned.

use std::future::{Future, poll_fn};
use std::task::Poll;

/// The outcome of [`drop_at_poll`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the outcome says whether the future finished first"]
pub enum Dropped<T> {
    /// The future finished before the last poll.
    Finished(T),
    /// The future was still pending after this many polls, and was dropped.
    Dropped {
        /// How often the future was polled.
        polls: usize,
    },
}

impl<T> Dropped<T> {
    /// The output of the future, if it finished.
    pub fn finished(self) -> Option<T> {
        match self {
            Self::Finished(output) => Some(output),
            Self::Dropped { .. } => None,
        }
    }
}

/// Polls `future` at most `polls` times, then drops it.
///
/// Each poll happens after the future's waker was called, as in an executor. With `polls
/// == 0` the future is dropped without a poll. Counting up until the future finishes
/// visits every point where it can be cancelled:
///
/// ```
/// use ekbatan_testkit::cancel::{Dropped, drop_at_poll};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// async fn two_waits() -> &'static str {
///     tokio::task::yield_now().await;
///     tokio::task::yield_now().await;
///     "done"
/// }
///
/// let mut cancelled = 0;
/// for polls in 0.. {
///     match drop_at_poll(polls, two_waits()).await {
///         Dropped::Finished(output) => {
///             assert_eq!(output, "done");
///             break;
///         }
///         // A test checks here what the dropped future left behind.
///         Dropped::Dropped { .. } => cancelled += 1,
///     }
/// }
/// assert_eq!(cancelled, 3);
/// # }
/// ```
pub async fn drop_at_poll<F: Future>(polls: usize, future: F) -> Dropped<F::Output> {
    let mut future = Box::pin(future);
    let mut taken = 0;
    let finished = poll_fn(|context| {
        if taken < polls {
            taken += 1;
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
        }
        // After the last poll the future is not waited for.
        if taken == polls { Poll::Ready(None) } else { Poll::Pending }
    })
    .await;
    drop(future);
    match finished {
        Some(output) => Dropped::Finished(output),
        None => Dropped::Dropped { polls: taken },
    }
}
