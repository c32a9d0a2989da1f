//! The time at which a call must have ended, retries and waits included.

use std::time::Duration;

use tokio::time::Instant;

use super::ExecuteError;

/// The deadline of a call, if it has one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Option<(Instant, Duration)>);

/// Error returned when a future did not complete before the deadline.
#[derive(Debug)]
pub(super) struct DeadlinePassed(pub(super) Duration);

impl Deadline {
    pub(super) fn new(after: Option<Duration>) -> Self {
        Self(after.map(|after| (Instant::now() + after, after)))
    }

    /// Waits for a future, at most until the deadline.
    pub(super) async fn bound<T>(
        self,
        future: impl Future<Output = T>,
    ) -> Result<T, DeadlinePassed> {
        match self.0 {
            None => Ok(future.await),
            Some((at, after)) => {
                tokio::time::timeout_at(at, future).await.map_err(|_| DeadlinePassed(after))
            }
        }
    }
}

impl<E> From<DeadlinePassed> for ExecuteError<E> {
    fn from(DeadlinePassed(after): DeadlinePassed) -> Self {
        ExecuteError::Deadline { after }
    }
}
