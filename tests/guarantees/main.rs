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

/// Waits for what must end. A test that would hang fails here, and says what hung.
async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    let most = std::time::Duration::from_secs(120);
    tokio::time::timeout(most, future).await.unwrap_or_else(|_| panic!("no end of: {what}"))
}

mod ledger;
mod orders;
mod other_sessions;

mod barrier;
mod barrier_logins;
mod calls;
mod cancellation;
mod concurrency;
mod crash;
mod dead_lanes;
mod demoted;
mod expectations;
mod far;
mod fence;
mod folded_read_faults;
mod folded_reads;
mod folded_statements;
mod forgotten_locks;
mod inbox;
mod interrupted_migrations;
mod lanes;
mod lock_order;
mod locked_rows;
mod lost_groups;
mod old_fences;
mod packets;
mod process;
mod promoted;
mod replicas;
mod round_trips;
mod runtimes;
mod shards;
mod silence;
mod slow_commits;
mod startup;
mod statements;
mod waiting;
