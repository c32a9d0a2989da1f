//! Events that arrive: in order, retried, parked, handled once in the database, whatever happens to
//! the nodes.
//!
//! A test is an `async fn(&Scene)`, listed in `on_every_database!`.

/// Declares each test once for each database, or only for those that `only` names.
macro_rules! on_every_database {
    ($($tests:tt)*) => {
        support::on_every_database! {
            #[tokio::test(flavor = "multi_thread")]
            |dialect| &crate::scene::Scene::start(dialect).await;
            $($tests)*
        }
    };
}

mod scene;

mod adversity;
mod backlog;
mod birth;
mod call_cancelling;
mod call_keys;
mod call_plans;
mod calls;
mod completing;
mod delivered_again;
mod doorbell;
mod ending;
mod failures;
mod history;
mod isolation;
mod late;
mod locked;
mod nodes;
mod odd_rows;
mod operations;
mod order;
mod plans;
mod priorities;
mod rates;
mod refusals;
mod releases;
mod remote_calls;
mod remote_killed;
mod remote_settled;
mod retention;
mod shards;
mod standing_still;
mod statements;
mod versions;
