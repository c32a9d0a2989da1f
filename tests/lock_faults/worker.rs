//! Worker processes: the test binary starts itself. A worker reads commands from its standard input
//! and prints reports to its standard output, one per line.
//!
//! Invariants: a worker ends with the process that started it. A report is in the history before the
//! test can react to it.

mod inside;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use crate::history::{Answer, History};
use crate::ledger::{Ledger, Observation};
use crate::providers::Kind;
use crate::server::LockServer;

/// The variable that holds the [`Order`] of a worker.
const ORDER: &str = "EKBATAN_TEST_LOCK_WORKER";

/// Marks the lines of a worker's output that are reports.
const REPORT: &str = "@ ";

/// Longer than any step takes on a machine that works.
const PATIENCE: Duration = Duration::from_secs(120);

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
    child: Child,
    stdin: ChildStdin,
    reports: mpsc::UnboundedReceiver<Report>,
    /// Reads the reports until the process has ended.
    reader: Option<JoinHandle<()>>,
    /// When the latest deposit that was reported committed had been requested.
    latest: watch::Receiver<u64>,
}

impl Worker {
    pub async fn start(kind: Kind, locks: &str, ledger: &str, record: &Record) -> Self {
        let order = Order { kind, locks: locks.to_owned(), ledger: ledger.to_owned() };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "worker::inside::a_worker_with_redis_and_postgres_executes_its_commands",
                "--nocapture",
            ])
            .env(ORDER, serde_json::to_string(&order).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, reports) = mpsc::unbounded_channel();
        let (commits, latest) = watch::channel(0);
        let record = record.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Some(line) = line.strip_prefix(REPORT) else { continue };
                // The last line of a killed process may be incomplete.
                let Ok(report) = serde_json::from_str(line) else { continue };
                match report {
                    Report::Observed(observation) => {
                        let of_commit = match &observation {
                            Observation::Answered {
                                requested, answer: Answer::Committed, ..
                            } => *requested,
                            _ => 0,
                        };
                        note(&record, observation);
                        commits.send_modify(|latest| *latest = of_commit.max(*latest));
                    }
                    other => drop(send.send(other)),
                }
            }
        });
        let mut worker = Self { child, stdin, reports, reader: Some(reader), latest };
        assert!(matches!(worker.receive().await, Report::Ready));
        worker
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn send(&mut self, request: &Request) {
        writeln!(self.stdin, "{}", serde_json::to_string(request).unwrap()).unwrap();
    }

    pub async fn receive(&mut self) -> Report {
        let report = tokio::time::timeout(PATIENCE, self.reports.recv()).await;
        report.expect("a worker reports in time").expect("a worker does not end by itself")
    }

    /// The next report, if one has arrived.
    pub fn try_receive(&mut self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// Waits for the commit of a deposit that was requested after `moment`.
    pub async fn commits_after(&mut self, moment: u64) {
        let later = self.latest.wait_for(|latest| *latest > moment);
        tokio::time::timeout(PATIENCE, later).await.expect("a worker makes progress").unwrap();
    }

    /// Stops the process wherever it is; returns when all its threads are stopped.
    pub fn freeze(&self) {
        self.signal("STOP");
        while !self.stands_still() {
            std::thread::yield_now();
        }
    }

    fn stands_still(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        threads.into_iter().all(|thread| {
            // A thread that has just ended has no file; then all threads are checked again.
            let stat = std::fs::read_to_string(thread.unwrap().path().join("stat"));
            stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap().trim_start().starts_with('T'))
        })
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let kill = format!("kill -s {signal} {}", self.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Kills the worker. What it has reported is in the history.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.reader.take().map(JoinHandle::join).transpose().unwrap();
    }

    /// Ends the worker after its tasks have finished.
    pub async fn stop(mut self) {
        self.send(&Request::Stop);
        while !matches!(self.receive().await, Report::Stopped) {}
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // This also ends a stopped process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
