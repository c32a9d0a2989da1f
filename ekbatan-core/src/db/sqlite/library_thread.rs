//! A thread for work of the library that may take long.
//!
//! Invariant: work that was handed over is done, also if its caller is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use tokio::sync::oneshot;

use crate::db::{DbError, DbErrorKind};

type Job = Box<dyn FnOnce() + Send>;

/// Ends after its last work when it is dropped.
pub(super) struct LibraryThread(mpsc::Sender<Job>);

impl LibraryThread {
    pub(super) fn start() -> Result<Self, DbError> {
        let (sender, jobs) = mpsc::channel::<Job>();
        let work = move || {
            for job in jobs {
                // The caller finds that its answer is missing.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        };
        match thread::Builder::new().name("ekbatan-sqlite".to_owned()).spawn(work) {
            Ok(_) => Ok(Self(sender)),
            Err(error) => Err(DbError::new(
                DbErrorKind::Unavailable,
                format!("a thread for SQLite could not be started: {error}"),
            )
            .with_source(error)),
        }
    }

    /// Runs `work` on the thread and waits for its answer.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, DbError> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move || {
            let _ = answer.send(work()); // fails if the caller has gone
        });
        let died = |_| DbError::new(DbErrorKind::Unavailable, "the thread of SQLite died");
        self.0.send(job).map_err(|_| died(()))?;
        answered.await.map_err(|_| died(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_ends_the_work_and_not_the_thread() {
        let thread = LibraryThread::start().unwrap();
        let panicked = thread.run(|| -> u8 { panic!("a test") }).await;
        assert_eq!(panicked.unwrap_err().kind(), DbErrorKind::Unavailable);
        assert_eq!(thread.run(|| 1).await.unwrap(), 1);
    }
}
