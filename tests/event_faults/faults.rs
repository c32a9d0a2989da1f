//! Four processes commit to three shards, handle the events, run the enqueued calls and run jobs, while
//! processes are killed and stopped, lines are cut and go silent, and the server dies. Afterwards each
//! event has one effect of each handler, in the order of the versions if the handler is ordered; each
//! call has one effect, unless it was cancelled before; and each slot of a job has run once or is
//! listed as not run.
//!
//! A fault falls after so many answers, and what it waits for is what others did meanwhile: the
//! number of commits and faults is given, the time that they take is not.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use support::soak::rounds;
use support::worker_process::PATIENCE;
use support::{Dialect, seed};
use tokio::sync::Semaphore;

use crate::accounts::SHARDS;
use crate::cluster::{Cluster, LOOK};
use crate::worker::{Request, RunKind};

on_every_database! { everything_has_its_effect_once_and_in_order_whatever_fails }

const PROCESSES: usize = 4;

/// How many calls each process commits for each fault.
fn calls() -> usize {
    rounds(6, 8)
}

/// How long a fault waits for others to take over before it is tried again: the process may have
/// been stopped in a transaction that locks rows that they need.
const TAKE_OVER: Duration = Duration::from_secs(15);

/// How often a fault is tried.
const TRIES: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// A process is killed, and another one takes its place.
    Killed,
    /// A process is stopped until others have taken over from it on every shard.
    Stopped,
    /// A process is stopped while a run of a handler, a call or a job waits before its commit, until
    /// others have done it.
    StoppedBeforeItsCommit(RunKind),
    /// The same, when the commit of the run is sent and has not arrived.
    StoppedBehindItsCommit(RunKind),
    /// The line between a process and a shard carries nothing until others have taken over there.
    Silent,
    /// The line between a process and a shard carries nothing for a moment, and is cut, so that
    /// bytes on their way are lost.
    Cut,
    /// The server is killed, and starts again with its data.
    ServerDown,
}

fn faults(dialect: Dialect) -> Vec<(Fault, usize)> {
    let mut faults = vec![
        (Fault::Killed, rounds(2, 100)),
        (Fault::Stopped, rounds(1, 60)),
        (Fault::StoppedBeforeItsCommit(RunKind::Delivery), rounds(1, 40)),
        (Fault::StoppedBeforeItsCommit(RunKind::Job), rounds(1, 40)),
    ];
    // A short run stops each kind of run at one of both moments.
    let before_call = Fault::StoppedBeforeItsCommit(RunKind::Call);
    if dialect == Dialect::Sqlite {
        faults.push((before_call, rounds(1, 40)));
    } else {
        faults.extend([
            (before_call, rounds(0, 40)),
            (Fault::StoppedBehindItsCommit(RunKind::Delivery), rounds(0, 30)),
            (Fault::StoppedBehindItsCommit(RunKind::Call), rounds(1, 30)),
            (Fault::StoppedBehindItsCommit(RunKind::Job), rounds(0, 30)),
            (Fault::Silent, rounds(1, 60)),
            (Fault::Cut, rounds(2, 200)),
            (Fault::ServerDown, rounds(1, 40)),
        ]);
    }
    faults
}

async fn everything_has_its_effect_once_and_in_order_whatever_fails(dialect: Dialect) {
    // More processes at a time would only wait for each other.
    static TURNS: Semaphore = Semaphore::const_new(2);
    let _turn = TURNS.acquire().await.unwrap();
    let mut random = seed::random();
    let faults = faults(dialect);
    let mut schedule: Vec<Fault> =
        faults.iter().flat_map(|(fault, times)| std::iter::repeat_n(*fault, *times)).collect();
    random.shuffle(&mut schedule);
    let mut cluster = Cluster::start(dialect, PROCESSES, random).await;
    let mut suffered: BTreeMap<Fault, (usize, Duration)> = BTreeMap::new();
    let mut again = 0;
    for fault in schedule {
        cluster.commit_at_random().await;
        let began = Instant::now();
        let mut tries = 1;
        while !cluster.suffer(fault).await {
            if tries == TRIES {
                panic!("{fault:?}: nobody takes over; {:#?}", cluster.left().await);
            }
            tries += 1;
            again += 1;
        }
        for worker in &mut cluster.workers {
            worker.commits().await;
        }
        let (count, took) = suffered.entry(fault).or_default();
        *count += 1;
        *took += began.elapsed();
    }
    let record = cluster.record.clone();
    let (history, took) = cluster.end().await;
    println!(
        "{dialect:?}: {suffered:?}, {again} tried again, {} events, {} effects, {} runs beside another one of their \
         event, handled {took:?} after the last commit",
        history.events.len(),
        history.effects.len(),
        record.beside_itself(),
    );
    println!("{dialect:?}: {:?}", history.calls.counts());
    for job in &history.jobs {
        println!("{dialect:?}: {job}");
    }
    history.check().unwrap_or_else(|broken| panic!("{broken}"));
}

impl Cluster {
    /// Lets every process commit, and waits for some of the answers.
    async fn commit_at_random(&mut self) {
        let mut answered = self.record.answered();
        let before = *answered.borrow();
        // Nodes that take turns at one account take long for its backlog.
        let fewest = rounds(6, 3);
        for n in 0..PROCESSES {
            // Some rounds press on few accounts, so that processes take turns at them.
            let few = self.random.usize(fewest..=self.accounts.len());
            self.workers[n].commit(&self.accounts[..few], calls());
        }
        let enough = before + self.random.usize(1..PROCESSES * calls() / 2);
        let enough = answered.wait_for(|answered| *answered >= enough);
        tokio::time::timeout(PATIENCE, enough).await.expect("processes commit").unwrap();
    }

    /// `false` if the fault did not come to its end.
    async fn suffer(&mut self, fault: Fault) -> bool {
        let (process, shard) = (self.random.usize(..PROCESSES), self.random.usize(..SHARDS));
        match fault {
            Fault::Killed => self.replace(process).await,
            Fault::Stopped => {
                self.freeze(process).await;
                let mut is_over = true;
                for shard in 0..SHARDS {
                    is_over &= waited(async || !self.is_known(process, shard).await).await;
                }
                self.workers[process].thaw();
                return is_over;
            }
            Fault::StoppedBeforeItsCommit(kind) => {
                let accounts = self.accounts.clone();
                let held = self.workers[process].hold(kind, &accounts).await;
                self.freeze(process).await;
                let is_over = waited(async || !self.is_waiting(&held).await).await;
                self.workers[process].send(&Request::GoOn);
                self.workers[process].thaw();
                return is_over;
            }
            Fault::StoppedBehindItsCommit(kind) => {
                let accounts = self.accounts.clone();
                let held = self.workers[process].hold(kind, &accounts).await;
                self.each_line(process, |line| line.stall());
                self.workers[process].send(&Request::GoOn);
                tokio::time::sleep(self.moment(10)).await;
                self.freeze(process).await;
                let is_over = waited(async || !self.is_waiting(&held).await).await;
                // The commit arrives before its process continues, or after.
                let arrives_first = self.random.bool();
                if arrives_first {
                    self.each_line(process, |line| line.resume());
                    tokio::time::sleep(self.moment(10)).await;
                }
                self.workers[process].thaw();
                tokio::time::sleep(self.moment(10)).await;
                self.each_line(process, |line| line.resume());
                return is_over;
            }
            Fault::Silent => {
                self.proxies[process][shard].stall();
                let is_over = waited(async || !self.is_known(process, shard).await).await;
                self.proxies[process][shard].resume();
                return is_over;
            }
            Fault::Cut => {
                self.proxies[process][shard].stall();
                tokio::time::sleep(self.moment(40)).await;
                self.proxies[process][shard].cut();
                self.proxies[process][shard].resume();
                tokio::time::sleep(self.moment(100)).await;
                self.proxies[process][shard].restore();
            }
            Fault::ServerDown => {
                self.kill_server().await;
                tokio::time::sleep(self.moment(300)).await;
                self.restart_server().await;
            }
        }
        true
    }

    fn each_line(&self, process: usize, act: impl Fn(&ekbatan_testkit::Proxy)) {
        self.proxies[process].iter().for_each(act);
    }

    /// A time at random, up to so many milliseconds.
    fn moment(&mut self, most: u64) -> Duration {
        Duration::from_micros(self.random.u64(..most * 1_000))
    }
}

/// Waits until others have taken over; `false` if they do not.
async fn waited(is_over: impl AsyncFn() -> bool) -> bool {
    let began = Instant::now();
    while !is_over().await {
        if began.elapsed() > TAKE_OVER {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
    true
}
