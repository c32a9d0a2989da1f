//! The time at which a call must have ended, retries and waits included.

use std::time::Duration;

use tokio::time::Instant;

use super::ExecuteError;

/// The deadline of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    /// `None` if it never passes.
    at: Option<Instant>,
    after: Duration,
}

/// Error returned when a future did not complete before the deadline.
#[derive(Debug)]
pub(super) struct DeadlinePassed(Duration);

impl DeadlinePassed {
    /// Why it is unknown whether a commit succeeded.
    pub(super) fn during_commit(&self) -> String {
        format!("the deadline of {:?} passed while the commit was on its way", self.0)
    }
}

impl Deadline {
    /// A deadline that the clock cannot represent, such as `Duration::MAX`, never passes.
    pub(super) fn new(after: Duration) -> Self {
        Self { at: Instant::now().checked_add(after), after }
    }

    /// Fails if the deadline has passed.
    pub(super) fn check(self) -> Result<(), DeadlinePassed> {
        match self.at {
            Some(at) if at <= Instant::now() => Err(DeadlinePassed(self.after)),
            _ => Ok(()),
        }
    }

    /// Waits for a future, at most until the deadline. If that has passed, the future does not
    /// run at all.
    pub(super) async fn bound<T>(
        self,
        future: impl Future<Output = T>,
    ) -> Result<T, DeadlinePassed> {
        self.check()?;
        self.bound_begun(future).await
    }

    /// Waits for a future, at most until the deadline. The future runs until it has to wait, also
    /// after the deadline, so what it does at first has been done in any case.
    pub(super) async fn bound_begun<T>(
        self,
        future: impl Future<Output = T>,
    ) -> Result<T, DeadlinePassed> {
        match self.at {
            None => Ok(future.await),
            Some(at) => {
                tokio::time::timeout_at(at, future).await.map_err(|_| DeadlinePassed(self.after))
            }
        }
    }
}

impl<E> From<DeadlinePassed> for ExecuteError<E> {
    fn from(DeadlinePassed(after): DeadlinePassed) -> Self {
        ExecuteError::Deadline { after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_deadline_beyond_the_clock_never_passes() {
        for after in [Duration::MAX, Duration::from_secs(u64::MAX / 2)] {
            let deadline = Deadline::new(after);
            deadline.check().unwrap();
            assert_eq!(deadline.bound(async { 1 }).await.unwrap(), 1);
        }
    }

    #[tokio::test]
    async fn what_has_begun_runs_until_it_waits() {
        let deadline = Deadline::new(Duration::ZERO);
        let mut ran = false;
        let waiting = async {
            ran = true;
            std::future::pending::<()>().await;
        };
        deadline.bound_begun(waiting).await.unwrap_err();
        assert!(ran);
    }

    #[tokio::test]
    async fn nothing_runs_after_the_deadline() {
        let deadline = Deadline::new(Duration::ZERO);
        let mut ran = false;
        deadline.bound(async { ran = true }).await.unwrap_err();
        assert!(!ran);
    }
}
