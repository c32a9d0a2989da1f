//! The body of a worker process.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::events::{HandlerOptions, Node, NodeBuilder};
use ekbatan::jobs::RunState;
use ekbatan::prelude::*;
use support::Dialect;
use support::worker_process::{order, report, requests};

use super::calls::FailingServe;
use super::commits::{Executors, commit};
use super::handlers::{Posting, Runs};
use super::{BY_STEP, LEASE, ORDER, ORDERED, Order, Report, Request, RunKind, UNORDERED, jobs};
use crate::accounts;
use crate::cluster::Cluster;
use crate::history::Answer;
use crate::requests::Serve;

/// In a worker process: the worker. As a test: starts workers and sends them requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_on_sqlite_executes_its_requests() {
    if let Some(order) = order(ORDER) {
        return work(order).await;
    }
    let mut cluster = Cluster::start(Dialect::Sqlite, 1, fastrand::Rng::with_seed(7)).await;
    let accounts = cluster.accounts.clone();
    cluster.workers[0].commit(&accounts, 20);
    cluster.workers[0].commits().await;
    for kind in [RunKind::Delivery, RunKind::Call, RunKind::Job] {
        let held = cluster.workers[0].hold(kind, &accounts).await;
        assert!(cluster.is_waiting(&held).await);
        cluster.workers[0].send(&Request::GoOn);
    }
    cluster.wait_for_jobs().await;
    let (history, _) = cluster.end().await;
    history.check().unwrap();
    let committed = history.answers.iter().filter(|(_, answer)| *answer == Answer::Committed);
    assert!(committed.count() >= 20);
    assert_eq!(history.effects.len(), history.events.len() * 3);
    assert!(history.calls.counts().effects > 0);
    for job in &history.jobs {
        assert!(job.count(RunState::Done) > 0, "{job:?}");
    }
}

async fn work(order: Order) {
    // What workers log is for whoever looks into a failure.
    if std::env::var("RUST_LOG").is_ok() {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .init();
    }
    let mut requests = requests();
    let databases = accounts::connect(&order.urls).await;
    let executor = accounts::executor(&databases).await;
    let bare = accounts::executor(&databases).await;
    let mut random = fastrand::Rng::with_seed(order.seed);
    let runs = Runs::new(random.u64(..));
    let node = start(&executor, &order.name, &runs).await;
    let jobs = jobs::start(&executor, &order.name, &runs).await;
    let executors = Executors { executor, bare };
    report(&Report::Ready);
    loop {
        match requests.recv().await.unwrap() {
            Request::Commit { accounts, calls } => {
                let (executors, random) = (executors.clone(), random.fork());
                tokio::spawn(async move {
                    commit(executors, accounts, calls, random).await;
                    report(&Report::Committed);
                });
            }
            Request::Hold(kind) => runs.hold_next(kind),
            Request::GoOn => runs.go_on(),
            Request::Stop => break,
        }
    }
    let grace = Duration::from_secs(60);
    tokio::join!(node.drain(grace), jobs.drain(grace));
    report(&Report::Stopped);
}

/// Starts a node that finds what others commit soon, and that is taken for dead soon.
async fn start(executor: &ActionExecutor, name: &str, runs: &Arc<Runs>) -> Node {
    let serve = Serve::new(executor.databases());
    let serve = FailingServe { runs: runs.clone(), serve };
    let quick = |options: HandlerOptions| {
        options.retry(Duration::from_millis(1), Duration::from_millis(20)).concurrency(4)
    };
    let node: NodeBuilder = Node::builder(executor)
        .name(name)
        .lease(LEASE)
        .poll(Duration::from_millis(1), Duration::from_millis(200))
        .handler_with(Posting::<ORDERED>(runs.clone()), quick(HandlerOptions::default()))
        .handler_with(Posting::<UNORDERED>(runs.clone()), quick(HandlerOptions::unordered()))
        .handler_with(Posting::<BY_STEP>(runs.clone()), quick(HandlerOptions::default()))
        .action_with(serve, quick(HandlerOptions::default()));
    node.start().await.unwrap()
}
