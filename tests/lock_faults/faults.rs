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
use crate::server::LockServer;
use crate::worker::{Record, Request, Worker, finished};
use support::seed;
use support::soak::rounds;

on_every_provider_with_deposits! { only_the_last_holder_commits_whatever_fails }
mod silence {
    use super::*;

    on_every_server! { a_silent_connection_is_given_up }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// A process is killed, and another one takes its place.
    Killed,
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

/// The number of faults of each kind. A restart of PostgreSQL takes half a second, of MySQL one.
fn faults(kind: Kind) -> Vec<(Fault, usize)> {
    let any = [
        (Fault::Killed, kind.rounds(4, 50)),
        (Fault::SessionsEnd, kind.rounds(12, 200)),
        (Fault::Silence, kind.rounds(8, 100)),
        (Fault::Cut, kind.rounds(8, 100)),
    ];
    let crashes = match kind {
        Kind::Process => unreachable!("there is no other process"),
        // A file has no server.
        Kind::Sqlite => return vec![(Fault::Killed, rounds(8, 100))],
        // It takes half a minute to restart.
        #[cfg(feature = "hbase")]
        Kind::HBase => {
            return vec![
                (Fault::Crash, rounds(1, 20)),
                (Fault::Killed, kind.rounds(4, 50)),
                (Fault::Silence, kind.rounds(8, 100)),
                (Fault::Cut, kind.rounds(12, 200)),
            ];
        }
        // Its connections end with the server, or as they are cut.
        Kind::Etcd => {
            return vec![
                (Fault::Crash, kind.rounds(9, 200)),
                (Fault::FailOver, kind.rounds(9, 200)),
                (Fault::Killed, kind.rounds(4, 50)),
                (Fault::Silence, kind.rounds(8, 100)),
                (Fault::Cut, kind.rounds(12, 200)),
            ];
        }
        Kind::MongoDb | Kind::Aerospike => {
            return vec![
                (Fault::Crash, kind.rounds(9, 100)),
                (Fault::Killed, kind.rounds(6, 50)),
                (Fault::Silence, kind.rounds(12, 100)),
                (Fault::Cut, kind.rounds(12, 200)),
            ];
        }
        Kind::Redis => vec![(Fault::Crash, rounds(12, 200)), (Fault::FailOver, rounds(12, 200))],
        kind => vec![(Fault::Crash, kind.rounds(4, 50))],
    };
    crashes.into_iter().chain(any).collect()
}

const HOLD: Duration = Duration::from_millis(400);
const ACCOUNTS: usize = 6;
const PROCESSES: usize = 2;
const TASKS: usize = 3;

/// Two processes that deposit, each through a proxy of its own if there is a server.
struct Scene {
    kind: Kind,
    server: LockServer,
    ledger: Ledger,
    record: Record,
    proxies: Vec<Proxy>,
    workers: Vec<Worker>,
}

impl Scene {
    async fn start(kind: Kind) -> Self {
        Self::on(LockServer::start(kind).await, kind).await
    }

    async fn on(server: LockServer, kind: Kind) -> Self {
        let (ledger, record) = (Ledger::create().await, Record::default());
        let (proxies, workers) = (Vec::new(), Vec::new());
        let mut scene = Self { kind, server, ledger, record, proxies, workers };
        for n in 0..PROCESSES {
            if kind != Kind::Sqlite {
                scene.proxies.push(Proxy::start(scene.server.address()).await.unwrap());
            }
            let worker = scene.worker(n).await;
            scene.workers.push(worker);
        }
        scene.all_make_progress().await;
        scene
    }

    async fn worker(&self, n: usize) -> Worker {
        let direct = self.server.url.clone();
        let url = self.proxies.get(n).map_or(direct, |proxy| self.server.url_through(proxy));
        let mut worker = Worker::start(self.kind, &url, &self.ledger.url, &self.record).await;
        worker.send(&Request::Contend { tasks: TASKS, accounts: ACCOUNTS, hold: HOLD });
        worker
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
        let process = random.usize(..PROCESSES);
        // Sometimes longer than a hold.
        let silence = match random.u8(..8) {
            0 => HOLD.mul_f64(1.0 + random.f64()),
            _ => Duration::from_millis(random.u64(..40)),
        };
        let from = now();
        match fault {
            Fault::Killed => {
                scene.workers.remove(process).kill();
                let worker = scene.worker(process).await;
                scene.workers.insert(process, worker);
            }
            Fault::Crash => scene.server.crash().await,
            Fault::FailOver => scene.server.fail_over_to_an_empty_one().await,
            Fault::SessionsEnd => scene.server.end_sessions().await,
            Fault::Silence | Fault::Cut => {
                let proxy = &scene.proxies[process];
                proxy.stall();
                tokio::time::sleep(silence).await;
                if fault == Fault::Cut {
                    proxy.cut();
                    proxy.restore();
                }
                proxy.resume();
            }
        }
        // A killed process hands nothing on.
        if fault != Fault::Killed {
            scene.record.lock().unwrap().faults.push(from..=now());
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
    let mut scene = Scene::on(LockServer::shared(kind).await, kind).await;
    let from = now();
    scene.proxies[0].stall();
    tokio::time::sleep(kind.answer_timeout() + Duration::from_secs(3)).await;
    if kind.expires() {
        // The other process continues, and takes over the keys of the silent one.
        let still = now();
        scene.workers[1].commits_after(still).await;
    }
    scene.proxies[0].resume();
    scene.record.lock().unwrap().faults.push(from..=now());
    scene.all_make_progress().await;
    scene.end().await;
}
