//! Processes whose clocks are wrong by an hour, in both directions, beside one whose clock is right.

use std::time::Duration;

use crate::ledger::{Ledger, SKEW_SECONDS, now};
use crate::providers::Kind;
use crate::server::LockServer;
use crate::worker::{Record, Request, Worker, finished};
use crate::wrong_clock::shifted;
use support::soak::rounds;

on_providers! { [hbase HBase] a_process_whose_clock_is_wrong_keeps_the_order }

const HOLD: Duration = Duration::from_millis(400);

const HOUR: i64 = 3_600;

async fn a_process_whose_clock_is_wrong_keeps_the_order(kind: Kind) {
    let (server, ledger) = (LockServer::start(kind).await, Ledger::create().await);
    let record = Record::default();
    let mut workers = Vec::new();
    for skew in [HOUR, 0, -HOUR] {
        let mut more = Vec::new();
        if skew != 0 {
            more = shifted(&format!("{skew:+}s"));
            more.push((SKEW_SECONDS, skew.to_string()));
        }
        let mut worker = Worker::start_with(kind, &server.url, &ledger.url, &record, &more).await;
        worker.send(&Request::Contend { tasks: 2, accounts: 3, hold: HOLD });
        workers.push(worker);
    }
    for _ in 0..rounds(5, 100) {
        for stopped in 0..workers.len() {
            let moment = now();
            for worker in &mut workers {
                worker.commits_after(moment).await;
            }
            // It stands still for longer than its hold. What it then commits is late.
            workers[stopped].freeze();
            tokio::time::sleep(HOLD * 2).await;
            workers[stopped].thaw();
        }
    }
    for worker in workers {
        worker.stop().await;
    }
    let history = finished(&record, &ledger, &server).await;
    history.check().unwrap();
    let commits = history.commits.len();
    println!("{kind:?}: {commits} commits of three processes, two of which have a wrong clock");
    assert!(commits > 30, "{commits}");
}
