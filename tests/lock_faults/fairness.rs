//! Four processes contend for one key without a pause: none of them starves.
//!
//! The shares are compared [`LONGEST`] after there were enough leases, or earlier if they are fair by then: over a
//! short time they also depend on which process the machine lets run.

use std::time::{Duration, Instant};

use crate::ledger::Ledger;
use crate::providers::Kind;
use crate::server::LockServer;
use crate::worker::{Record, Report, Request, Worker};
use support::soak::rounds;

on_every_provider_with_deposits! {
    every_process_gets_at_least_half_of_its_share,
    every_process_gets_its_share_of_a_key_that_is_kept,
}

const PROCESSES: u64 = 4;

/// The number of tasks of each process that want the key.
const TASKS: usize = 3;

/// So many leases that shares can be compared, also on a slow machine.
const ENOUGH: u64 = 100 * PROCESSES;

const LONGEST: Duration = Duration::from_secs(30);

async fn every_process_gets_at_least_half_of_its_share(kind: Kind) {
    contend(kind, Duration::ZERO).await;
}

/// So long that a process whose turn is over asks again before all others had theirs.
async fn every_process_gets_its_share_of_a_key_that_is_kept(kind: Kind) {
    contend(kind, Duration::from_millis(5)).await;
}

async fn contend(kind: Kind, keep: Duration) {
    let least = Duration::from_secs(rounds(2, 30) as u64);
    let (server, ledger) = (LockServer::shared(kind).await, Ledger::create().await);
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        workers.push(Worker::start(kind, &server.url, &ledger.url, &Record::default()).await);
    }
    for worker in &mut workers {
        worker.send(&Request::Spin { tasks: TASKS, keep });
    }
    for worker in &mut workers {
        assert!(matches!(worker.receive().await, Report::Spins));
    }
    workers.iter_mut().for_each(|worker| worker.send(&Request::Mark));
    let begun = Instant::now();
    let mut enough_since = None;
    let served = loop {
        tokio::time::sleep(least / 4).await;
        let served = tally(&mut workers).await;
        if begun.elapsed() >= least && served.iter().sum::<u64>() >= ENOUGH {
            let since = *enough_since.get_or_insert_with(Instant::now);
            if are_fair(&served) || since.elapsed() >= LONGEST {
                break served;
            }
        }
    };
    let took = begun.elapsed();
    for worker in workers {
        worker.stop().await;
    }
    println!("{kind:?}: served {served:?} in {took:?}, each kept for {keep:?}");
    assert!(are_fair(&served), "{served:?}");
    assert_eq!(server.held().await, Vec::<String>::new());
}

/// Whether every process had at least half of its share.
fn are_fair(served: &[u64]) -> bool {
    let share = served.iter().sum::<u64>() / PROCESSES;
    served.iter().all(|count| *count * 2 >= share)
}

/// The number of leases that each process has had.
async fn tally(workers: &mut [Worker]) -> Vec<u64> {
    workers.iter_mut().for_each(|worker| worker.send(&Request::Tally));
    let mut served = Vec::new();
    for worker in workers {
        loop {
            match worker.receive().await {
                // Another task of the process has its first lease only now.
                Report::Spins => {}
                Report::Served(count) => break served.push(count),
                other => panic!("{other:?}"),
            }
        }
    }
    served
}
