//! What operators do: pause and resume, run now, list, and look at the history.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use ekbatan::jobs::{JobOptions, JobsError, Misfire, Overlap, RunKind, RunState, Schedule};
use futures_util::FutureExt;
use support::until;
use tokio::sync::Semaphore;

use crate::scene::{REPORT, Report, Scene, Sweep, hourly, node, rarely};
use crate::slots::{every, stuck};

on_every_database! {
    no_run_starts_after_a_pause,
    a_paused_job_runs_if_somebody_asks_for_it,
    what_was_due_during_a_pause_is_not_run,
    a_slot_that_waits_when_a_pause_begins_is_run_after_it,
    slots_that_a_run_has_kept_away_when_a_pause_begins_are_listed,
    jobs_are_listed_also_if_no_node_knows_them,
    the_last_runs_are_kept_with_their_errors,
    who_and_why_are_stored,
}

mod of_a_delay {
    use super::*;

    on_every_database! { on_sqlite_only: a_slot_that_was_due_during_a_pause_is_not_run }
}

mod on_postgres {
    use super::*;

    on_every_database! { only postgres:
        a_registration_beside_a_pause_loses_neither,
        two_nodes_that_delete_earlier_runs_keep_the_last_ones,
    }
}

async fn no_run_starts_after_a_pause(scene: &Scene) {
    let every = Schedule::every(Duration::from_millis(10)).unwrap();
    let options = JobOptions::default().misfire(Misfire::CatchUp(5)).keep(10_000);
    let job = Report::idle();
    let builder = || scene.node().job_with(every.clone(), job.clone(), options.clone());
    let _nodes = [builder().start().await.unwrap(), builder().start().await.unwrap()];
    let operations = scene.operations();
    for round in 1..=10 {
        scene.until_in_state(REPORT, RunState::Done, round).await;
        operations.pause(REPORT, "alice", "a test").await.unwrap();
        let started = started(scene).await;
        // The nodes look again, and find this run.
        operations.run_now(REPORT, "alice", "a test").await.unwrap();
        until("it is run", async || {
            let history = scene.history(REPORT).await;
            let manual = history.iter().filter(|run| run.kind == RunKind::Manual);
            manual.filter(|run| run.state == RunState::Done).count() == round
        })
        .await;
        assert_eq!(self::started(scene).await, started, "round {round}");
        operations.resume(REPORT, "alice", "a test").await.unwrap();
    }
}

/// The scheduled runs that have been started.
async fn started(scene: &Scene) -> HashSet<ekbatan::prelude::Uuid> {
    let history = scene.history(REPORT).await;
    let started = history.iter().filter(|run| run.kind == RunKind::Scheduled);
    started.filter(|run| run.started.is_some()).map(|run| run.id).collect()
}

/// A later release has another schedule. Its registration and the pause have both read when one of them writes.
async fn a_registration_beside_a_pause_loses_neither(scene: &Scene) {
    scene.store(Report::idle(), JobOptions::default()).await;
    let other = scene.open_again(TimeDelta::zero()).await;
    let operations = scene.operations();
    let jobs = scene.scratch.eventlog("jobs");
    let mut holder = scene.scratch.connect().await;
    holder.execute("BEGIN").await;
    holder.execute(&format!("SELECT 1 FROM {jobs} FOR UPDATE")).await;
    let pausing = operations.pause(REPORT, "alice", "a test");
    let registering = node(&other).job(hourly(), Report::idle()).start();
    let releasing = async {
        until("both wait", async || scene.scratch.waiting_for_locks().await == 2).await;
        holder.execute("ROLLBACK").await;
    };
    let (paused, node, ()) = tokio::join!(pausing, registering, releasing);
    paused.unwrap();
    node.unwrap().drain(Duration::MAX).await;
    let job = operations.job(REPORT).await.unwrap();
    assert_eq!((job.is_paused, job.schedule), (true, hourly().to_string()));
}

async fn a_paused_job_runs_if_somebody_asks_for_it(scene: &Scene) {
    let job = Report::writing();
    let _node = scene.node().job(hourly(), job.clone()).start().await.unwrap();
    let operations = scene.operations();
    operations.pause(REPORT, "alice", "a test").await.unwrap();
    let id = operations.run_now(REPORT, "alice", "the customer waits").await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    let run = operations.run(id).await.unwrap().unwrap();
    assert_eq!((run.kind, run.state, run.id), (RunKind::Manual, RunState::Done, job.seen()[0].id));
    assert!(operations.job(REPORT).await.unwrap().is_paused);
}

async fn what_was_due_during_a_pause_is_not_run(scene: &Scene) {
    let job = Report::idle();
    let _node = scene.node().job(hourly(), job.clone()).start().await.unwrap();
    let operations = scene.operations();
    let next = operations.job(REPORT).await.unwrap().next_slot.unwrap();
    operations.pause(REPORT, "alice", "a test").await.unwrap();
    // As if the pause had lasted for hours.
    scene.set_next_slot(REPORT, next - TimeDelta::hours(5)).await;
    operations.resume(REPORT, "alice", "a test").await.unwrap();
    assert!(operations.job(REPORT).await.unwrap().next_slot.unwrap() >= next);
    operations.run_now(REPORT, "alice", "a test").await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    assert!(job.seen().iter().all(|seen| seen.slot > next - TimeDelta::hours(1)));
    assert_eq!(operations.job(REPORT).await.unwrap().omitted, 0);
}

/// The run goes on when the pause begins, and its end decides on the next slot.
async fn a_slot_that_was_due_during_a_pause_is_not_run(scene: &Scene) {
    let opened = Arc::new(Semaphore::new(0));
    let job = stuck(&opened);
    let delay = Schedule::delay(Duration::from_secs(60 * 60)).unwrap();
    let _node = scene.node().job(delay, job.clone()).start().await.unwrap();
    let operations = scene.operations();
    let first = scene.now().await;
    scene.set_next_slot(REPORT, first).await;
    scene.until_in_state(REPORT, RunState::Running, 1).await;
    operations.pause(REPORT, "alice", "a test").await.unwrap();
    opened.add_permits(100);
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    // As if the pause had lasted for hours.
    let (runs, ended) = (scene.scratch.eventlog("job_runs"), first - TimeDelta::hours(5));
    let ended = scene.literal(ended);
    scene.scratch.execute(&format!("UPDATE {runs} SET changed = {ended}")).await;
    operations.resume(REPORT, "alice", "a test").await.unwrap();
    let next = operations.job(REPORT).await.unwrap().next_slot;
    assert!(next.is_some_and(|next| next >= first + TimeDelta::hours(1)), "{next:?}");
    assert_eq!(job.seen().len(), 1);
}

async fn a_slot_that_waits_when_a_pause_begins_is_run_after_it(scene: &Scene) {
    let opened = Arc::new(Semaphore::new(0));
    let job = stuck(&opened);
    let options = JobOptions::default().overlap(Overlap::Queue);
    let _node = scene.node().job_with(hourly(), job.clone(), options).start().await.unwrap();
    let operations = scene.operations();
    operations.run_now(REPORT, "alice", "a test").await.unwrap();
    scene.until_in_state(REPORT, RunState::Running, 1).await;
    let next = operations.job(REPORT).await.unwrap().next_slot.unwrap();
    let due = next - TimeDelta::hours(1);
    scene.set_next_slot(REPORT, due).await;
    operations.pause(REPORT, "alice", "a test").await.unwrap();
    opened.add_permits(100);
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    assert!(operations.job(REPORT).await.unwrap().next_slot.unwrap() >= next);
    assert_eq!(job.seen().len(), 1, "the pause holds");
    operations.resume(REPORT, "alice", "a test").await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 2).await;
    assert!(job.seen().iter().any(|seen| seen.slot == due), "{:?}", job.seen());
    assert_eq!(operations.job(REPORT).await.unwrap().omitted, 0);
}

async fn slots_that_a_run_has_kept_away_when_a_pause_begins_are_listed(scene: &Scene) {
    let opened = Arc::new(Semaphore::new(0));
    let _node = scene.node().job(every(50), stuck(&opened)).start().await.unwrap();
    scene.until_in_state(REPORT, RunState::Running, 1).await;
    let first = scene.in_state(REPORT, RunState::Running).await.remove(0);
    let until_slot = first.slot + TimeDelta::milliseconds(300);
    until("slots are due", async || scene.now().await > until_slot).await;
    let operations = scene.operations();
    operations.pause(REPORT, "alice", "a test").await.unwrap();
    let skipped = scene.in_state(REPORT, RunState::Skipped).await.remove(0);
    assert_eq!(skipped.slot, first.slot + TimeDelta::milliseconds(50));
    assert!(skipped.last_slot >= until_slot && skipped.slots >= 6, "{skipped:?}");
    let missed = scene.in_state(REPORT, RunState::Missed).await;
    let missed: u64 = missed.iter().map(|row| row.slots).sum();
    assert_eq!(operations.job(REPORT).await.unwrap().omitted, missed + skipped.slots);
    opened.add_permits(1);
    scene.until_in_state(REPORT, RunState::Done, 1).await;
}

async fn jobs_are_listed_also_if_no_node_knows_them(scene: &Scene) {
    scene.store(Report::idle(), JobOptions::default()).await;
    scene.store(Sweep::idle(), JobOptions::default()).await;
    scene.operations().run_now("sweep", "alice", "a test").await.unwrap();
    let jobs = scene.operations().jobs().await.unwrap();
    let found: Vec<_> =
        jobs.iter().map(|job| (job.name.as_str(), job.waiting, job.is_paused)).collect();
    assert_eq!(found, [(REPORT, 0, false), ("sweep", 1, false)]);
    assert_eq!(jobs[0].schedule.parse(), Ok(rarely()));
    assert_eq!(jobs[0].next_slot, rarely().next_after(scene.now().await));
}

async fn the_last_runs_are_kept_with_their_errors(scene: &Scene) {
    let job = Report::new(|_| {
        let cause = std::io::Error::other("no paper");
        async move { Err(Box::new(Jam(cause)) as crate::scene::Failure) }.boxed()
    });
    let options = JobOptions::default().keep(2);
    let node = scene.node().job_with(rarely(), job.clone(), options).start().await.unwrap();
    let mut ids = Vec::new();
    for run in 1..=4 {
        ids.push(scene.operations().run_now(REPORT, "alice", "a test").await.unwrap());
        until("it has failed", async || {
            let run = scene.operations().run(*ids.last().unwrap()).await.unwrap();
            run.is_some_and(|run| run.state == RunState::Failed)
        })
        .await;
        assert_eq!(job.seen().len(), run);
        // One deletion beside another one may delete too few.
        let kept = run.min(2);
        until("earlier ones are deleted", async || scene.history(REPORT).await.len() == kept).await;
    }
    node.drain(Duration::MAX).await;
    let history = scene.operations().history(REPORT, 10).await.unwrap();
    let kept: Vec<_> = history.iter().map(|run| run.id).collect();
    assert_eq!(kept, [ids[3], ids[2]], "the last first");
    assert_eq!(history[0].error.as_deref(), Some("the printer jammed: no paper"));
    assert!(history[0].ended >= history[0].started);
    assert_eq!(scene.operations().history(REPORT, 1).await.unwrap().len(), 1);
    assert_eq!(scene.operations().run(ids[0]).await.unwrap(), None);
}

/// One of them has counted the runs before the other one deletes the first, and reads them afterwards.
async fn two_nodes_that_delete_earlier_runs_keep_the_last_ones(scene: &Scene) {
    let opened = Arc::new(Semaphore::new(0));
    let options = JobOptions::default().keep(2);
    let node = scene.node().job_with(rarely(), stuck(&opened), options).start().await.unwrap();
    let mut ids = Vec::new();
    for run in 1..=2 {
        ids.push(scene.operations().run_now(REPORT, "alice", "a test").await.unwrap());
        opened.add_permits(1);
        scene.until_in_state(REPORT, RunState::Done, run).await;
    }
    ids.push(scene.operations().run_now(REPORT, "alice", "a test").await.unwrap());
    scene.until_in_state(REPORT, RunState::Running, 1).await;
    // Between the count and the rows, the row of the job is read.
    let mut holder = scene.scratch.connect().await;
    let jobs = scene.scratch.eventlog("jobs");
    holder.execute(&format!("BEGIN; LOCK TABLE {jobs} IN ACCESS EXCLUSIVE MODE")).await;
    opened.add_permits(1);
    until("the deletion waits, and so does the next look of the node", async || {
        scene.scratch.waiting_for_locks().await >= 2
    })
    .await;
    let runs = scene.scratch.eventlog("job_runs");
    holder.execute(&format!("DELETE FROM {runs} WHERE id = '{}'; COMMIT", ids[0])).await;
    node.drain(Duration::MAX).await;
    let kept = scene.operations().history(REPORT, 10).await.unwrap();
    let kept: Vec<_> = kept.iter().map(|run| run.id).collect();
    assert_eq!(kept, [ids[2], ids[1]], "the last first");
}

#[derive(Debug, thiserror::Error)]
#[error("the printer jammed")]
struct Jam(#[source] std::io::Error);

async fn who_and_why_are_stored(scene: &Scene) {
    scene.store(Report::idle(), JobOptions::default()).await;
    let operations = scene.operations();
    operations.pause(REPORT, "alice", "a holiday").await.unwrap();
    operations.run_now(REPORT, "bob", "it is urgent").await.unwrap();
    operations.resume(REPORT, "alice", "it is over").await.unwrap();
    let log = scene.scratch.eventlog("interventions");
    let rows = format!("FROM {log} WHERE handler = '{REPORT}' ORDER BY started, id");
    let rows = scene.scratch.select(&["kind", "who", "why", "state"], &rows).await;
    let row = |texts: [&str; 4]| texts.map(|text| Some(text.to_owned())).to_vec();
    let expected = [
        row(["PAUSE", "alice", "a holiday", "DONE"]),
        row(["RUN", "bob", "it is urgent", "DONE"]),
        row(["RESUME", "alice", "it is over", "DONE"]),
    ];
    assert_eq!(rows, expected);
    let blank = operations.pause(REPORT, "alice", "  ").await.unwrap_err();
    assert!(matches!(blank, JobsError::Unfit { what: "why", .. }), "{blank}");
    let unknown = operations.run_now("repot", "alice", "a test").await.unwrap_err();
    assert_eq!(unknown.to_string(), "there is no job `repot`; there is `report`");
    assert!(operations.history("repot", 1).await.is_err());
}
