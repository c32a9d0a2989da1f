//! The worker processes: this program, started again, and the messages between them and
//! the parent.
//!
//! Invariants: all workers start together, when all of them are ready. No worker outlives
//! the run, because each one exits when its stdin closes.

use std::process::Stdio;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

use crate::access::Access;
use crate::failure::Failure;
use crate::histogram::Histogram;
use crate::lock_place::LockPlace;
use crate::money::Wallets;
use crate::strategy::Strategy;

/// The argument that makes this program a worker.
pub const WORKER: &str = "--deposit-as-stdin-says";

const EXITED: &str = "a worker process exited before it had finished; see its error above";

/// The job of one worker process.
#[derive(Clone, Serialize, Deserialize)]
pub struct WorkerJob {
    pub access: Access,
    pub lock: LockPlace,
    pub strategy: Strategy,
    pub tasks: u32,
    pub several_processes: bool,
    pub wallets: Wallets,
    pub skew: f64,
    pub think_us: u64,
    pub warm_up_us: u64,
    pub window_us: u64,
    pub seed: u64,
}

/// A message of a worker process.
#[derive(Serialize, Deserialize)]
pub enum Message {
    /// The worker is connected.
    Ready,
    /// The warm-up has ended.
    Began,
    /// The number of deposits since the previous message of this kind.
    Deposits(u64),
    /// The window has ended; tasks finish their current deposit.
    Ended,
    /// All tasks have finished.
    Finished(WorkDone),
    /// The worker failed.
    Failed(String),
}

/// What a worker did.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct WorkDone {
    /// All acknowledged deposits: in the warm-up, in the window and after it.
    pub acknowledged: u64,
    /// Deposits that were acknowledged within the window.
    pub actions: u64,
    /// Deposits that began within the window, and their attempts.
    pub begun: u64,
    pub attempts: u64,
    pub latencies: Histogram,
    /// The deposits of the slowest task within the window.
    pub slowest: Option<u64>,
}

impl WorkDone {
    pub fn merge(&mut self, other: &Self) {
        self.acknowledged += other.acknowledged;
        self.actions += other.actions;
        self.begun += other.begun;
        self.attempts += other.attempts;
        self.latencies.merge(&other.latencies);
        self.slowest = [self.slowest, other.slowest].into_iter().flatten().min();
    }
}

/// An event that concerns all processes together.
pub enum Moment {
    Began,
    Deposits(u64),
    Ended,
}

/// Runs each job in its own process, and adds up the results.
pub async fn run(jobs: Vec<WorkerJob>, mut on: impl FnMut(Moment)) -> Result<WorkDone, Failure> {
    let (sender, mut messages) = mpsc::channel(64);
    let all = jobs.len();
    let mut children = Vec::new();
    for job in jobs {
        children.push(start(&job, sender.clone()).await?);
    }
    drop(sender);
    let (mut ready, mut began, mut ended, mut finished) = (0, 0, 0, 0);
    let mut work = WorkDone::default();
    // Keep every stdin open until all workers have finished: a worker exits when its
    // stdin closes.
    while finished < all {
        let Some(message) = messages.recv().await else {
            return Err(EXITED.into());
        };
        match message? {
            Message::Ready => {
                ready += 1;
                if ready == all {
                    for (_, stdin) in &mut children {
                        tell(stdin, "go").await;
                    }
                }
            }
            Message::Began => {
                began += 1;
                if began == all {
                    on(Moment::Began);
                }
            }
            Message::Deposits(deposits) => on(Moment::Deposits(deposits)),
            Message::Ended => {
                ended += 1;
                if ended == 1 {
                    on(Moment::Ended);
                }
            }
            Message::Finished(of_one) => {
                work.merge(&of_one);
                finished += 1;
            }
            Message::Failed(why) => return Err(why.into()),
        }
    }
    for (mut child, stdin) in children {
        drop(stdin);
        child.wait().await?;
    }
    Ok(work)
}

async fn start(
    job: &WorkerJob,
    messages: mpsc::Sender<Result<Message, Failure>>,
) -> Result<(Child, ChildStdin), Failure> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(WORKER)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("a worker process has no pipes".into());
    };
    tokio::spawn(async move {
        let mut lines = BufReader::new(stdout).lines();
        let mut is_finished = false;
        while let Ok(Some(line)) = lines.next_line().await {
            let message = serde_json::from_str(&line).map_err(Failure::from);
            is_finished |= matches!(message, Ok(Message::Finished(_)));
            if messages.send(message).await.is_err() {
                return;
            }
        }
        // The other workers wait for this one, so the run would never end.
        if !is_finished {
            let _ = messages.send(Err(EXITED.into())).await;
        }
    });
    tell(&mut stdin, &serde_json::to_string(job)?).await;
    Ok((child, stdin))
}

/// Sends a line to a worker. Fails only if it has exited, which the reader of its messages reports.
async fn tell(worker: &mut ChildStdin, line: &str) {
    let _ = worker.write_all(format!("{line}\n").as_bytes()).await;
}
