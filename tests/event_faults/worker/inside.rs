//! The body of a worker process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ekbatan::events::{HandlerOptions, Node, NodeBuilder};
use ekbatan::prelude::*;
use support::Dialect;
use support::worker_process::{order, report, requests};

use super::handlers::{Posting, Runs};
use super::{BY_STEP, LEASE, ORDER, ORDERED, Order, Report, Request, UNORDERED};
use crate::accounts::{self, Credit, Crediting};
use crate::cluster::Cluster;
use crate::history::Answer;

/// How many calls a worker has under way.
const TASKS: usize = 4;

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
    let held = cluster.workers[0].hold(&accounts).await;
    assert!(cluster.is_waiting(&held).await);
    cluster.workers[0].send(&Request::GoOn);
    let (history, _) = cluster.end().await;
    history.check().unwrap();
    let committed = history.answers.iter().filter(|(_, answer)| *answer == Answer::Committed);
    assert!(committed.count() >= 20);
    assert_eq!(history.effects.len(), history.events.len() * 3);
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
    // Its commits know no handlers: nodes give their events the deliveries.
    let bare = accounts::executor(&databases).await;
    let mut random = fastrand::Rng::with_seed(order.seed);
    let runs = Runs::new(random.u64(..));
    let node = start(&executor, order.name, &runs).await;
    report(&Report::Ready);
    loop {
        match requests.recv().await.unwrap() {
            Request::Commit { accounts, calls } => {
                let (executor, bare, random) = (executor.clone(), bare.clone(), random.fork());
                tokio::spawn(async move {
                    commit([executor, bare], accounts, calls, random).await;
                    report(&Report::Committed);
                });
            }
            Request::Hold => runs.hold.store(true, Ordering::SeqCst),
            Request::GoOn => runs.go_on.notify_one(),
            Request::Stop => break,
        }
    }
    node.drain(Duration::from_secs(60)).await;
    report(&Report::Stopped);
}

/// Starts a node that finds what others commit soon, and that is taken for dead soon.
async fn start(executor: &ActionExecutor, name: String, runs: &Arc<Runs>) -> Node {
    let quick = |options: HandlerOptions| {
        options.retry(Duration::from_millis(1), Duration::from_millis(20)).concurrency(4)
    };
    let node: NodeBuilder = Node::builder(executor)
        .name(name)
        .lease(LEASE)
        .poll(Duration::from_millis(1), Duration::from_millis(200))
        .handler_with(Posting::<ORDERED>(runs.clone()), quick(HandlerOptions::default()))
        .handler_with(Posting::<UNORDERED>(runs.clone()), quick(HandlerOptions::unordered()))
        .handler_with(Posting::<BY_STEP>(runs.clone()), quick(HandlerOptions::default()));
    node.start().await.unwrap()
}

/// Credits accounts until so many calls are committed.
async fn commit(
    executors: [ActionExecutor; 2],
    accounts: Vec<Uuid>,
    calls: usize,
    mut random: fastrand::Rng,
) {
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let (executors, accounts, mut random) =
            (executors.clone(), accounts.clone(), random.fork());
        let share = (calls + task) / TASKS;
        tasks.spawn(async move {
            let choose = |random: &mut fastrand::Rng| {
                (random.usize(..accounts.len()), random.usize(..4) / 3)
            };
            let (mut account, mut bare) = choose(&mut random);
            for _ in 0..share {
                // Several versions one after another are claimed as they are committed.
                if random.u8(..3) == 0 {
                    (account, bare) = choose(&mut random);
                }
                while !credit(&executors[bare], accounts[account]).await {
                    // A server that is down: another try that does not keep the processor busy.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// Whether the call is answered as committed.
async fn credit(executor: &ActionExecutor, account: Uuid) -> bool {
    let call = executor.execute(&Credit, Crediting { account });
    let action = call.action_id().to_string();
    let answer = match call.await {
        Ok(()) => Answer::Committed,
        Err(ExecuteError::CommitUnknown { .. }) => Answer::Unknown,
        Err(_) => Answer::NotCommitted,
    };
    report(&Report::Answered { action, answer });
    answer == Answer::Committed
}
