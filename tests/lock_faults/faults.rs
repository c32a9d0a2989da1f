//! Lock servers that are killed, that forget, that end sessions, and connections that fall
//! silent, while processes deposit.
//!
//! After each fault every process has to get on: each commits a deposit that it asked for
//! when the fault was over. All of it is one history.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ekbatan_testkit::Proxy;

use crate::ledger::{Ledger, now};
use crate::providers::Kind;
use crate::seed;
use crate::server::LockServer;
use crate::worker::{Record, Task, Worker, finished};

on_every_provider! {
    only_the_last_holder_commits_whatever_fails,
    a_silent_connection_is_given_up,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The server is killed and started again with what it had.
    Crash,
    /// The server is killed, and one that knows nothing takes its place.
    FailOver,
    /// Every session or connection is ended by the server.
    SessionsEnd,
    /// The line of one process carries nothing for a while.
    Silence,
    /// The line of one process carries nothing for a while and is cut then, so that what was
    /// on its way is lost.
    Cut,
}

/// How often each is suffered. PostgreSQL takes half a second to start again.
fn rounds(kind: Kind) -> Vec<(Fault, usize)> {
    let any = [(Fault::SessionsEnd, 200), (Fault::Silence, 100), (Fault::Cut, 100)];
    let killed = match kind {
        Kind::Process => unreachable!("there is no server"),
        Kind::Redis => vec![(Fault::Crash, 200), (Fault::FailOver, 200)],
        Kind::PostgresLease | Kind::PostgresSession => vec![(Fault::Crash, 50)],
    };
    killed.into_iter().chain(any).collect()
}

const HOLD: Duration = Duration::from_millis(400);
const ACCOUNTS: usize = 6;
const TASKS: usize = 3;

/// Two processes that deposit, each over a line of its own.
struct Scene {
    server: LockServer,
    ledger: Ledger,
    record: Record,
    lines: Vec<Proxy>,
    workers: Vec<Worker>,
}

impl Scene {
    async fn start(kind: Kind) -> Self {
        let (server, ledger) = (LockServer::start(kind).await, Ledger::create().await);
        let record = Record::default();
        let (mut lines, mut workers) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let line = Proxy::start(server.address()).await.unwrap();
            let url = line.url_for(&server.url);
            let mut worker = Worker::start(kind, &url, &ledger.url, &record).await;
            worker.tell(&Task::Contend { tasks: TASKS, accounts: ACCOUNTS, hold: HOLD });
            lines.push(line);
            workers.push(worker);
        }
        let mut scene = Self { server, ledger, record, lines, workers };
        scene.all_get_on().await;
        scene
    }

    async fn all_get_on(&mut self) {
        let over = now();
        for worker in &mut self.workers {
            worker.commits_after(over).await;
        }
    }

    /// Ends it and judges it.
    async fn end(self) -> usize {
        for worker in self.workers {
            worker.stop().await;
        }
        let history = finished(&self.record, &self.ledger, &self.server).await;
        history.check().unwrap();
        history.commits.len()
    }
}

async fn only_the_last_holder_commits_whatever_fails(kind: Kind) {
    let mut random = seed::random();
    let rounds = rounds(kind);
    let mut schedule: Vec<Fault> =
        rounds.iter().flat_map(|(fault, times)| std::iter::repeat_n(*fault, *times)).collect();
    random.shuffle(&mut schedule);
    let mut scene = Scene::start(kind).await;
    let mut suffered: BTreeMap<Fault, (usize, Duration)> = BTreeMap::new();
    for fault in schedule {
        // At whatever moment of whatever they do.
        tokio::time::sleep(Duration::from_micros(random.u64(..3_000))).await;
        let begun = Instant::now();
        let line = &scene.lines[random.usize(..scene.lines.len())];
        // Now and then for longer than anybody may hold.
        let silence = match random.u8(..8) {
            0 => HOLD.mul_f64(1.0 + random.f64()),
            _ => Duration::from_millis(random.u64(..40)),
        };
        match fault {
            Fault::Crash => scene.server.crash().await,
            Fault::FailOver => scene.server.fail_over_to_an_empty_one().await,
            Fault::SessionsEnd => scene.server.end_sessions().await,
            Fault::Silence | Fault::Cut => {
                line.stall();
                tokio::time::sleep(silence).await;
                if fault == Fault::Cut {
                    line.cut();
                    line.restore();
                }
                line.resume();
            }
        }
        scene.all_get_on().await;
        let (count, took) = suffered.entry(fault).or_default();
        *count += 1;
        *took += begun.elapsed();
    }
    let commits = scene.end().await;
    println!("{kind:?}: {suffered:?}, {commits} commits");
    assert!(rounds.iter().all(|(fault, times)| suffered[fault].0 == *times));
}

/// Longer than any provider waits for an answer, which gives its connection up then.
async fn a_silent_connection_is_given_up(kind: Kind) {
    let mut scene = Scene::start(kind).await;
    scene.lines[0].stall();
    // What a process does about silence, it does by its own clock.
    tokio::time::sleep(Duration::from_secs(20)).await;
    if kind.expires() {
        // The other process goes on, with all that the silent one held.
        let still = now();
        scene.workers[1].commits_after(still).await;
    }
    scene.lines[0].resume();
    scene.all_get_on().await;
    scene.end().await;
}
