//! Processes that a test kills and stops: the test binary starts itself. A worker process reads
//! requests from its standard input and prints reports to its standard output, one per line.
//!
//! Invariants: a worker process ends with the process that started it. Each report passes the
//! test's `sift` before the test can react to it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use tokio::sync::mpsc;

/// Marks the lines of the output that are reports.
const REPORT: &str = "@ ";

/// Longer than any step takes on a machine that works.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A worker process, seen from the test.
pub struct WorkerProcess<R> {
    child: Child,
    stdin: ChildStdin,
    reports: mpsc::UnboundedReceiver<R>,
    /// Reads the reports until the process has ended.
    reader: Option<JoinHandle<()>>,
}

impl<R: DeserializeOwned + Send + 'static> WorkerProcess<R> {
    /// Starts a test of this binary, which finds its order in the variable: see [`order`]. `sift`
    /// gets each report, and returns those that [`receive`](Self::receive) is to return.
    pub fn start(
        test: &str,
        variable: &str,
        order: &impl Serialize,
        sift: impl Fn(R) -> Option<R> + Send + 'static,
    ) -> Self {
        Self::start_with(test, variable, order, &[], sift)
    }

    /// Like [`start`](Self::start), with further variables of its environment.
    pub fn start_with(
        test: &str,
        variable: &str,
        order: &impl Serialize,
        env: &[(&str, String)],
        sift: impl Fn(R) -> Option<R> + Send + 'static,
    ) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(variable, serde_json::to_string(order).unwrap())
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, reports) = mpsc::unbounded_channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Some(line) = line.strip_prefix(REPORT) else { continue };
                // The last line of a killed process may be incomplete.
                let Ok(report) = serde_json::from_str(line) else { continue };
                if let Some(report) = sift(report) {
                    let _ = send.send(report);
                }
            }
        });
        Self { child, stdin, reports, reader: Some(reader) }
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request.
    pub fn send(&mut self, request: &impl Serialize) {
        writeln!(self.stdin, "{}", serde_json::to_string(request).unwrap()).unwrap();
    }

    /// Waits for the next report.
    pub async fn receive(&mut self) -> R {
        let report = tokio::time::timeout(PATIENCE, self.reports.recv()).await;
        report.expect("a worker reports in time").expect("a worker does not end by itself")
    }

    /// The next report, if one has arrived.
    pub fn try_receive(&mut self) -> Option<R> {
        self.reports.try_recv().ok()
    }

    /// Stops the process wherever it is. Returns when all its threads are stopped.
    pub fn freeze(&self) {
        self.signal("STOP");
        while !self.stands_still() {
            std::thread::yield_now();
        }
    }

    /// Stops the process while it does not write to the SQLite file of this URL: one that is stopped in a write
    /// keeps the file locked for all. For the URL of a server it is [`freeze`](Self::freeze).
    pub async fn freeze_between_writes(&self, url: &str) {
        self.freeze();
        while url.starts_with("sqlite:") && is_locked(url).await {
            self.thaw();
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.freeze();
        }
    }

    fn stands_still(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        threads.into_iter().all(|thread| {
            // A thread that has just ended has no file; then all threads are checked again.
            let thread = thread.unwrap();
            let stat = std::fs::read_to_string(thread.path().join("stat"));
            stat.is_ok_and(|stat| {
                let state = stat.rsplit(')').next().unwrap().trim_start();
                let is_first = thread.file_name() == *self.id().to_string();
                assert!(!(is_first && state.starts_with('Z')), "the process has ended: {stat}");
                state.starts_with('T')
            })
        })
    }

    /// Lets a stopped process continue.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let kill = format!("kill -s {signal} {}", self.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Kills the process. What it has reported has passed `sift`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.reader.take().map(JoinHandle::join).transpose().unwrap();
    }

    /// Waits for the end of a process that ends by itself, and asserts that it ends well.
    pub fn join(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl<R> Drop for WorkerProcess<R> {
    fn drop(&mut self) {
        // This also ends a stopped process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The order of this process, if it is a worker process of this kind.
pub fn order<O: DeserializeOwned>(variable: &str) -> Option<O> {
    let order = std::env::var(variable).ok()?;
    // The test harness has printed an incomplete line.
    println!();
    Some(serde_json::from_str(&order).unwrap())
}

/// Whether somebody writes to a file of SQLite.
async fn is_locked(url: &str) -> bool {
    let options: SqliteConnectOptions = url.parse().unwrap();
    let mut connection = options.busy_timeout(Duration::ZERO).connect().await.unwrap();
    let began = sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await;
    connection.close().await.unwrap();
    began.is_err()
}

/// Reports to the test, in a worker process.
pub fn report(report: &impl Serialize) {
    let line = format!("{REPORT}{}\n", serde_json::to_string(report).unwrap());
    let mut out = std::io::stdout().lock();
    // This fails only after the test has ended; then this process ends, too.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// The requests from the test, in a worker process. The process exits when the test closes the
/// pipe.
pub fn requests<Q: DeserializeOwned + Send + 'static>() -> mpsc::UnboundedReceiver<Q> {
    let (send, requests) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = send.send(serde_json::from_str(&line).unwrap());
        }
        std::process::exit(1);
    });
    requests
}
