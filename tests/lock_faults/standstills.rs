//! Two processes deposit on the same accounts, and one of them stands still beyond its hold again
//! and again: no money is lost, and what a holder commits too late is refused.

use std::time::{Duration, Instant};

use support::seed;
use support::soak::rounds;

use crate::history::Answer;
use crate::ledger::{Ledger, now};
use crate::providers::Kind;
use crate::server::LockServer;
use crate::worker::{Record, Request, Worker, finished};

on_providers! { [etcd Etcd] no_money_is_lost_however_often_a_holder_stands_still }
on_providers! { @stores no_money_is_lost_however_often_a_holder_stands_still }

const HOLD: Duration = Duration::from_millis(300);
const ACCOUNTS: usize = 2;
const TASKS: usize = 2;

async fn no_money_is_lost_however_often_a_holder_stands_still(kind: Kind) {
    let lasts = Duration::from_secs(rounds(8, 60) as u64);
    let mut random = seed::random();
    let (server, ledger) = (LockServer::start(kind).await, Ledger::create().await);
    let record = Record::default();
    let mut workers = Vec::new();
    for _ in 0..2 {
        let mut worker = Worker::start(kind, &server.url, &ledger.url, &record).await;
        worker.send(&Request::Contend { tasks: TASKS, accounts: ACCOUNTS, hold: HOLD });
        workers.push(worker);
    }
    let (begun, mut standstills) = (Instant::now(), 0);
    // At least two, however long a busy machine takes for one.
    while begun.elapsed() < lasts || standstills < 2 {
        let (stopped, other) = if standstills % 2 == 0 { (0, 1) } else { (1, 0) };
        tokio::time::sleep(Duration::from_micros(random.u64(..20_000))).await;
        let from = now();
        workers[stopped].freeze();
        // Its keys are free after its hold, and the other one gets them.
        tokio::time::sleep(HOLD + HOLD / 2).await;
        let while_stopped = now();
        workers[other].commits_after(while_stopped).await;
        workers[stopped].thaw();
        record.lock().unwrap().faults.push(from..=now());
        standstills += 1;
        let after = now();
        workers[stopped].commits_after(after).await;
    }
    for worker in workers {
        worker.stop().await;
    }
    let history = finished(&record, &ledger, &server).await;
    let refused = history.answers.iter().filter(|(_, _, answer)| *answer == Answer::NotCommitted);
    println!(
        "{kind:?}: {standstills} standstills, {} commits, {} refused, in {:?}",
        history.commits.len(),
        refused.count(),
        begun.elapsed()
    );
    history.check().unwrap();
    assert!(standstills > 1);
}
