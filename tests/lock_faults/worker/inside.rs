//! What a process does that was started as a worker.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ekbatan::prelude::*;
use futures_util::FutureExt;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::{ORDER, OURS, Order, Record, Said, Task, Worker, finished};
use crate::history::Answer;
use crate::ledger::{Between, Depositor, Ledger};
use crate::providers::Kind;
use crate::server::LockServer;

/// How long a worker waits for a lock.
const WAIT: Duration = Duration::from_secs(60);

/// As a worker, works; as a test, starts one and sees that it does as it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_executes_its_commands() {
    if let Ok(order) = std::env::var(ORDER) {
        return work(serde_json::from_str(&order).unwrap()).await;
    }
    let (server, ledger) = (LockServer::start(Kind::Redis).await, Ledger::create().await);
    let record = Record::default();
    let mut worker = Worker::start(Kind::Redis, &server.url, &ledger.url, &record).await;
    let account = "a".to_owned();
    worker.tell(&Task::Deposit { account, hold: WAIT, fenced: true, waits: true });
    assert!(matches!(worker.hear().await, Said::Read));
    assert_eq!(server.held().await.len(), 1);
    worker.tell(&Task::GoOn);
    assert!(matches!(worker.hear().await, Said::Done(Some(Answer::Committed))));
    worker.tell(&Task::Spin { tasks: 1, keep: Duration::ZERO });
    assert!(matches!(worker.hear().await, Said::Spins));
    worker.tell(&Task::Tally);
    assert!(matches!(worker.hear().await, Said::Served(1..)));
    worker.stop().await;
    let history = finished(&record, &ledger, &server).await;
    history.check().unwrap();
    assert_eq!((history.grants.len(), history.commits.len()), (1, 1));
}

fn say(said: &Said) {
    let line = format!("{OURS}{}\n", serde_json::to_string(said).unwrap());
    let mut out = std::io::stdout().lock();
    // Whoever listened is gone if this fails, and so are we in a moment.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// What it is told; ends the process when nobody tells it anything any more.
fn told() -> mpsc::UnboundedReceiver<Task> {
    let (tell, told) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = tell.send(serde_json::from_str(&line).unwrap());
        }
        std::process::exit(1);
    });
    told
}

async fn work(order: Order) {
    // The test harness has begun a line of its own.
    println!();
    let mut told = told();
    let depositor = Depositor {
        ledger: Ledger::open(&order.ledger).await,
        locks: order.kind.connect(&order.locks).await,
        tell: Arc::new(|told| say(&Said::Told(told))),
    };
    let (stopped, go_on) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
    let served = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    say(&Said::Ready);
    loop {
        match told.recv().await.unwrap() {
            Task::Contend { tasks: count, accounts, hold } => {
                for task in 0..count {
                    tasks.spawn(contend(depositor.clone(), task, accounts, hold, stopped.clone()));
                }
            }
            Task::Deposit { account, hold, fenced, waits } => {
                let (depositor, go_on) = (depositor.clone(), go_on.clone());
                let between: Between = Arc::new(move || {
                    say(&Said::Read);
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
                    say(&Said::Done(done));
                });
            }
            Task::GoOn => go_on.notify_one(),
            Task::Spin { tasks: count, keep } => {
                for _ in 0..count {
                    let (served, stopped) = (served.clone(), stopped.clone());
                    tasks.spawn(spin(depositor.locks.clone(), keep, served, stopped));
                }
            }
            Task::Mark => served.store(0, Ordering::SeqCst),
            Task::Tally => say(&Said::Served(served.load(Ordering::SeqCst))),
            Task::Stop => break,
        }
    }
    stopped.store(true, Ordering::SeqCst);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    depositor.locks.close().await;
    say(&Said::Stopped);
}

/// Deposits on one account after the other.
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
            // The server is away: not so often that it has nothing else to do.
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
            say(&Said::Spins);
        }
        if !keep.is_zero() {
            tokio::time::sleep(keep).await;
        }
        lease.release().await;
    }
}
