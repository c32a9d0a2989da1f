//! Attacks at random: four processes take, try, extend, release, drop, outlast and force leases of
//! eight keys, and commit under them, while processes stand still and are killed.
//!
//! The test judges the history only: no two holders at one time, tokens that grow, commits in the
//! order of their tokens, no unexpected error of a take or an extension, nothing left at the end. The seed makes the same
//! choices again, not the same moments.

mod acts;
mod wrong;

use std::time::{Duration, Instant};

pub use acts::Attacker;

use crate::history::{Answer, History};
use crate::ledger::Ledger;
use crate::providers::Kind;
use crate::server::LockServer;
use crate::worker::{Record, Request, Worker, finished};
use support::seed;
use support::soak::rounds;
use support::worker_process::PATIENCE;

on_every_provider_with_deposits! { random_attacks_leave_a_sound_history }

const PROCESSES: usize = 4;
const TASKS: usize = 3;
const KEYS: usize = 8;

/// Longer than most holds.
const LONGEST_STANDSTILL: u64 = 600;

/// How long one run attacks.
fn length() -> Duration {
    Duration::from_secs(rounds(4, 600) as u64)
}

async fn random_attacks_leave_a_sound_history(kind: Kind) {
    let mut random = seed::random();
    let (server, ledger) = (LockServer::shared(kind).await, Ledger::create().await);
    let record = Record::default();
    record.lock().unwrap().force_ends_sessions = kind.force_ends_sessions();
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(attacker(kind, &server, &ledger, &record, &mut random).await);
    }
    let (started, mut killed, mut stopped) = (Instant::now(), 0, 0);
    let has_more_to_do = || {
        let attacked = started.elapsed();
        attacked < length() || (attacked < PATIENCE && !is_worth_judging(&record.lock().unwrap()))
    };
    while has_more_to_do() {
        tokio::time::sleep(Duration::from_millis(random.u64(..120))).await;
        let process = random.usize(..PROCESSES);
        if random.u8(..4) == 0 {
            processes.remove(process).kill();
            processes.push(attacker(kind, &server, &ledger, &record, &mut random).await);
            killed += 1;
        } else {
            processes[process].freeze();
            tokio::time::sleep(Duration::from_millis(random.u64(..LONGEST_STANDSTILL))).await;
            processes[process].thaw();
            stopped += 1;
        }
    }
    for process in processes {
        process.stop().await;
    }
    let mut history = finished(&record, &ledger, &server).await;
    if kind.force_ends_sessions() {
        // A request on a session that is ended by force fails. A lease that comes back is a defect.
        history.failures.retain(|failure| failure.starts_with("after its loss"));
    }
    println!(
        "{kind:?}: {killed} kills, {stopped} stand-stills, {} grants, {} holds, {} commits, {} by force",
        history.grants.len(),
        history.holds.len(),
        history.commits.len(),
        history.forces.iter().filter(|call| call.ended == Some(true)).count(),
    );
    if let Err(broken) = history.check() {
        panic!("{kind:?}: {broken}");
    }
    assert!(is_worth_judging(&history), "{kind:?}: too little happened");
}

/// Whether enough has happened for defects to show. A busy machine needs longer for it.
fn is_worth_judging(history: &History) -> bool {
    let is_commit = |(_, _, answer): &(String, i64, Answer)| *answer == Answer::Committed;
    history.holds.len() > PROCESSES * KEYS && history.answers.iter().any(is_commit)
}

async fn attacker(
    kind: Kind,
    server: &LockServer,
    ledger: &Ledger,
    record: &Record,
    random: &mut fastrand::Rng,
) -> Worker {
    let mut worker = Worker::start(kind, &server.url, &ledger.url, record).await;
    worker.send(&Request::Attack { seed: random.u64(..), tasks: TASKS, keys: KEYS });
    worker
}
