//! Which runs there are while nodes run: one for each slot.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use ekbatan::jobs::{JobOptions, Misfire, Overlap, RunRecord, RunState, Schedule};
use futures_util::FutureExt;
use support::until;
use tokio::sync::Semaphore;

use crate::scene::{REPORT, Report, Scene, Sweep, hourly, node, rarely};

on_every_database! {
    each_slot_is_run_once_by_five_nodes_whose_clocks_are_wrong,
    a_slot_that_has_run_is_not_run_again,
    a_delay_counts_from_the_end_of_the_run,
    at_least_holds_the_next_start,
    slots_during_a_run_are_skipped,
    slots_during_a_run_are_queued,
    runs_may_overlap,
}

pub fn every(millis: u64) -> Schedule {
    Schedule::every(Duration::from_millis(millis)).unwrap()
}

async fn each_slot_is_run_once_by_five_nodes_whose_clocks_are_wrong(scene: &Scene) {
    // Nothing is left out, however slow the machine is.
    let options = JobOptions::default().misfire(Misfire::CatchUp(1_000)).overlap(Overlap::Queue);
    let options = options.keep(10_000);
    let job = Report::writing();
    let mut nodes = Vec::new();
    for minutes in [0, 10, -10, 10, -10] {
        let executor = scene.open_again(TimeDelta::minutes(minutes)).await;
        let builder = node(&executor).job_with(every(100), job.clone(), options.clone());
        nodes.push(builder.start().await.unwrap());
    }
    scene.until_in_state(REPORT, RunState::Done, 20).await;
    for node in nodes {
        node.drain(Duration::MAX).await;
    }
    let history = scene.history(REPORT).await;
    let is_next = |[a, b]: &[RunRecord; 2]| b.slot - a.slot == TimeDelta::milliseconds(100);
    assert!(history.array_windows().all(is_next), "no slot is missing: {history:?}");
    assert_eq!(scene.operations().job(REPORT).await.unwrap().omitted, 0);
    let done = scene.in_state(REPORT, RunState::Done).await;
    let lines = scene.lines().await;
    let slots: HashSet<_> = lines.iter().map(|line| line.slot.clone()).collect();
    assert_eq!((lines.len(), slots.len()), (done.len(), done.len()), "one line for each slot");
    // The clock of the database decides: none ran before its time.
    assert!(done.iter().all(|run| run.started.unwrap() >= run.slot));
}

async fn a_slot_that_has_run_is_not_run_again(scene: &Scene) {
    let job = Report::idle();
    let _node = scene.node().job(hourly(), job.clone()).start().await.unwrap();
    let past = scene.operations().job(REPORT).await.unwrap().next_slot.unwrap();
    let past = past - TimeDelta::hours(1);
    scene.set_next_slot(REPORT, past).await;
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    scene.set_next_slot(REPORT, past).await;
    until("the slot is decided on again", async || {
        scene.operations().job(REPORT).await.unwrap().next_slot != Some(past)
    })
    .await;
    let of_slot = job.seen().iter().filter(|seen| seen.slot == past).count();
    assert_eq!(of_slot, 1);
}

async fn a_delay_counts_from_the_end_of_the_run(scene: &Scene) {
    let delay = Duration::from_millis(50);
    let schedule = Schedule::delay(delay).unwrap();
    let fails = Sweep::new(|_| async { Err("always".into()) }.boxed());
    let _node = scene.node().job(schedule, fails).start().await.unwrap();
    scene.until_in_state("sweep", RunState::Failed, 4).await;
    let history = scene.history("sweep").await;
    for [before, after] in history.array_windows() {
        assert_eq!(after.slot, before.ended.unwrap() + delay);
    }
}

async fn at_least_holds_the_next_start(scene: &Scene) {
    let at_least = Duration::from_millis(300);
    let options = JobOptions::default().at_least(at_least);
    let job = Report::idle();
    let one = scene.node().job_with(every(20), job.clone(), options.clone());
    let one = one.start().await.unwrap();
    let other = scene.open_again(TimeDelta::minutes(10)).await;
    let other = node(&other).job_with(every(20), job, options).start().await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 3).await;
    scene.operations().run_now(REPORT, "alice", "a test").await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 5).await;
    one.drain(Duration::MAX).await;
    other.drain(Duration::MAX).await;
    let mut starts: Vec<_> =
        scene.history(REPORT).await.iter().filter_map(|run| run.started).collect();
    starts.sort_unstable();
    let at_least = TimeDelta::from_std(at_least).unwrap();
    assert!(starts.array_windows().all(|[a, b]| *b - *a >= at_least), "{starts:?}");
}

/// A job that does not end before it is opened.
pub fn stuck(opened: &Arc<Semaphore>) -> Report {
    let opened = opened.clone();
    Report::new(move |_| {
        let opened = opened.clone();
        async move {
            opened.acquire().await?.forget();
            Ok(())
        }
        .boxed()
    })
}

async fn slots_during_a_run_are_skipped(scene: &Scene) {
    let opened = Arc::new(Semaphore::new(0));
    let job = stuck(&opened);
    let _node = scene.node().job(every(50), job.clone()).start().await.unwrap();
    scene.until_in_state(REPORT, RunState::Running, 1).await;
    let first = scene.in_state(REPORT, RunState::Running).await.remove(0);
    let until_slot = first.started.unwrap() + TimeDelta::milliseconds(200);
    until("slots are due", async || scene.now().await > until_slot).await;
    // The row of the run says that it runs before its node knows.
    until("the job has begun", async || !job.seen().is_empty()).await;
    assert_eq!(job.seen().len(), 1, "no other run while one goes on");
    opened.add_permits(1);
    scene.until_in_state(REPORT, RunState::Skipped, 1).await;
    let first = scene.operations().run(first.id).await.unwrap().unwrap();
    let skipped = scene.in_state(REPORT, RunState::Skipped).await.remove(0);
    assert!(skipped.slot > first.slot && skipped.slots >= 3, "{skipped:?}");
    let after_end = skipped.last_slot + TimeDelta::milliseconds(50);
    assert!(skipped.last_slot <= first.ended.unwrap() && after_end > first.ended.unwrap());
    assert!(scene.operations().job(REPORT).await.unwrap().omitted >= skipped.slots);
    opened.add_permits(1_000_000);
}

async fn slots_during_a_run_are_queued(scene: &Scene) {
    let opened = Arc::new(Semaphore::new(0));
    let job = stuck(&opened);
    let options = JobOptions::default().misfire(Misfire::CatchUp(1_000)).overlap(Overlap::Queue);
    let options = options.keep(10_000);
    let _node = scene.node().job_with(every(50), job.clone(), options).start().await.unwrap();
    scene.until_in_state(REPORT, RunState::Running, 1).await;
    let first = scene.in_state(REPORT, RunState::Running).await.remove(0);
    let until_slot = first.started.unwrap() + TimeDelta::milliseconds(200);
    until("slots are due", async || scene.now().await > until_slot).await;
    // The row of the run says that it runs before its node knows.
    until("the job has begun", async || !job.seen().is_empty()).await;
    assert_eq!(job.seen().len(), 1, "no other run while one goes on");
    opened.add_permits(1_000_000);
    scene.until_in_state(REPORT, RunState::Done, 5).await;
    let done = scene.in_state(REPORT, RunState::Done).await;
    let step = TimeDelta::milliseconds(50);
    assert!(done.array_windows().all(|[a, b]| b.slot - a.slot == step), "{done:?}");
    assert!(done.array_windows().all(|[a, b]| b.started >= a.ended), "one at a time");
}

async fn runs_may_overlap(scene: &Scene) {
    let opened = Arc::new(Semaphore::new(0));
    let job = stuck(&opened);
    let options = JobOptions::default().overlap(Overlap::Allow);
    let _node = scene.node().job_with(rarely(), job, options).start().await.unwrap();
    for _ in 0..3 {
        scene.operations().run_now(REPORT, "alice", "a test").await.unwrap();
    }
    scene.until_in_state(REPORT, RunState::Running, 3).await;
    opened.add_permits(3);
    scene.until_in_state(REPORT, RunState::Done, 3).await;
}
