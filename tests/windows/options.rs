//! How the job and the handler of a series run.

use std::time::Duration;

use ekbatan::jobs::windows::Windows;
use ekbatan::jobs::JobNode;
use support::Dialect;

use crate::entries::Entries;
use crate::scene::{Scene, never};

on_every_database! {
    on_sqlite_only:
    a_run_that_fails_is_not_given_up_before_the_next_slot,
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A shard may be down for a weekend.
async fn a_run_that_fails_is_not_given_up_before_the_next_slot(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let node = Windows::new(Entries::default()).add_job(JobNode::builder(&scene.executor), never());
    node.start().await.unwrap().drain(Duration::ZERO).await;
    let from = format!("FROM {}", scene.scratch.eventlog("jobs"));
    let stored = scene.scratch.select(&["longest", "attempts"], &from).await.remove(0);
    let stored: Vec<u128> = stored.iter().flatten().map(|number| number.parse().unwrap()).collect();
    assert!(stored[0] >= YEAR.as_millis() && stored[1] >= 1_000_000, "{stored:?}");
}
