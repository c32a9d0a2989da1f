//! What has to hold where rows are spread over several databases.
//!
//! A test is an `async fn(&TestShards)`; `on_every_layout!` makes a `#[tokio::test]` of it per
//! layout. Another layout is one line in that macro and one in [`shards::Layout`].

/// Runs tests on shards of every kind and mixture.
macro_rules! on_every_layout {
    (only $module:ident $layout:ident: $($test:ident),*) => {
        mod $module {
            use crate::shards::{Layout, TestShards};
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(&TestShards::start(Layout::$layout).await).await;
                }
            )*
        }
    };
    ($($test:ident),* $(,)?) => {
        on_every_layout!(only sqlite Sqlite: $($test),*);
        on_every_layout!(only postgres Postgres: $($test),*);
        on_every_layout!(only mixed Mixed: $($test),*);
    };
}

mod actions;
mod models;
mod shards;

mod across;
mod dropped;
mod fences;
mod keys;
mod many;
mod migrations;
mod outcome;
mod pages;
mod partial;
mod placement;
mod process;
mod registry;
mod rules;
mod scatter;
mod spans;
mod tokens;
