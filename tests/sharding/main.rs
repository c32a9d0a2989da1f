//! Rows that are spread over several databases.
//!
//! A test is an `async fn(&TestShards)`, listed in `on_every_layout!`. A new layout adds one line
//! to that macro and one to [`shards::Layout`].

/// Declares each test once for each layout.
macro_rules! on_every_layout {
    ($($tests:tt)*) => {
        support::test_matrix! {
            #[tokio::test]
            |layout| &crate::shards::TestShards::start(layout).await;
            [
                sqlite = crate::shards::Layout::Sqlite,
                postgres = crate::shards::Layout::Postgres,
                mixed = crate::shards::Layout::Mixed,
            ]
            [$($tests)*]
        }
    };
}

mod actions;
mod models;
mod shards;

mod across;
mod dropped;
mod expectations;
mod fences;
mod homes;
mod inbox;
mod keys;
mod left_parts;
mod many;
mod migrations;
mod outcome;
mod pages;
mod pages_beyond;
mod pages_by_bytes;
mod partial;
mod placement;
mod process;
mod registry;
mod rules;
mod scatter;
mod spans;
mod tokens;
