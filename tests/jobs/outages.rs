//! What a node does while its server does not answer.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use ekbatan::config::DataSourceConfig;
use ekbatan::jobs::{JobNode, JobOperations, JobOptions, Overlap, RunState};
use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use futures_util::FutureExt;
use support::{PlainConnection, until};
use tokio::sync::Semaphore;

use crate::scene::{REPORT, Report, Scene, executor, node, rarely, try_executor};
use crate::slots::stuck;

on_every_database! {
    only postgres and mysql and mariadb:
    a_drain_ends_although_the_server_does_not_answer,
    a_start_whose_answer_was_lost_counts_no_attempt,
    a_node_whose_lease_is_over_waits_a_whole_lease_for_its_renewal,
    a_node_that_drains_ends_its_runs_with_its_lease,
}

mod of_a_file {
    use super::*;

    on_every_database! { on_sqlite_only: a_run_that_is_done_stays_so_although_its_end_waits_for_a_lock }
}

async fn a_run_that_is_done_stays_so_although_its_end_waits_for_a_lock(scene: &Scene) {
    let config = scene.scratch.config().connection_timeout(Duration::from_secs(1));
    let impatient = executor(&Databases::connect(&config.into()).await.unwrap()).await;
    let open = Arc::new(Semaphore::new(0));
    let job = stuck(&open);
    let options = JobOptions::default().attempts(1);
    // The node itself is not lost.
    let builder = node(&impatient).lease(Duration::from_secs(60 * 60));
    let node = builder.job_with(rarely(), job.clone(), options).start().await.unwrap();
    run_now(scene).await;
    until("it runs", async || job.seen().len() == 1).await;
    let mut other = scene.scratch.connect().await;
    other.execute("BEGIN IMMEDIATE").await;
    open.add_permits(1);
    // The end is tried meanwhile, and is refused.
    let operations = JobOperations::new(impatient.databases());
    for _ in 0..3 {
        operations.pause(REPORT, "alice", "a test").await.unwrap_err();
    }
    other.execute("ROLLBACK").await;
    until("it has ended", async || scene.operations().job(REPORT).await.unwrap().running == 0)
        .await;
    node.drain(Duration::MAX).await;
    let run = scene.history(REPORT).await.remove(0);
    assert_eq!((run.state, run.error, job.seen().len()), (RunState::Done, None, 1));
}

/// A proxy of the server, whose connections a test stalls and cuts.
async fn proxy_of(scene: &Scene) -> Proxy {
    let url = &scene.scratch.url;
    let server = url.rsplit('@').next().unwrap().split('/').next().unwrap();
    Proxy::start(server).await.unwrap()
}

/// A data source behind a proxy, which waits so long for an answer.
fn config_of(scene: &Scene, proxy: &Proxy, longest: Duration) -> DataSourceConfig {
    let config = support::ScratchDatabase::config_of(&proxy.url_for(&scene.scratch.url));
    config.read_timeout(longest).commit_timeout(longest)
}

async fn run_now(scene: &Scene) {
    scene.operations().run_now(REPORT, "alice", "a test").await.unwrap();
}

async fn a_drain_ends_although_the_server_does_not_answer(scene: &Scene) {
    const RUNS: usize = 40;
    let proxy = proxy_of(scene).await;
    let config = config_of(scene, &proxy, Duration::from_secs(3));
    let endless = Report::new(|_| std::future::pending().boxed());
    let options = JobOptions::default().overlap(Overlap::Allow);
    let start = async || -> Result<JobNode, Box<dyn Error>> {
        let databases = Databases::connect(&config.clone().into()).await?;
        let builder = node(&try_executor(&databases).await?);
        Ok(builder.job_with(rarely(), endless.clone(), options.clone()).start().await?)
    };
    let mut started = None;
    // What comes before the outage may take longer than three seconds on a busy machine.
    until("the node has started", async || {
        started = start().await.ok();
        started.is_some()
    })
    .await;
    let node = started.unwrap();
    for _ in 0..RUNS {
        run_now(scene).await;
    }
    until("all run", async || endless.seen().len() == RUNS).await;
    proxy.stall();
    // One after another, they would take three seconds each.
    let drained =
        tokio::time::timeout(Duration::from_secs(80), node.drain(Duration::from_millis(10)));
    drained.await.expect("the drain ends");
}

async fn a_start_whose_answer_was_lost_counts_no_attempt(scene: &Scene) {
    let proxy = proxy_of(scene).await;
    let config = config_of(scene, &proxy, Duration::from_secs(600));
    let executor = executor(&Databases::connect(&config.into()).await.unwrap()).await;
    let job = Report::writing();
    let options = JobOptions::default().attempts(1);
    let _node = node(&executor).job_with(rarely(), job, options).start().await.unwrap();
    let mut other = PlainConnection::connect(&scene.scratch.url).await;
    let jobs = scene.scratch.eventlog("jobs");
    other.execute(&format!("BEGIN; SELECT 1 FROM {jobs} FOR UPDATE")).await;
    run_now(scene).await;
    // Its answer does not come through, although it commits.
    until("the start waits for the row", async || is_blocked(scene).await).await;
    proxy.stall();
    other.execute("COMMIT").await;
    scene.until_in_state(REPORT, RunState::Running, 1).await;
    proxy.cut();
    proxy.resume();
    proxy.restore();
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    let run = scene.history(REPORT).await.remove(0);
    assert_eq!((run.attempts, run.error, scene.lines().await.len()), (1, None, 1));
}

async fn a_node_whose_lease_is_over_waits_a_whole_lease_for_its_renewal(scene: &Scene) {
    const LEASE: Duration = Duration::from_secs(10);
    let proxy = proxy_of(scene).await;
    let config = config_of(scene, &proxy, Duration::from_secs(600));
    let executor = executor(&Databases::connect(&config.into()).await.unwrap()).await;
    let node = node(&executor).lease(LEASE).job(rarely(), Report::idle());
    let _node = node.start().await.unwrap();
    proxy.stall();
    tokio::time::sleep(LEASE * 2).await;
    // A renewal with a new connection takes longer than the pause between two of them, and less than a lease.
    proxy.set_delay(LEASE / 40);
    proxy.resume();
    run_now(scene).await;
    scene.until_in_state(REPORT, RunState::Done, 1).await;
}

async fn a_node_that_drains_ends_its_runs_with_its_lease(scene: &Scene) {
    let proxy = proxy_of(scene).await;
    let config = config_of(scene, &proxy, Duration::from_secs(3));
    let executor = executor(&support::connected(&config.into()).await).await;
    let held = Arc::new(());
    let endless = {
        let held = held.clone();
        Report::new(move |_| {
            let held = held.clone();
            async move {
                std::future::pending::<()>().await;
                drop(held);
                Ok(())
            }
            .boxed()
        })
    };
    let node = node(&executor).lease(Duration::from_secs(5)).job(rarely(), endless);
    let node = node.start().await.unwrap();
    run_now(scene).await;
    let of_the_job = 2;
    until("it runs", async || Arc::strong_count(&held) > of_the_job).await;
    let drained = tokio::spawn(node.drain(Duration::MAX));
    // Once it drains, it does not look at the jobs any more.
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.stall();
    until("it is dropped", async || Arc::strong_count(&held) == of_the_job).await;
    drained.await.unwrap();
}

/// Whether a session of the database waits for the lock of a row.
async fn is_blocked(scene: &Scene) -> bool {
    let waiting = match scene.scratch.dialect {
        support::Dialect::Postgres => {
            "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        }
        _ => {
            "FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' \
             AND trx_mysql_thread_id IN (SELECT id FROM information_schema.processlist WHERE db = database())"
        }
    };
    // The servers return some of it from a cache that frequent queries keep from being renewed.
    tokio::time::sleep(Duration::from_millis(150)).await;
    scene.scratch.select(&["count(*)"], waiting).await[0][0].as_deref() != Some("0")
}
