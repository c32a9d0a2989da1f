//! Worker processes: each commits what it is told to, and runs nodes for handlers, calls and jobs.
//!
//! Invariant: an answer is in the history before the test can react to it.

mod calls;
mod commits;
mod handlers;
mod inside;
pub mod jobs;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::events::EventHandler;
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use support::worker_process::WorkerProcess;
use tokio::sync::watch;

use crate::accounts::SHARDS;
use crate::history::{Answer, Handler};
use handlers::Posting;

/// The variable that holds the [`Order`] of a worker.
const ORDER: &str = "EKBATAN_TEST_EVENT_WORKER";

/// Much longer than a renewal takes on a machine that has more work than it can do: a node whose renewals take as
/// long as its lease is alive for moments only, and starts nothing.
const LEASE: Duration = Duration::from_secs(3);

/// Adds the entry by the action that marks the event as handled, in the order of the versions.
const ORDERED: u8 = 0;
/// The same, side by side.
const UNORDERED: u8 = 1;
/// Adds the entry on the next shard by a step, in the order of the versions. The node marks the
/// event later.
const BY_STEP: u8 = 2;

/// The handlers of every worker.
pub fn handlers() -> Vec<Handler> {
    vec![
        Handler { name: Posting::<ORDERED>::NAME, is_ordered: true },
        Handler { name: Posting::<UNORDERED>::NAME, is_ordered: false },
        Handler { name: Posting::<BY_STEP>::NAME, is_ordered: true },
    ]
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    name: String,
    urls: [String; SHARDS],
    seed: u64,
}

/// What a worker is requested to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// Credit accounts at random until so many calls are answered as committed.
    Commit {
        accounts: Vec<Uuid>,
        calls: usize,
    },
    /// Let the next run of this kind wait before its commit, until [`Request::GoOn`].
    Hold(RunKind),
    GoOn,
    /// Drain the node, and end.
    Stop,
}

/// What a worker reports.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Report {
    Ready,
    Answered {
        action: String,
        answer: Answer,
    },
    /// All calls of a [`Request::Commit`] are committed.
    Committed,
    /// A run waits before its commit.
    Held(HeldRun),
    /// Two runs of one handler and one event at a time.
    BesideItself,
    Stopped,
}

/// What runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RunKind {
    /// A handler, for an event.
    Delivery,
    /// An enqueued call.
    Call,
    Job,
}

/// A run that waits before its commit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum HeldRun {
    Delivery { handler: String, event: String, shard: usize },
    Call { request: String, shard: usize },
    Job { run: String },
}

impl HeldRun {
    pub fn kind(&self) -> RunKind {
        match self {
            Self::Delivery { .. } => RunKind::Delivery,
            Self::Call { .. } => RunKind::Call,
            Self::Job { .. } => RunKind::Job,
        }
    }
}

/// What all workers have reported.
#[derive(Clone, Default)]
pub struct Record(Arc<Inner>);

#[derive(Default)]
struct Inner {
    answers: Mutex<Vec<(String, Answer)>>,
    /// The number of answers.
    answered: watch::Sender<usize>,
    beside_itself: Mutex<usize>,
}

impl Record {
    pub fn answers(&self) -> Vec<(String, Answer)> {
        self.0.answers.lock().unwrap().clone()
    }

    pub fn answered(&self) -> watch::Receiver<usize> {
        self.0.answered.subscribe()
    }

    /// How many runs began while another one of the same handler and event ran in their process.
    pub fn beside_itself(&self) -> usize {
        *self.0.beside_itself.lock().unwrap()
    }

    fn note(&self, report: Report) -> Option<Report> {
        match report {
            Report::Answered { action, answer } => {
                self.0.answers.lock().unwrap().push((action, answer));
                self.0.answered.send_modify(|answered| *answered += 1);
                None
            }
            Report::BesideItself => {
                *self.0.beside_itself.lock().unwrap() += 1;
                None
            }
            other => Some(other),
        }
    }
}

/// A worker process, seen from the test.
pub struct Worker {
    process: WorkerProcess<Report>,
    /// The name of its nodes.
    pub name: String,
    /// How many requests to commit are not done.
    committing: usize,
}

impl Worker {
    pub async fn start(name: String, urls: &[String; SHARDS], seed: u64, record: &Record) -> Self {
        let order = Order { name: name.clone(), urls: urls.clone(), seed };
        let record = record.clone();
        let test = "worker::inside::a_worker_on_sqlite_executes_its_requests";
        let sift = move |report| record.note(report);
        let process = WorkerProcess::start(test, ORDER, &order, sift);
        let mut worker = Self { process, name, committing: 0 };
        assert!(matches!(worker.receive().await, Report::Ready));
        worker
    }

    pub fn commit(&mut self, accounts: &[Uuid], calls: usize) {
        self.committing += 1;
        self.send(&Request::Commit { accounts: accounts.to_vec(), calls });
    }

    /// Waits until everything is committed that was requested.
    pub async fn commits(&mut self) {
        while self.committing > 0 {
            self.next().await;
        }
    }

    /// Lets a run wait before its commit, and returns it. Unless it is that of a job, commits go on until
    /// there is one.
    pub async fn hold(&mut self, kind: RunKind, accounts: &[Uuid]) -> HeldRun {
        self.send(&Request::Hold(kind));
        loop {
            if self.committing == 0 && kind != RunKind::Job {
                self.commit(accounts, 1);
            }
            if let Some(held) = self.next().await {
                return held;
            }
        }
    }

    async fn next(&mut self) -> Option<HeldRun> {
        match self.receive().await {
            Report::Committed => self.committing -= 1,
            Report::Held(held) => return Some(held),
            other => panic!("{other:?}"),
        }
        None
    }

    pub fn kill(self) {
        self.process.kill();
    }

    /// Ends the worker in order.
    pub async fn stop(mut self) {
        self.commits().await;
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
