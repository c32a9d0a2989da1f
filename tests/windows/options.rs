//! How the job and the handler of a series run.

use std::time::Duration;

use ekbatan::events::Node;
use ekbatan::jobs::windows::Windows;
use ekbatan::jobs::{JobNode, JobOptions, Overlap};
use support::Dialect;

use crate::entries::Entries;
use crate::scene::{Scene, never};

on_every_database! {
    on_sqlite_only:
    a_run_that_fails_is_not_given_up_before_the_next_slot,
    what_is_not_set_keeps_the_defaults_of_windows,
    a_barrier_that_leaves_no_time_is_refused,
    a_late_check_that_no_date_can_hold_is_refused,
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

async fn what_is_not_set_keeps_the_defaults_of_windows(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let windows = Windows::new(Entries::default()).job_options(|options| options.keep(7));
    let windows = windows.handler_options(|options| {
        assert_eq!(options.timeout, Duration::from_secs(600));
        options.concurrency(4)
    });
    // What is set once stays.
    let windows = windows.handler_options(|options| {
        assert_eq!((options.timeout, options.concurrency), (Duration::from_secs(600), 4));
        options
    });
    let windows = windows.job_options(|options| {
        let defaults = JobOptions::default().keep(7).overlap(Overlap::Allow);
        assert_ne!(options, defaults, "no deadline");
        assert_eq!(options.clone().deadline(YEAR).attempts(3), defaults.deadline(YEAR));
        options
    });
    let node = windows.add_handlers(Node::builder(&scene.executor)).start().await.unwrap();
    node.drain(Duration::ZERO).await;
}

async fn a_barrier_that_leaves_no_time_is_refused(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let windows = || Windows::new(Entries::default());
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    for windows in [
        windows().handler_options(|options| options.timeout(minutes(1))),
        windows().handler_options(|options| options.timeout(minutes(5))),
        windows().longest_barrier(minutes(10)),
    ] {
        let node = windows.add_handlers(Node::builder(&scene.executor));
        let refused = node.start().await.err().unwrap().to_string();
        assert!(refused.contains("`timeout`") && refused.contains("longest_barrier"), "{refused}");
    }
    let windows = windows().longest_barrier(minutes(10));
    let windows = windows.handler_options(|options| options.timeout(minutes(11)));
    let node = windows.add_handlers(Node::builder(&scene.executor)).start().await.unwrap();
    node.drain(Duration::ZERO).await;
}

async fn a_late_check_that_no_date_can_hold_is_refused(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let series = Entries { late_check: Some(Duration::MAX), ..Entries::default() };
    let node = Windows::new(series).add_handlers(Node::builder(&scene.executor));
    let refused = node.start().await.err().unwrap().to_string();
    assert!(refused.contains("`late_check`") && refused.contains("hundred years"), "{refused}");
}
