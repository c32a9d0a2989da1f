//! Handlers of events, enqueued calls and jobs, while processes are killed and stopped, lines are cut
//! and go silent, and the server dies.
//!
//! Invariant: a run records a [`history`] of what was committed, and is judged by that history alone,
//! whatever happened when.

/// Declares each test once for each database.
macro_rules! on_every_database {
    ($($tests:tt)*) => {
        support::on_every_database! {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            |dialect| dialect;
            $($tests)*
        }
    };
}

mod accounts;
mod cluster;
mod history;
mod requests;
mod ticks;
mod worker;

mod faults;
