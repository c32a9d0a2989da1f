//! The body of a worker process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ekbatan::lock::{LockKey, LockProvider};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::worker_process::{order, report, requests};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{ORDER, Order, Record, Report, Request, Worker, finished};
use crate::attack::Attacker;
use crate::history::Answer;
use crate::ledger::{Between, Depositor, Ledger};
use crate::providers::Kind;
use crate::server::LockServer;

/// How long a worker waits for a lock.
const WAIT: Duration = Duration::from_secs(60);

/// In a worker process: the worker. As a test: starts a worker and sends it commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_redis_and_postgres_executes_its_commands() {
    if let Some(order) = order(ORDER) {
        return work(order).await;
    }
    let (server, ledger) = (LockServer::start(Kind::Redis).await, Ledger::create().await);
    let record = Record::default();
    let mut worker = Worker::start(Kind::Redis, &server.url, &ledger.url, &record).await;
    let account = "a".to_owned();
    worker.send(&Request::Deposit { account, hold: WAIT, fenced: true, waits: true });
    assert!(matches!(worker.receive().await, Report::Read));
    assert_eq!(server.held().await.len(), 1);
    worker.send(&Request::GoOn);
    assert!(matches!(worker.receive().await, Report::Done(Some(Answer::Committed))));
    worker.send(&Request::Spin { tasks: 1, keep: Duration::ZERO });
    assert!(matches!(worker.receive().await, Report::Spins));
    worker.send(&Request::Tally);
    assert!(matches!(worker.receive().await, Report::Served(1..)));
    worker.stop().await;
    let history = finished(&record, &ledger, &server).await;
    history.check().unwrap();
    assert_eq!((history.grants.len(), history.commits.len()), (1, 1));
}

async fn work(order: Order) {
    let mut requests = requests();
    let depositor = Depositor {
        ledger: Ledger::open(&order.ledger).await,
        locks: order.kind.connect(&order.locks).await,
        observe: Arc::new(|observation| report(&Report::Observed(observation))),
    };
    let (stopped, go_on) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
    let served = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    report(&Report::Ready);
    loop {
        match requests.recv().await.unwrap() {
            Request::Contend { tasks: count, accounts, hold } => {
                for task in 0..count {
                    tasks.spawn(contend(depositor.clone(), task, accounts, hold, stopped.clone()));
                }
            }
            Request::Deposit { account, hold, fenced, waits } => {
                let (depositor, go_on) = (depositor.clone(), go_on.clone());
                let between: Between = Arc::new(move || {
                    report(&Report::Read);
                    let go_on = go_on.clone();
                    async move {
                        if waits {
                            go_on.notified().await
                        }
                    }
                    .boxed()
                });
                let options = LockOptions::wait(WAIT).hold(hold);
                tasks.spawn(async move {
                    let done = depositor.deposit(&account, options, fenced, Some(between)).await;
                    report(&Report::Done(done));
                });
            }
            Request::GoOn => go_on.notify_one(),
            Request::HandOn { key, long, short } => {
                tasks.spawn(hand_on(depositor.locks.clone(), LockKey::named(&key), long, short));
            }
            Request::Spin { tasks: count, keep } => {
                for _ in 0..count {
                    let (served, stopped) = (served.clone(), stopped.clone());
                    tasks.spawn(spin(depositor.locks.clone(), keep, served, stopped));
                }
            }
            Request::Attack { seed, tasks: count, keys } => {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..count {
                    let attacker = Attacker {
                        locks: depositor.locks.clone(),
                        depositor: Some(depositor.clone()),
                        observe: depositor.observe.clone(),
                        keys,
                    };
                    tasks.spawn(attacker.attack(random.fork(), stopped.clone()));
                }
            }
            Request::Mark => served.store(0, Ordering::SeqCst),
            Request::Tally => report(&Report::Served(served.load(Ordering::SeqCst))),
            Request::Stop => break,
        }
    }
    stopped.store(true, Ordering::SeqCst);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    depositor.locks.close().await;
    report(&Report::Stopped);
}

async fn hand_on(locks: LockProvider, key: LockKey, long: Duration, short: Duration) {
    let first = locks.acquire(&key, long).await.unwrap();
    let mut next = Box::pin(locks.acquire(&key, short));
    assert!((&mut next).now_or_never().is_none(), "the key is held");
    let (released, next) = tokio::join!(first.release(), next);
    assert!(released);
    let _kept = next.unwrap();
    // A session tells its server with its next statement when the lock ends.
    locks.inspect(&LockKey::named("another")).await.unwrap();
    report(&Report::Read);
    std::future::pending().await
}

/// Deposits on all accounts in turn.
async fn contend(
    depositor: Depositor,
    task: usize,
    accounts: usize,
    hold: Duration,
    stopped: Arc<AtomicBool>,
) {
    let options = LockOptions::wait(WAIT).hold(hold);
    for n in task.. {
        if stopped.load(Ordering::SeqCst) {
            return;
        }
        let account = format!("account {}", n % accounts);
        if depositor.deposit(&account, options, true, None).await.is_none() {
            // The server is down: retry without keeping the processor busy.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn spin(
    locks: LockProvider,
    keep: Duration,
    served: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
) {
    let key = LockKey::named("k");
    let mut spins = false;
    while !stopped.load(Ordering::SeqCst) {
        let lease = locks.acquire(&key, WAIT).await.unwrap();
        served.fetch_add(1, Ordering::SeqCst);
        if !std::mem::replace(&mut spins, true) {
            report(&Report::Spins);
        }
        if !keep.is_zero() {
            tokio::time::sleep(keep).await;
        }
        lease.release().await;
    }
}
