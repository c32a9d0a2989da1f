//! Four processes that contend for one key all the time: none of them starves.

use std::time::Duration;

use crate::ledger::Ledger;
use crate::providers::Kind;
use crate::server::LockServer;
use crate::worker::{Record, Said, Task, Worker};

on_every_provider! {
    every_process_gets_at_least_half_of_its_share,
    every_process_gets_its_share_of_a_key_that_is_kept,
}

const PROCESSES: u64 = 4;

/// How many of each process want the key.
const TASKS: usize = 3;

/// For how many seconds, unless `EKBATAN_TEST_CONTENTION_SECONDS` says otherwise.
const SECONDS: u64 = 8;

async fn every_process_gets_at_least_half_of_its_share(kind: Kind) {
    contend(kind, Duration::ZERO).await;
}

/// So long that a process whose turn is over is back before all the others had theirs.
async fn every_process_gets_its_share_of_a_key_that_is_kept(kind: Kind) {
    contend(kind, Duration::from_millis(5)).await;
}

async fn contend(kind: Kind, keep: Duration) {
    let given = std::env::var("EKBATAN_TEST_CONTENTION_SECONDS").ok();
    let seconds = given.and_then(|seconds| seconds.parse().ok()).unwrap_or(SECONDS);
    let (server, ledger) = (LockServer::start(kind).await, Ledger::create().await);
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        workers.push(Worker::start(kind, &server.url, &ledger.url, &Record::default()).await);
    }
    for worker in &mut workers {
        worker.tell(&Task::Spin { tasks: TASKS, keep });
    }
    for worker in &mut workers {
        assert!(matches!(worker.hear().await, Said::Spins));
    }
    workers.iter_mut().for_each(|worker| worker.tell(&Task::Mark));
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    workers.iter_mut().for_each(|worker| worker.tell(&Task::Tally));
    let mut served = Vec::new();
    for worker in &mut workers {
        loop {
            // Others of its tasks may have come to spin only now.
            match worker.hear().await {
                Said::Spins => {}
                Said::Served(count) => break served.push(count),
                other => panic!("{other:?}"),
            }
        }
    }
    for worker in workers {
        worker.stop().await;
    }
    println!("{kind:?}: served {served:?} in {seconds} s, each kept for {keep:?}");
    let fair = served.iter().sum::<u64>() / PROCESSES;
    assert!(served.iter().all(|count| *count * 2 >= fair), "{served:?} of {fair} each");
    assert_eq!(server.held().await, Vec::<String>::new());
}
