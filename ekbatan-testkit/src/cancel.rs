//! Dropping a future at a chosen poll, to test what cancellation leaves behind.
//!
//! A future may be dropped at every point where it waits: a timeout fires, a
//! `select!` takes another branch, a client hangs up. What always holds: the
//! future is polled exactly as often as asked unless it finishes first, and it
//! is dropped before the answer is given.

use std::future::{Future, poll_fn};
use std::task::Poll;

/// What became of a future given to [`drop_at_poll`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "says whether the future was dropped or finished first"]
pub enum Dropped<T> {
    /// The future finished before it could be dropped.
    Finished(T),
    /// The future was still waiting after this many polls, and was dropped.
    Dropped {
        /// How often the future was polled.
        polls: usize,
    },
}

impl<T> Dropped<T> {
    /// The future's output, if it finished.
    pub fn finished(self) -> Option<T> {
        match self {
            Self::Finished(output) => Some(output),
            Self::Dropped { .. } => None,
        }
    }
}

/// Polls `future` at most `polls` times, then drops it.
///
/// Each poll happens when the future has asked for it, as an executor would do.
/// With `polls` at zero the future is dropped without having run at all. Counting
/// up until the future finishes visits every point where it can be cancelled:
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
///         // Here a test looks at what the dropped future left behind.
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
        // After its last poll nobody needs to wait for the future any longer.
        if taken == polls { Poll::Ready(None) } else { Poll::Pending }
    })
    .await;
    drop(future);
    match finished {
        Some(output) => Dropped::Finished(output),
        None => Dropped::Dropped { polls: taken },
    }
}
