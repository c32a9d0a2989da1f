//! Jobs: one run for each slot, whatever happens to the nodes.
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

mod commits;
mod isolation;
mod killed;
mod misfires;
mod nodes;
mod operations;
mod outages;
mod refusals;
mod shards;
mod slots;
mod statements;
