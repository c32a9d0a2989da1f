//! Guarantees that hold under load and failure: many concurrent tasks, cancelled callers, killed
//! servers and processes.
//!
//! A test is an `async fn(Dialect)`, listed in `on_every_database!`.

/// Declares each test once for each database, or only for those that `only` names.
macro_rules! on_every_database {
    ($($tests:tt)*) => {
        support::on_every_database! {
            #[tokio::test(flavor = "multi_thread")]
            |dialect| dialect;
            $($tests)*
        }
    };
}

mod ledger;
mod orders;
mod other_sessions;

mod calls;
mod cancellation;
mod concurrency;
mod crash;
mod demoted;
mod expectations;
mod fence;
mod forgotten_locks;
mod lanes;
mod lock_order;
mod packets;
mod process;
mod replicas;
mod round_trips;
mod shards;
mod silence;
mod startup;
mod statements;
