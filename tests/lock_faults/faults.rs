//! Processes deposit while lock servers are killed, lose their data or end sessions, and while
//! connections go silent.
//!
//! After each fault every process must commit a deposit that it requested after the end of the
//! fault. All rounds are one history.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ekbatan_testkit::Proxy;

use crate::ledger::{Ledger, now};
use crate::providers::Kind;
use crate::seed;
use crate::server::LockServer;
use crate::worker::{Record, Request, Worker, finished};
use support::soak::rounds;

on_every_provider! {
    only_the_last_holder_commits_whatever_fails,
    a_silent_connection_is_given_up,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The server is killed and restarted with its data.
    Crash,
    /// The server is killed and replaced by one without data.
    FailOver,
    /// The server ends every session or connection.
    SessionsEnd,
    /// The connection of one process carries nothing for a while.
    Silence,
    /// The connection of one process carries nothing for a while and is then cut, so that bytes on
    /// their way are lost.
    Cut,
}

/// The number of faults of each kind. A restart of PostgreSQL takes half a second.
fn faults(kind: Kind) -> Vec<(Fault, usize)> {
    let any = [
        (Fault::SessionsEnd, rounds(12, 200)),
        (Fault::Silence, rounds(8, 100)),
        (Fault::Cut, rounds(8, 100)),
    ];
    let killed = match kind {
        Kind::Process => unreachable!("there is no server"),
        Kind::Redis => vec![(Fault::Crash, rounds(12, 200)), (Fault::FailOver, rounds(12, 200))],
        Kind::PostgresLease | Kind::PostgresSession => vec![(Fault::Crash, rounds(4, 50))],
    };
    killed.into_iter().chain(any).collect()
}

const HOLD: Duration = Duration::from_millis(400);
const ACCOUNTS: usize = 6;
const TASKS: usize = 3;

/// Two processes that deposit, each through a proxy of its own.
struct Scene {
    server: LockServer,
    ledger: Ledger,
    record: Record,
    proxies: Vec<Proxy>,
    workers: Vec<Worker>,
}

impl Scene {
    async fn start(kind: Kind) -> Self {
        let (server, ledger) = (LockServer::start(kind).await, Ledger::create().await);
        let record = Record::default();
        let (mut proxies, mut workers) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let proxy = Proxy::start(server.address()).await.unwrap();
            let url = proxy.url_for(&server.url);
            let mut worker = Worker::start(kind, &url, &ledger.url, &record).await;
            worker.send(&Request::Contend { tasks: TASKS, accounts: ACCOUNTS, hold: HOLD });
            proxies.push(proxy);
            workers.push(worker);
        }
        let mut scene = Self { server, ledger, record, proxies, workers };
        scene.all_make_progress().await;
        scene
    }

    async fn all_make_progress(&mut self) {
        let over = now();
        for worker in &mut self.workers {
            worker.commits_after(over).await;
        }
    }

    /// Stops the workers and checks the history.
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
    let faults = faults(kind);
    let mut schedule: Vec<Fault> =
        faults.iter().flat_map(|(fault, times)| std::iter::repeat_n(*fault, *times)).collect();
    random.shuffle(&mut schedule);
    let mut scene = Scene::start(kind).await;
    let mut suffered: BTreeMap<Fault, (usize, Duration)> = BTreeMap::new();
    for fault in schedule {
        // The fault falls at a random moment.
        tokio::time::sleep(Duration::from_micros(random.u64(..3_000))).await;
        let begun = Instant::now();
        let proxy = &scene.proxies[random.usize(..scene.proxies.len())];
        // Sometimes longer than a hold.
        let silence = match random.u8(..8) {
            0 => HOLD.mul_f64(1.0 + random.f64()),
            _ => Duration::from_millis(random.u64(..40)),
        };
        match fault {
            Fault::Crash => scene.server.crash().await,
            Fault::FailOver => scene.server.fail_over_to_an_empty_one().await,
            Fault::SessionsEnd => scene.server.end_sessions().await,
            Fault::Silence | Fault::Cut => {
                proxy.stall();
                tokio::time::sleep(silence).await;
                if fault == Fault::Cut {
                    proxy.cut();
                    proxy.restore();
                }
                proxy.resume();
            }
        }
        scene.all_make_progress().await;
        let (count, took) = suffered.entry(fault).or_default();
        *count += 1;
        *took += begun.elapsed();
    }
    let commits = scene.end().await;
    println!("{kind:?}: {suffered:?}, {commits} commits");
    assert!(faults.iter().all(|(fault, times)| suffered[fault].0 == *times));
}

/// The connection is silent for longer than any provider waits for an answer.
async fn a_silent_connection_is_given_up(kind: Kind) {
    let mut scene = Scene::start(kind).await;
    scene.proxies[0].stall();
    tokio::time::sleep(kind.answer_timeout() + Duration::from_secs(3)).await;
    if kind.expires() {
        // The other process continues, and takes over the keys of the silent one.
        let still = now();
        scene.workers[1].commits_after(still).await;
    }
    scene.proxies[0].resume();
    scene.all_make_progress().await;
    scene.end().await;
}
