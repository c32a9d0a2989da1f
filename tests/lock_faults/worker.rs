//! Worker processes that deposit.
//!
//! Invariant: a report is in the history before the test can react to it.

mod inside;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use support::worker_process::{PATIENCE, WorkerProcess};
use tokio::sync::watch;

use crate::history::{Answer, History};
use crate::ledger::{Ledger, Observation};
use crate::providers::Kind;
use crate::server::LockServer;

/// The variable that holds the [`Order`] of a worker.
const ORDER: &str = "EKBATAN_TEST_LOCK_WORKER";

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    kind: Kind,
    locks: String,
    ledger: String,
}

/// What a worker is requested to do.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Deposit on `accounts` accounts with `tasks` tasks until the end.
    Contend {
        tasks: usize,
        accounts: usize,
        hold: Duration,
    },
    /// Make one deposit, with or without a fence. Report [`Report::Read`] between its read and its
    /// commit; if `waits`, then wait for [`Request::GoOn`].
    Deposit {
        account: String,
        hold: Duration,
        fenced: bool,
        waits: bool,
    },
    GoOn,
    /// Acquire a key for a long time, with a caller behind that wants it for a short time, and release
    /// it at once. Report [`Report::Read`] when the second one has it, and keep it.
    HandOn {
        key: String,
        long: Duration,
        short: Duration,
    },
    /// Acquire one key with `tasks` tasks, hold it for `keep` and release it, in a loop.
    Spin {
        tasks: usize,
        keep: Duration,
    },
    /// Attack `keys` keys with `tasks` tasks until the end.
    Attack {
        seed: u64,
        tasks: usize,
        keys: usize,
    },
    /// Start counting acquisitions at zero.
    Mark,
    /// Report the number of acquisitions.
    Tally,
    /// Finish what runs, and end.
    Stop,
}

/// What a worker reports.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Report {
    Ready,
    Observed(Observation),
    Read,
    Done(Option<Answer>),
    Spins,
    Served(u64),
    Stopped,
}

/// The history of several processes, as they report it.
pub type Record = Arc<Mutex<History>>;

/// Adds an observation to the history.
pub fn note(record: &Record, observation: Observation) {
    let mut history = record.lock().unwrap();
    match observation {
        Observation::Granted(grant) => history.grants.push(grant),
        Observation::Answered { key, token, answer, .. } => {
            history.answers.push((key, token, answer))
        }
        Observation::Held(hold) => history.holds.push(hold),
        Observation::Forced(call) => match history.forces.iter_mut().find(|f| f.id == call.id) {
            Some(begun) => *begun = call,
            None => history.forces.push(call),
        },
        Observation::Failed(failure) => history.failures.push(failure),
    }
}

/// The finished history: with the commits of the database, and with the locks that the server still
/// has after the leases that nobody could release have expired.
pub async fn finished(record: &Record, ledger: &Ledger, server: &LockServer) -> History {
    let mut history = record.lock().unwrap().clone();
    history.commits = ledger.commits().await;
    let since = std::time::Instant::now();
    history.left = server.held().await;
    while !history.left.is_empty() && since.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(20)).await;
        history.left = server.held().await;
    }
    history
}

/// A worker process, seen from the test.
pub struct Worker {
    process: WorkerProcess<Report>,
    /// When the latest deposit that was reported committed had been requested.
    latest: watch::Receiver<u64>,
}

impl Worker {
    pub async fn start(kind: Kind, locks: &str, ledger: &str, record: &Record) -> Self {
        Self::start_with(kind, locks, ledger, record, &[]).await
    }

    /// Like [`start`](Self::start), with further variables of its environment.
    pub async fn start_with(
        kind: Kind,
        locks: &str,
        ledger: &str,
        record: &Record,
        env: &[(&str, String)],
    ) -> Self {
        let order = Order { kind, locks: locks.to_owned(), ledger: ledger.to_owned() };
        let (commits, latest) = watch::channel(0);
        let record = record.clone();
        let sift = move |report| match report {
            Report::Observed(observation) => {
                let of_commit = match &observation {
                    Observation::Answered { requested, answer: Answer::Committed, .. } => {
                        *requested
                    }
                    _ => 0,
                };
                note(&record, observation);
                commits.send_modify(|latest| *latest = of_commit.max(*latest));
                None
            }
            other => Some(other),
        };
        let test = "worker::inside::a_worker_with_redis_and_postgres_executes_its_commands";
        let mut worker =
            Self { process: WorkerProcess::start_with(test, ORDER, &order, env, sift), latest };
        assert!(matches!(worker.receive().await, Report::Ready));
        worker
    }

    /// Waits for the commit of a deposit that was requested after `moment`.
    pub async fn commits_after(&mut self, moment: u64) {
        let later = self.latest.wait_for(|latest| *latest > moment);
        tokio::time::timeout(PATIENCE, later).await.expect("a worker makes progress").unwrap();
    }

    /// Kills the worker. What it has reported is in the history.
    pub fn kill(self) {
        self.process.kill();
    }

    /// Ends the worker after its tasks have finished.
    pub async fn stop(mut self) {
        self.send(&Request::Stop);
        while !matches!(self.receive().await, Report::Stopped) {}
        self.process.join();
    }
}

impl Deref for Worker {
    type Target = WorkerProcess<Report>;

    fn deref(&self) -> &WorkerProcess<Report> {
        &self.process
    }
}

impl DerefMut for Worker {
    fn deref_mut(&mut self) -> &mut WorkerProcess<Report> {
        &mut self.process
    }
}
