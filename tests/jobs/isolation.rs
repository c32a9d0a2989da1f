//! A job that cannot be looked at, or cannot be stored, stops none of the others.

use std::time::Duration;

use chrono::TimeDelta;
use ekbatan::jobs::{JobOperations, JobOptions, Misfire, RunState};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::until;
use uuid::Uuid;

use crate::scene::{REPORT, Report, Scene, Sweep, executor, hourly, node, rarely};
use crate::slots::every;

on_every_database! {
    on_sqlite_only:
    a_job_whose_slots_cannot_be_stored_stops_no_other_one,
    a_job_that_a_newer_release_has_stored_stops_no_other_one,
    many_slots_are_caught_up_by_commits_of_few_bytes,
    many_slots_are_decided_on_by_commits_of_few_bytes_when_a_pause_begins,
}

const SWEEP: &str = "sweep";

async fn a_job_whose_slots_cannot_be_stored_stops_no_other_one(scene: &Scene) {
    let node = scene.node().job(rarely(), Report::idle()).job(rarely(), Sweep::idle());
    let _node = node.start().await.unwrap();
    let runs = scene.scratch.eventlog("job_runs");
    // Each of them once, because a node looks at them in any order.
    for (round, (failing, other)) in (1..).zip([(REPORT, SWEEP), (SWEEP, REPORT)]) {
        let trigger = format!(
            "CREATE TRIGGER refused BEFORE INSERT ON {runs} WHEN NEW.job = '{failing}' \
             BEGIN SELECT RAISE(ABORT, 'refused by the test'); END"
        );
        scene.scratch.execute(&trigger).await;
        let due = scene.now().await;
        scene.set_next_slot(failing, due).await;
        scene.set_next_slot(other, due).await;
        scene.until_in_state(other, RunState::Done, round).await;
        scene.scratch.execute("DROP TRIGGER refused").await;
        scene.until_in_state(failing, RunState::Done, round).await;
    }
}

async fn a_job_that_a_newer_release_has_stored_stops_no_other_one(scene: &Scene) {
    let node = scene.node().job(rarely(), Report::idle()).job(rarely(), Sweep::idle());
    let _node = node.start().await.unwrap();
    let jobs = scene.scratch.eventlog("jobs");
    let store = async |overlap| {
        let update = format!("UPDATE {jobs} SET overlap = '{overlap}' WHERE name = '{REPORT}'");
        scene.scratch.execute(&update).await;
    };
    scene.operations().run_now(REPORT, "alice", "a test").await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    store("SOMETIMES").await;
    scene.operations().run_now(SWEEP, "alice", "a test").await.unwrap();
    scene.until_in_state(SWEEP, RunState::Done, 1).await;
    // Their nodes are lost. The runs are taken over one after another.
    let runs = scene.scratch.eventlog("job_runs");
    let lost = Uuid::now_v7();
    scene.scratch.execute(&format!("UPDATE {runs} SET state = 'RUNNING', node = '{lost}'")).await;
    scene.until_in_state(SWEEP, RunState::Done, 1).await;
    store("SKIP").await;
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    scene.operations().run_now(REPORT, "alice", "a test").await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 2).await;
}

const SLOTS: usize = 100;

/// A job with a hundred slots that are due, in a database with small commits.
async fn after_outage(scene: &Scene) -> (ActionExecutor, JobOptions) {
    let config = scene.scratch.config().max_commit_bytes(10_000);
    let small = executor(&Databases::connect(&config.into()).await.unwrap()).await;
    let options = JobOptions::default().misfire(Misfire::CatchUp(SLOTS as u32));
    let stored = scene.node().job_with(hourly(), Report::idle(), options.clone());
    stored.start().await.unwrap().drain(Duration::MAX).await;
    let next = scene.operations().job(REPORT).await.unwrap().next_slot.unwrap();
    scene.set_next_slot(REPORT, next - TimeDelta::hours(SLOTS as i64)).await;
    (small, options)
}

async fn many_slots_are_caught_up_by_commits_of_few_bytes(scene: &Scene) {
    let (small, options) = after_outage(scene).await;
    let endless = || Report::new(|_| std::future::pending().boxed());
    let other = node(&small).job_with(hourly(), endless(), options.clone()).start().await.unwrap();
    let node = node(&small).job_with(hourly(), endless(), options).job(every(50), Sweep::idle());
    let _node = node.start().await.unwrap();
    scene.until_in_state(SWEEP, RunState::Done, 1).await;
    // Although a node may start the first one meanwhile.
    until("all slots are caught up", async || {
        let status = scene.operations().job(REPORT).await.unwrap();
        (status.running, status.waiting) == (1, SLOTS - 1)
    })
    .await;
    other.drain(Duration::ZERO).await;
}

async fn many_slots_are_decided_on_by_commits_of_few_bytes_when_a_pause_begins(scene: &Scene) {
    let (small, _) = after_outage(scene).await;
    let operations = JobOperations::new(small.databases());
    operations.pause(REPORT, "alice", "a test").await.unwrap();
    let status = operations.job(REPORT).await.unwrap();
    assert_eq!((status.is_paused, status.waiting), (true, SLOTS));
    let log = scene.scratch.eventlog("interventions");
    assert_eq!(scene.scratch.count(&format!("{log} WHERE kind = 'PAUSE'")).await, 1);
}
