//! The clock of the database decides, and not those of the nodes.

use std::time::Duration;

use chrono::TimeDelta;
use ekbatan::jobs::windows::{WindowState, Windows};
use ekbatan::jobs::{JobNode, JobOperations, RunState};
use support::{Dialect, until};

use crate::entries::Entries;
use crate::scene::{NAME, Scene, add, never, nodes};

on_every_database! {
    nodes_whose_clocks_are_wrong_close_every_window_once_and_none_early,
    a_run_waits_for_windows_whose_clock_is_behind_its_own,
}

mod policy {
    use super::*;

    on_every_database! { on_sqlite_only: a_run_that_waits_ends_once_there_is_a_later_one }
}

async fn nodes_whose_clocks_are_wrong_close_every_window_once_and_none_early(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let mut processes = Vec::new();
    for minutes in [0, 10, -10, 10, -10] {
        let executor = scene.open_again(TimeDelta::minutes(minutes)).await;
        processes.push((nodes(&executor, Entries::default()).await, executor));
    }
    // Far enough away that a clock which is ten minutes ahead would have closed it at once.
    let later = scene.open("later", Duration::from_secs(5 * 60)).await;
    let mut windows = Vec::new();
    for n in 0..10 {
        windows.push(scene.open(&format!("bank {n}"), Duration::from_millis(300)).await);
    }
    let mut in_time = vec![0; windows.len()];
    for _ in 0..3 {
        for (n, window) in windows.iter().enumerate() {
            let executor = &processes[n % processes.len()].1;
            in_time[n] += usize::from(add(executor, *window).await);
        }
    }
    for window in &windows {
        scene.until_state(*window, WindowState::Closed).await;
    }
    assert_eq!(scene.window(later).await.state, WindowState::Open);
    for (nodes, _) in processes {
        nodes.drain().await;
    }
    for (window, in_time) in windows.iter().zip(in_time) {
        scene.assert_whole(*window, in_time, 3 - in_time).await;
        assert_eq!(scene.events(*window).await, ["WindowOpened", "WindowClosing", "WindowClosed"]);
    }
}

/// A run whose slot has not come yet stands for a shard whose clock is behind that of the default shard.
async fn a_run_waits_for_windows_whose_clock_is_behind_its_own(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    // From now on the job is known.
    start(&scene).await.drain(Duration::MAX).await;
    let window = scene.open("anna", Duration::from_secs(3)).await;
    JobOperations::new(&scene.databases).run_now(NAME, "alice", "a test").await.unwrap();
    let (runs, windows) = (scene.scratch.eventlog("job_runs"), scene.scratch.eventlog("windows"));
    scene
        .scratch
        .execute(&format!("UPDATE {runs} SET slot = (SELECT cutoff FROM {windows})"))
        .await;
    let jobs = start(&scene).await;
    scene.until_state(window, WindowState::Closing).await;
    jobs.drain(Duration::MAX).await;
}

/// Otherwise such runs would take all places of a node.
async fn a_run_that_waits_ends_once_there_is_a_later_one(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    start(&scene).await.drain(Duration::MAX).await;
    let one_place =
        JobNode::builder(&scene.executor).poll(Duration::from_millis(20)).concurrency(1);
    let mut one_place = Some(Windows::new(Entries::default()).add_job(one_place, never()));
    let operations = JobOperations::new(&scene.databases);
    let (runs, windows) = (scene.scratch.eventlog("job_runs"), scene.scratch.eventlog("windows"));
    let state = async |run| operations.run(run).await.unwrap().unwrap().state;
    let (mut asked, mut jobs) = (Vec::new(), None);
    for (participant, hours) in [("anna", 1), ("bartek", 2)] {
        scene.open(participant, Duration::from_secs(hours * 3_600)).await;
        let run = operations.run_now(NAME, "alice", "a test").await.unwrap();
        let slot = format!("SELECT cutoff FROM {windows} WHERE participant = '{participant}'");
        let later = format!("UPDATE {runs} SET slot = ({slot}) WHERE id = '{run}'");
        scene.scratch.execute(&later).await;
        if let Some(node) = one_place.take() {
            jobs = Some(node.start().await.unwrap());
            until("it waits", async || state(run).await == RunState::Running).await;
        }
        asked.push(run);
    }
    until("the first one has ended", async || state(asked[0]).await == RunState::Done).await;
    until("the later one has its place", async || state(asked[1]).await == RunState::Running).await;
    jobs.unwrap().drain(Duration::ZERO).await;
}

async fn start(scene: &Scene) -> JobNode {
    let windows = Windows::new(Entries::default());
    let node = JobNode::builder(&scene.executor).poll(Duration::from_millis(20));
    windows.add_job(node, never()).start().await.unwrap()
}
