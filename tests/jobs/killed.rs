//! A process that is killed while it runs a job. The test binary starts itself as that process.

use std::time::{Duration, Instant};

use ekbatan::jobs::{RunContext, RunState};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use support::worker_process::{WorkerProcess, order, report};
use support::{Dialect, ScratchDatabase};

use crate::scene::{
    Failure, REPORT, Report, Scene, WriteLine, Writing, executor, node, rarely, write,
};

/// The variable that holds the URL of the database, in the process that is killed.
const ORDER: &str = "EKBATAN_TEST_KILLED_JOB_NODE";

/// The shortest lease.
const LEASE: Duration = Duration::from_secs(1);
/// A lease that a slow machine keeps, and after whose fifth a node looks around.
const LONGER: Duration = Duration::from_secs(5);

support::on_every_database! {
    #[tokio::test(flavor = "multi_thread")]
    |dialect| dialect;
    a_run_of_a_process_that_is_killed_has_its_effect_once,
}

/// Writes a line by a step.
fn first<'a>(ctx: &'a RunContext<'_>) -> BoxFuture<'a, Result<(), Failure>> {
    async move { Ok(ctx.step("first", &WriteLine, Writing::of(ctx)).await?) }.boxed()
}

async fn a_run_of_a_process_that_is_killed_has_its_effect_once(dialect: Dialect) {
    if let Some(url) = order::<String>(ORDER) {
        return run_until_killed(&url).await;
    }
    let scene = Scene::start(dialect).await;
    let job = Report::new(|ctx| {
        async move {
            first(ctx).await?;
            write(ctx).await
        }
        .boxed()
    });
    scene.store(job.clone(), ekbatan::jobs::JobOptions::default()).await;
    scene.operations().run_now(REPORT, "alice", "a test").await.unwrap();
    let case = match dialect {
        Dialect::Sqlite => "sqlite",
        Dialect::Postgres => "postgres",
        Dialect::MySql => "mysql",
        Dialect::MariaDb => "mariadb",
    };
    let test = format!("killed::{case}::a_run_of_a_process_that_is_killed_has_its_effect_once");
    let mut process = WorkerProcess::<()>::start(&test, ORDER, &scene.scratch.url, Some);
    // It has committed a step of its run.
    process.receive().await;
    process.kill();
    assert_eq!(scene.lines().await.len(), 1);
    let cut_off = scene.in_state(REPORT, RunState::Running).await;
    assert_eq!(cut_off.len(), 1);
    // A slow machine may have cut it off before, because the lease is short.
    let before = cut_off[0].attempts;

    let began = Instant::now();
    let _node = scene.node().lease(LONGER).job(rarely(), job.clone()).start().await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    assert!(began.elapsed() >= LEASE, "nobody takes over before the lease is over");
    let attempts: Vec<u32> = job.seen().iter().map(|run| run.attempt).collect();
    assert_eq!(attempts, [before + 1]);
    let runs = scene.history(REPORT).await;
    assert_eq!((runs.len(), runs[0].attempts), (1, before + 1));
    assert_eq!(scene.lines().await.len(), 2, "that of the step, and that of the last action");
}

/// The process that is killed.
async fn run_until_killed(url: &str) {
    let databases = Databases::connect(&ScratchDatabase::config_of(url).into()).await.unwrap();
    let executor = executor(&databases).await;
    let job = Report::new(|ctx| {
        async move {
            first(ctx).await?;
            report(&());
            std::future::pending().await
        }
        .boxed()
    });
    let _node = node(&executor).lease(LEASE).job(rarely(), job).start().await.unwrap();
    std::future::pending::<()>().await;
}
