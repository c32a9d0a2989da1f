//! What happens to slots that no node could run in time.

use std::sync::Arc;
use std::time::Duration;

use chrono::{TimeDelta, Timelike};
use ekbatan::jobs::{JobOptions, Misfire, Overlap, RunState, Schedule};
use ekbatan::prelude::*;
use support::until;
use tokio::sync::Semaphore;

use crate::scene::{REPORT, Report, Scene, rarely};
use crate::slots::stuck;

on_every_database! {
    the_last_slot_of_an_outage_is_run,
    the_last_slots_of_an_outage_are_caught_up_in_their_order,
    an_outage_is_skipped,
    every_slot_of_a_long_outage_can_be_stored,
    a_slot_within_the_grace_is_run,
    slots_that_a_new_schedule_drops_are_listed,
    rows_of_missed_slots_are_deleted_although_nothing_runs,
}

mod with_a_short_history {
    use super::*;

    on_every_database! { on_sqlite_only: a_run_that_is_not_kept_keeps_its_slots_away }
}

/// A job whose last slot was half an hour ago, after three days without nodes: the slots, and the
/// schedule.
async fn after_outage(scene: &Scene, options: &JobOptions) -> (Vec<DateTime<Utc>>, Schedule) {
    let last = scene.now().await - TimeDelta::minutes(30);
    let last = last.with_nanosecond(0).unwrap();
    let schedule = Schedule::daily([last.time()], "UTC").unwrap();
    let node = scene.node().job_with(schedule.clone(), Report::idle(), options.clone());
    node.start().await.unwrap().drain(Duration::MAX).await;
    let slots: Vec<_> = (0..=3).rev().map(|days| last - TimeDelta::days(days)).collect();
    scene.set_next_slot(REPORT, slots[0]).await;
    (slots, schedule)
}

/// Lets two nodes decide. Returns the slots that were run, in the order of their starts.
async fn decided(scene: &Scene, schedule: Schedule, options: JobOptions) -> Vec<DateTime<Utc>> {
    let job = Report::writing();
    let builder = || scene.node().job_with(schedule.clone(), job.clone(), options.clone());
    let (one, other) = (builder().start().await.unwrap(), builder().start().await.unwrap());
    until("the outage is decided on, and its runs have ended", async || {
        let status = scene.operations().job(REPORT).await.unwrap();
        let is_decided = status.next_slot.unwrap() > scene.now().await;
        is_decided && status.waiting + status.running == 0
    })
    .await;
    one.drain(Duration::MAX).await;
    other.drain(Duration::MAX).await;
    let mut done = scene.in_state(REPORT, RunState::Done).await;
    assert_eq!(scene.lines().await.len(), done.len());
    done.sort_by_key(|run| run.started);
    done.iter().map(|run| run.slot).collect()
}

/// The first and the last slot that are listed as missed, and how many.
async fn missed(scene: &Scene) -> Option<(DateTime<Utc>, DateTime<Utc>, u64)> {
    let mut missed = scene.in_state(REPORT, RunState::Missed).await;
    assert!(missed.len() <= 1, "one row for the outage");
    let status = scene.operations().job(REPORT).await.unwrap();
    assert_eq!(status.omitted, missed.iter().map(|row| row.slots).sum::<u64>());
    missed.pop().map(|row| (row.slot, row.last_slot, row.slots))
}

async fn the_last_slot_of_an_outage_is_run(scene: &Scene) {
    let options = JobOptions::default();
    let (slots, schedule) = after_outage(scene, &options).await;
    assert_eq!(decided(scene, schedule, options).await, slots[3..]);
    assert_eq!(missed(scene).await, Some((slots[0], slots[2], 3)));
}

async fn the_last_slots_of_an_outage_are_caught_up_in_their_order(scene: &Scene) {
    let options = JobOptions::default().misfire(Misfire::CatchUp(3));
    let (slots, schedule) = after_outage(scene, &options).await;
    assert_eq!(decided(scene, schedule, options).await, slots[1..]);
    assert_eq!(missed(scene).await, Some((slots[0], slots[0], 1)));
}

async fn an_outage_is_skipped(scene: &Scene) {
    let grace = Duration::from_secs(10 * 60);
    let options = JobOptions::default().misfire(Misfire::Skip { grace });
    let (slots, schedule) = after_outage(scene, &options).await;
    assert!(decided(scene, schedule, options).await.is_empty());
    assert_eq!(missed(scene).await, Some((slots[0], slots[3], 4)));
}

async fn every_slot_of_a_long_outage_can_be_stored(scene: &Scene) {
    // Their runs may end before one node has stored the last slots and the other one decides on those.
    let options = JobOptions::default().misfire(Misfire::CatchUp(40)).overlap(Overlap::Queue);
    let (slots, schedule) = after_outage(scene, &options).await;
    scene.set_next_slot(REPORT, slots[3] - TimeDelta::days(39)).await;
    assert_eq!(decided(scene, schedule, options).await.len(), 40);
    assert_eq!(missed(scene).await, None);
}

async fn a_slot_within_the_grace_is_run(scene: &Scene) {
    let grace = Duration::from_secs(12 * 60 * 60);
    let options = JobOptions::default().misfire(Misfire::Skip { grace });
    let (slots, schedule) = after_outage(scene, &options).await;
    assert_eq!(decided(scene, schedule, options).await, slots[3..]);
    assert_eq!(missed(scene).await, Some((slots[0], slots[2], 3)));
}

async fn slots_that_a_new_schedule_drops_are_listed(scene: &Scene) {
    let (slots, _) = after_outage(scene, &JobOptions::default()).await;
    let job = Report::idle();
    let node = scene.node().job(rarely(), job.clone()).start().await.unwrap();
    assert_eq!(missed(scene).await, Some((slots[0], slots[3], 4)));
    node.drain(Duration::MAX).await;
    assert_eq!(job.seen(), []);
}

async fn rows_of_missed_slots_are_deleted_although_nothing_runs(scene: &Scene) {
    let grace = Duration::from_secs(10 * 60);
    let options = JobOptions::default().misfire(Misfire::Skip { grace }).keep(2);
    let (slots, schedule) = after_outage(scene, &options).await;
    let _node = scene.node().job_with(schedule, Report::idle(), options).start().await.unwrap();
    let operations = scene.operations();
    for round in 1..=5 {
        until("the slots are decided on", async || {
            operations.job(REPORT).await.unwrap().omitted == 4 * round
        })
        .await;
        scene.set_next_slot(REPORT, slots[0]).await;
    }
    until("two rows are left", async || {
        let is_decided = operations.job(REPORT).await.unwrap().omitted == 4 * 6;
        is_decided && scene.in_state(REPORT, RunState::Missed).await.len() == 2
    })
    .await;
}

/// A run keeps a slot away, and somebody asks for another run before it ends.
async fn a_run_that_is_not_kept_keeps_its_slots_away(scene: &Scene) {
    let opened = Arc::new(Semaphore::new(0));
    let job = stuck(&opened);
    let options = JobOptions::default().keep(1);
    let _node = scene.node().job_with(rarely(), job.clone(), options).start().await.unwrap();
    let operations = scene.operations();
    scene.set_next_slot(REPORT, scene.now().await).await;
    scene.until_in_state(REPORT, RunState::Running, 1).await;
    let kept_away = scene.now().await;
    scene.set_next_slot(REPORT, kept_away).await;
    operations.run_now(REPORT, "alice", "a test").await.unwrap();
    opened.add_permits(100);
    until("the slot is decided on", async || {
        operations.job(REPORT).await.unwrap().next_slot != Some(kept_away)
    })
    .await;
    assert_eq!(operations.job(REPORT).await.unwrap().omitted, 1);
    let seen = job.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|run| run.slot != kept_away), "{seen:?}");
    until("one row is left", async || scene.history(REPORT).await.len() == 1).await;
}
