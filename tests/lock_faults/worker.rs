//! Processes of their own: the test binary runs itself again. They are told what to do on
//! their standard input and tell what happens on their standard output, a line each.
//!
//! What always holds: a process ends with whoever started it, and what it has told is in the
//! history before anything else comes of it.

mod inside;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use crate::history::{Answer, History};
use crate::ledger::{Ledger, Told};
use crate::providers::Kind;
use crate::server::LockServer;

/// In what a process is told who it is.
const ORDER: &str = "EKBATAN_TEST_LOCK_WORKER";

/// How a line begins that is meant for us.
const OURS: &str = "@ ";

/// What only a broken machine takes.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    kind: Kind,
    locks: String,
    ledger: String,
}

/// What a process is told to do.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    /// So many tasks deposit on so many accounts until all is over.
    Contend {
        tasks: usize,
        accounts: usize,
        hold: Duration,
    },
    /// One deposit, with or without a fence. Between its read and its commit it says
    /// [`Said::Read`], and if it is to wait, waits for [`Task::GoOn`].
    Deposit {
        account: String,
        hold: Duration,
        fenced: bool,
        waits: bool,
    },
    GoOn,
    /// So many tasks take one key, keep it for so long and give it back, over and over.
    Spin {
        tasks: usize,
        keep: Duration,
    },
    /// Counts from now on.
    Mark,
    /// Says how often the key was had.
    Tally,
    /// Ends what it began, in good order.
    Stop,
}

/// What a process says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Said {
    Ready,
    Told(Told),
    Read,
    Done(Option<Answer>),
    Spins,
    Served(u64),
    Stopped,
}

/// What several processes did, as they told it.
pub type Record = Arc<Mutex<History>>;

/// Everything for the history, from whoever tells it.
pub fn note(record: &Record, told: Told) {
    let mut history = record.lock().unwrap();
    match told {
        Told::Granted(grant) => history.grants.push(grant),
        Told::Answered { key, token, answer, .. } => history.answers.push((key, token, answer)),
    }
}

/// The history, when all is over: with what the database committed, and what the lock server
/// still has once it had time to end what nobody could give back.
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

/// A process, as its parent has it.
pub struct Worker {
    child: Child,
    stdin: ChildStdin,
    said: mpsc::UnboundedReceiver<Said>,
    /// Of what it was told to be committed, when the latest was asked for.
    latest: watch::Receiver<u64>,
}

impl Worker {
    pub async fn start(kind: Kind, locks: &str, ledger: &str, record: &Record) -> Self {
        let order = Order { kind, locks: locks.to_owned(), ledger: ledger.to_owned() };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker::inside::a_worker_executes_its_commands", "--nocapture"])
            .env(ORDER, serde_json::to_string(&order).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (say, said) = mpsc::unbounded_channel();
        let (commits, latest) = watch::channel(0);
        let record = record.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Some(line) = line.strip_prefix(OURS) else { continue };
                // The last line of a process that is killed may be cut short.
                let Ok(said) = serde_json::from_str(line) else { continue };
                match said {
                    Said::Told(told) => {
                        let of_commit = match &told {
                            Told::Answered { asked, answer: Answer::Committed, .. } => *asked,
                            _ => 0,
                        };
                        note(&record, told);
                        commits.send_modify(|latest| *latest = of_commit.max(*latest));
                    }
                    other => drop(say.send(other)),
                }
            }
        });
        let mut worker = Self { child, stdin, said, latest };
        assert!(matches!(worker.hear().await, Said::Ready));
        worker
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn tell(&mut self, task: &Task) {
        writeln!(self.stdin, "{}", serde_json::to_string(task).unwrap()).unwrap();
    }

    pub async fn hear(&mut self) -> Said {
        let said = tokio::time::timeout(PATIENCE, self.said.recv()).await;
        said.expect("a process says something").expect("a process does not end by itself")
    }

    /// What it has said already, if anything.
    pub fn heard(&mut self) -> Option<Said> {
        self.said.try_recv().ok()
    }

    /// Waits for the commit of something that was asked for after `moment`.
    pub async fn commits_after(&mut self, moment: u64) {
        let later = self.latest.wait_for(|latest| *latest > moment);
        tokio::time::timeout(PATIENCE, later).await.expect("a process gets on").unwrap();
    }

    /// Has it stand still, at whatever it is doing; returns when every thread of it does.
    pub fn freeze(&self) {
        self.signal("STOP");
        while !self.stands_still() {
            std::thread::yield_now();
        }
    }

    fn stands_still(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        threads.into_iter().all(|thread| {
            // Of a thread that ends meanwhile nothing is read, and all are looked at again.
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

    /// Ends it in good order.
    pub async fn stop(mut self) {
        self.tell(&Task::Stop);
        while !matches!(self.hear().await, Said::Stopped) {}
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Also one that stands still.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
