//! Nodes that end, in order and not in order, and runs that do not end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ekbatan::jobs::{JobOptions, Misfire, Overlap, RunState};
use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use futures_util::FutureExt;
use support::{Dialect, PlainConnection, ScratchDatabase, ThreadGate, until};
use tokio::sync::{Notify, Semaphore};

use crate::scene::{
    Archive, Digest, REPORT, Report, Scene, Scripted, Sweep, executor, node, rarely,
};

on_every_database! {
    a_run_whose_node_died_is_begun_again_by_another_one,
    a_run_is_given_up_if_its_nodes_die_again_and_again,
    a_drained_node_gives_its_runs_back_without_counting_an_attempt,
    a_drained_node_waits_for_its_runs,
    a_node_that_was_taken_for_dead_goes_on,
    a_job_that_a_node_does_not_know_is_left_alone,
    a_run_that_takes_too_long_fails,
    a_run_that_its_node_cannot_cancel_is_ended_by_another_one,
    a_panic_fails_its_own_run_only,
    a_run_that_panics_when_it_is_cancelled_gives_its_place_back,
    a_node_has_no_more_runs_than_it_may,
    a_slot_with_a_grace_is_left_open_until_a_place_is_free,
    a_node_whose_last_renewal_got_no_answer_leaves_no_row_behind,
}

/// SQLite locks no single row, and is never far.
mod rows {
    use super::*;

    on_every_database! {
        only postgres and mysql and mariadb:
        a_locked_row_of_a_dead_node_keeps_no_other_run_from_being_taken_over,
        a_locked_run_keeps_no_other_one_from_being_taken_over,
        a_locked_job_keeps_no_other_one_waiting,
        a_locked_job_does_not_keep_what_becomes_due_waiting_for_long,
        a_node_whose_looks_take_longer_than_its_lease_takes_over,
    }
}

/// The shortest lease.
const LEASE: Duration = Duration::from_secs(1);
/// A lease that a slow machine keeps, and after whose fifth a node looks around.
const LONGER: Duration = Duration::from_secs(5);
const HOUR: Duration = Duration::from_secs(3_600);

async fn run_now(scene: &Scene) {
    scene.operations().run_now(REPORT, "alice", "a test").await.unwrap();
}

/// A job that never ends, except for attempts from `from` on, which write a line.
fn ends_from(from: u32) -> Report {
    scripted_to_end_from(from)
}

/// The same, for any of the scripted jobs.
fn scripted_to_end_from<const N: u8>(from: u32) -> Scripted<N> {
    Scripted::new(move |ctx| {
        async move {
            if ctx.attempt() < from {
                std::future::pending::<()>().await;
            }
            crate::scene::write(ctx).await
        }
        .boxed()
    })
}

async fn a_run_whose_node_died_is_begun_again_by_another_one(scene: &Scene) {
    let job = ends_from(2);
    let dying = scene.node().lease(LEASE).job(rarely(), job.clone()).start().await.unwrap();
    run_now(scene).await;
    until("it runs", async || job.seen().len() == 1).await;
    // As if its process was killed: nothing is given back.
    drop(dying);
    let other = scene.open_again(chrono::TimeDelta::zero()).await;
    // Its own lease does not say for how long it waits.
    let _other = node(&other).lease(HOUR).job(rarely(), job.clone()).start().await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    let seen = job.seen();
    assert!(seen.iter().all(|run| (run.id, run.slot) == (seen[0].id, seen[0].slot)), "{seen:?}");
    assert!(seen.is_sorted_by(|a, b| a.attempt < b.attempt), "{seen:?}");
    assert_eq!(scene.lines().await.len(), 1);
}

async fn a_locked_row_of_a_dead_node_keeps_no_other_run_from_being_taken_over(scene: &Scene) {
    take_over_beside_a_locked_row(scene, "job_nodes", "name = 'first'").await;
}

async fn a_locked_run_keeps_no_other_one_from_being_taken_over(scene: &Scene) {
    take_over_beside_a_locked_row(scene, "job_runs", "job = 'report'").await;
}

/// The row is one of the first of two dead nodes.
async fn take_over_beside_a_locked_row(scene: &Scene, table: &str, condition: &str) {
    let (report, sweep): (Report, Sweep) = (ends_from(u32::MAX), scripted_to_end_from(u32::MAX));
    let dying = || scene.node().lease(LONGER);
    let first = dying().name("first").job(rarely(), report.clone()).start().await.unwrap();
    let second = dying().job(rarely(), sweep.clone()).start().await.unwrap();
    run_now(scene).await;
    run_sweep_now(scene).await;
    until("both run", async || !report.seen().is_empty() && !sweep.seen().is_empty()).await;
    drop((first, second));
    let mut locked = lock(scene, table, condition).await;
    let taking = scene.node().lease(LONGER).job(rarely(), Report::idle());
    let _taking = taking.job(rarely(), Sweep::idle()).start().await.unwrap();
    scene.until_in_state("sweep", RunState::Done, 1).await;
    assert_eq!(scene.in_state(REPORT, RunState::Running).await.len(), 1);
    locked.execute("COMMIT").await;
    scene.until_in_state(REPORT, RunState::Done, 1).await;
}

async fn a_locked_job_keeps_no_other_one_waiting(scene: &Scene) {
    scene.store(Report::idle(), JobOptions::default()).await;
    scene.store(Sweep::idle(), JobOptions::default()).await;
    run_now(scene).await;
    run_sweep_now(scene).await;
    let mut locked = lock(scene, "jobs", "name = 'report'").await;
    // Longer than a look at the jobs may take.
    let patient = scene.scratch.config().connection_timeout(Duration::from_secs(100));
    let executor = executor(&Databases::connect(&patient.into()).await.unwrap()).await;
    let node = node(&executor).job(rarely(), Report::idle()).job(rarely(), Sweep::idle());
    let _node = node.start().await.unwrap();
    scene.until_in_state("sweep", RunState::Done, 1).await;
    locked.execute("COMMIT").await;
    scene.until_in_state(REPORT, RunState::Done, 1).await;
}

async fn a_locked_job_does_not_keep_what_becomes_due_waiting_for_long(scene: &Scene) {
    scene.store(Report::idle(), JobOptions::default()).await;
    run_now(scene).await;
    let mut locked = lock(scene, "jobs", "name = 'report'").await;
    // Longer than a look at the jobs may take.
    let patient = scene.scratch.config().connection_timeout(Duration::from_secs(100));
    let executor = executor(&Databases::connect(&patient.into()).await.unwrap()).await;
    let node = node(&executor).job(rarely(), Report::idle()).job(rarely(), Sweep::idle());
    let _node = node.start().await.unwrap();
    let began = Instant::now();
    for ended in 1..=4 {
        run_sweep_now(scene).await;
        scene.until_in_state("sweep", RunState::Done, ended).await;
    }
    // A look that waits for the row as long as a look may last takes half a minute for each of them.
    let took = began.elapsed();
    assert!(took < Duration::from_secs(80), "four runs beside a locked job took {took:?}");
    locked.execute("COMMIT").await;
    scene.until_in_state(REPORT, RunState::Done, 1).await;
}

/// Each answer takes a twelfth of the lease: a renewal asks for few of them, a look for many.
async fn a_node_whose_looks_take_longer_than_its_lease_takes_over(scene: &Scene) {
    let (job, lease) = (ends_from(2), Duration::from_secs(3));
    let dying = scene.node().lease(lease).job(rarely(), job.clone()).start().await.unwrap();
    run_now(scene).await;
    until("it runs", async || job.seen().len() == 1).await;
    drop(dying);
    let server = scene.scratch.url.rsplit('@').next().unwrap().split('/').next().unwrap();
    let proxy = Proxy::start(server).await.unwrap();
    let behind = ScratchDatabase::config_of(&proxy.url_for(&scene.scratch.url));
    let far = executor(&Databases::connect(&behind.into()).await.unwrap()).await;
    let _node = node(&far).lease(lease).job(rarely(), job.clone()).start().await.unwrap();
    proxy.set_delay(lease / 24);
    scene.until_in_state(REPORT, RunState::Done, 1).await;
}

async fn run_sweep_now(scene: &Scene) {
    scene.operations().run_now("sweep", "alice", "a test").await.unwrap();
}

/// Locks the rows for which the condition is true, and no others.
async fn lock(scene: &Scene, table: &str, condition: &str) -> PlainConnection {
    let mut connection = PlainConnection::connect(&scene.scratch.url).await;
    if scene.scratch.dialect != Dialect::Postgres {
        connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
    }
    let table = scene.scratch.eventlog(table);
    let lock = format!("BEGIN; SELECT 1 FROM {table} WHERE {condition} FOR UPDATE");
    connection.execute(&lock).await;
    connection
}

async fn a_run_is_given_up_if_its_nodes_die_again_and_again(scene: &Scene) {
    let job = ends_from(u32::MAX);
    let options = JobOptions::default().attempts(2);
    let start = async || {
        let builder = scene.node();
        builder.job_with(rarely(), job.clone(), options.clone()).start().await.unwrap()
    };
    run_after(scene, start().await, &job, 1).await;
    run_after(scene, start().await, &job, 2).await;
    let _last = start().await;
    scene.until_in_state(REPORT, RunState::Failed, 1).await;
    let run = scene.history(REPORT).await.remove(0);
    assert!(run.error.unwrap().contains("its node was lost"));
    assert_eq!(job.seen().len(), 2);
}

/// Lets a node die once the job was begun for this time.
async fn run_after(scene: &Scene, dying: ekbatan::jobs::JobNode, job: &Report, times: usize) {
    if times == 1 {
        run_now(scene).await;
    }
    until("it runs", async || job.seen().len() == times).await;
    drop(dying);
    scene.declare_nodes_dead().await;
}

async fn a_drained_node_gives_its_runs_back_without_counting_an_attempt(scene: &Scene) {
    let open = Arc::new(Semaphore::new(0));
    let job = {
        let open = open.clone();
        Report::new(move |ctx| {
            let open = open.clone();
            async move {
                let _open = open.acquire().await?;
                crate::scene::write(ctx).await
            }
            .boxed()
        })
    };
    // The run is begun again at once: it is the same one.
    let options = JobOptions::default().at_least(HOUR);
    let start =
        async || scene.node().job_with(rarely(), job.clone(), options.clone()).start().await;
    let draining = start().await.unwrap();
    run_now(scene).await;
    until("it runs", async || job.seen().len() == 1).await;
    draining.drain(Duration::from_millis(10)).await;
    let run = scene.history(REPORT).await.remove(0);
    assert_eq!((run.state, run.attempts, run.node), (RunState::Waiting, 0, None));
    assert_eq!(scene.scratch.count(&scene.scratch.eventlog("job_nodes")).await, 0);
    open.add_permits(1);
    let _node = start().await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    assert_eq!((job.seen()[1].attempt, scene.lines().await.len()), (1, 1));
}

async fn a_drained_node_waits_for_its_runs(scene: &Scene) {
    let (begun, open) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let job = {
        let (begun, open) = (begun.clone(), open.clone());
        Report::new(move |ctx| {
            let (begun, open) = (begun.clone(), open.clone());
            async move {
                begun.notify_one();
                open.notified().await;
                crate::scene::write(ctx).await
            }
            .boxed()
        })
    };
    let draining = scene.node().job(rarely(), job).start().await.unwrap();
    run_now(scene).await;
    begun.notified().await;
    let drained = tokio::spawn(draining.drain(Duration::MAX));
    open.notify_one();
    drained.await.unwrap();
    assert_eq!(scene.in_state(REPORT, RunState::Done).await.len(), 1);
}

/// On threads of its own, because one of them is blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_drain_does_not_wait_for_a_job_that_blocks_its_thread() {
    let scene = &Scene::start(Dialect::Sqlite).await;
    let (gate, closed) = ThreadGate::closed();
    let blocking = Report::new(move |_| closed.clone().block().map(Ok).boxed());
    let endless = Sweep::new(|_| std::future::pending().boxed());
    let node = scene.node().job(rarely(), blocking).job(rarely(), endless.clone());
    let node = node.start().await.unwrap();
    scene.operations().run_now("sweep", "alice", "a test").await.unwrap();
    run_now(scene).await;
    until("both run", async || gate.is_reached() && !endless.seen().is_empty()).await;
    let drained = tokio::time::timeout(Duration::from_secs(60), node.drain(Duration::ZERO)).await;
    assert_eq!(drained.expect("the drain ends").cancelled, 1);
    assert_eq!(scene.in_state("sweep", RunState::Waiting).await.len(), 1);
    assert_eq!(scene.in_state(REPORT, RunState::Running).await.len(), 1);
    // Another node takes the run over, although the thread is still blocked.
    let job = Report::writing();
    let _other = scene.node().job(rarely(), job.clone()).start().await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    assert_eq!(job.seen()[0].attempt, 2);
    drop(gate);
}

async fn a_node_that_was_taken_for_dead_goes_on(scene: &Scene) {
    let job = ends_from(2);
    let _node = scene.node().lease(LONGER).job(rarely(), job.clone()).start().await.unwrap();
    run_now(scene).await;
    until("it runs", async || job.seen().len() == 1).await;
    scene.declare_nodes_dead().await;
    // It joins anew, and finds the run of its former self.
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    assert_eq!(scene.scratch.count(&scene.scratch.eventlog("job_nodes")).await, 1);
}

async fn a_job_that_a_node_does_not_know_is_left_alone(scene: &Scene) {
    scene.store(Report::idle(), JobOptions::default()).await;
    let due = scene.now().await;
    scene.set_next_slot(REPORT, due).await;
    run_now(scene).await;
    let before = scene.scratch.select(&["version"], &version_of(scene)).await;
    let job = Sweep::idle();
    let _node = scene.node().job(rarely(), job.clone()).start().await.unwrap();
    for _ in 0..3 {
        scene.operations().run_now("sweep", "alice", "a test").await.unwrap();
    }
    scene.until_in_state("sweep", RunState::Done, 3).await;
    assert_eq!(scene.scratch.select(&["version"], &version_of(scene)).await, before);
    let run = scene.history(REPORT).await.remove(0);
    assert_eq!((run.state, run.attempts), (RunState::Waiting, 0));
}

fn version_of(scene: &Scene) -> String {
    format!("FROM {} WHERE name = '{REPORT}'", scene.scratch.eventlog("jobs"))
}

async fn a_run_that_takes_too_long_fails(scene: &Scene) {
    let options = JobOptions::default().deadline(Duration::from_millis(50));
    let job = ends_from(u32::MAX);
    let _node = scene.node().job_with(rarely(), job, options).start().await.unwrap();
    run_now(scene).await;
    scene.until_in_state(REPORT, RunState::Failed, 1).await;
    let run = scene.history(REPORT).await.remove(0);
    assert!(run.error.unwrap().contains("did not end within"));
}

async fn a_run_that_its_node_cannot_cancel_is_ended_by_another_one(scene: &Scene) {
    let options = JobOptions::default();
    let job = ends_from(u32::MAX);
    let node = scene.node().lease(LONGER).job_with(rarely(), job.clone(), options);
    let _node = node.start().await.unwrap();
    run_now(scene).await;
    until("it runs", async || job.seen().len() == 1).await;
    // As if its thread was blocked since.
    let past = scene.literal(scene.now().await - chrono::TimeDelta::minutes(1));
    let runs = scene.scratch.eventlog("job_runs");
    scene.scratch.execute(&format!("UPDATE {runs} SET deadline = {past}")).await;
    scene.until_in_state(REPORT, RunState::Failed, 1).await;
    let run = scene.history(REPORT).await.remove(0);
    assert!(run.error.unwrap().contains("could not cancel"));
}

async fn a_panic_fails_its_own_run_only(scene: &Scene) {
    let job = Report::new(|ctx| {
        let is_first = ctx.kind() == ekbatan::jobs::RunKind::Manual;
        async move { if is_first { panic!("deliberate") } else { Ok(()) } }.boxed()
    });
    let other = Sweep::idle();
    let node = scene.node().job(rarely(), job).job(rarely(), other).start().await.unwrap();
    run_now(scene).await;
    scene.until_in_state(REPORT, RunState::Failed, 1).await;
    let run = scene.history(REPORT).await.remove(0);
    assert_eq!(run.error.as_deref(), Some("panicked: deliberate"));
    scene.operations().run_now("sweep", "alice", "a test").await.unwrap();
    scene.until_in_state("sweep", RunState::Done, 1).await;
    node.drain(Duration::MAX).await;
}

/// Panics where it is dropped.
struct Fragile;

impl Drop for Fragile {
    fn drop(&mut self) {
        panic!("deliberate");
    }
}

async fn a_run_that_panics_when_it_is_cancelled_gives_its_place_back(scene: &Scene) {
    let endless = Report::new(|_| {
        async {
            let _fragile = Fragile;
            std::future::pending().await
        }
        .boxed()
    });
    let options = JobOptions::default().deadline(Duration::from_millis(50));
    let node = scene.node().concurrency(1).job_with(rarely(), endless, options);
    let node = node.job(rarely(), Sweep::idle()).start().await.unwrap();
    run_now(scene).await;
    scene.until_in_state(REPORT, RunState::Failed, 1).await;
    let run = scene.history(REPORT).await.remove(0);
    assert_eq!(run.error.as_deref(), Some("panicked: deliberate"));
    scene.operations().run_now("sweep", "alice", "a test").await.unwrap();
    scene.until_in_state("sweep", RunState::Done, 1).await;
    node.drain(Duration::MAX).await;
}

/// A job each of whose runs ends once it gets a permit.
fn closed() -> (Arc<Semaphore>, Report) {
    let open = Arc::new(Semaphore::new(0));
    let of_runs = open.clone();
    let job = Report::new(move |_| {
        let open = of_runs.clone();
        async move {
            open.acquire().await?.forget();
            Ok(())
        }
        .boxed()
    });
    (open, job)
}

async fn a_node_has_no_more_runs_than_it_may(scene: &Scene) {
    let (open, job) = closed();
    let options = JobOptions::default().overlap(Overlap::Allow);
    let node = scene.node().concurrency(1).job_with(rarely(), job.clone(), options);
    let _node = node.start().await.unwrap();
    run_now(scene).await;
    run_now(scene).await;
    for ended in 1..=2 {
        until("it runs", async || job.seen().len() == ended).await;
        let status = scene.operations().job(REPORT).await.unwrap();
        assert_eq!((status.running, status.waiting), (1, 2 - ended));
        open.add_permits(1);
        scene.until_in_state(REPORT, RunState::Done, ended).await;
    }
}

/// It may be too late for the run by then, or another node may have a place.
async fn a_slot_with_a_grace_is_left_open_until_a_place_is_free(scene: &Scene) {
    let (open, job) = closed();
    let grace = JobOptions::default().misfire(Misfire::Skip { grace: HOUR });
    let node = scene.node().concurrency(1).job(rarely(), job.clone());
    let node = node.job_with(rarely(), Sweep::idle(), grace);
    let node = node.job(rarely(), Archive::idle()).job(rarely(), Digest::idle());
    let _node = node.start().await.unwrap();
    run_now(scene).await;
    until("it runs", async || job.seen().len() == 1).await;
    scene.set_next_slot("sweep", scene.now().await).await;
    // Each look takes a step with each job. What decides on the second one comes after the look before.
    for without_grace in ["archive", "digest"] {
        scene.set_next_slot(without_grace, scene.now().await).await;
        scene.until_in_state(without_grace, RunState::Waiting, 1).await;
    }
    assert_eq!(scene.history("sweep").await, []);
    open.add_permits(1);
    scene.until_in_state("sweep", RunState::Done, 1).await;
    scene.until_in_state("archive", RunState::Done, 1).await;
}

async fn a_node_whose_last_renewal_got_no_answer_leaves_no_row_behind(scene: &Scene) {
    let builder = scene.node().lease(HOUR);
    let node = builder.job(rarely(), Report::idle()).start().await.unwrap();
    let nodes = scene.scratch.eventlog("job_nodes");
    scene.scratch.execute(&format!("UPDATE {nodes} SET version = version + 1")).await;
    node.drain(Duration::MAX).await;
    assert_eq!(scene.scratch.count(&nodes).await, 0);
}
