//! Three shards, and processes that commit to them and handle their events, calls and jobs.

mod server;
mod stored;

use std::time::{Duration, Instant};

use ekbatan::jobs::{JobOperations, RunState};
use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use sqlx::{Connection as _, SqliteConnection};
use support::worker_process::PATIENCE;
use support::{Dialect, ScratchDatabase};

use crate::accounts::{self, Open, Opening, SHARDS};
use crate::history::History;
use crate::worker::{self, HeldRun, Record, Worker};
use server::Server;
use stored::shown;

/// How many accounts each shard has.
const ACCOUNTS: usize = 8;

/// The pause between two looks at what others do. Each opens connections.
pub const LOOK: Duration = Duration::from_millis(100);

pub struct Cluster {
    dialect: Dialect,
    server: Server,
    /// The shards, beside all proxies.
    shards: [ScratchDatabase; SHARDS],
    databases: Databases,
    pub accounts: Vec<Uuid>,
    /// Of each worker, its way to each shard. Files have none.
    pub proxies: Vec<Vec<Proxy>>,
    pub workers: Vec<Worker>,
    pub record: Record,
    /// How many workers have been started.
    started: usize,
    pub random: fastrand::Rng,
}

impl Cluster {
    pub async fn start(dialect: Dialect, workers: usize, random: fastrand::Rng) -> Self {
        let (server, urls) = Server::start(dialect).await;
        let databases = accounts::connect(&urls).await;
        databases.migrate(&accounts::migrations()).await.unwrap();
        // These events are older than the handlers.
        let executor = accounts::executor(&databases).await;
        let mut accounts = Vec::new();
        for n in 0..SHARDS * ACCOUNTS {
            let opening = Opening { shard: n % SHARDS };
            accounts.push(executor.execute(&Open, opening).await.unwrap().uuid());
        }
        let shards = urls.map(|url| ScratchDatabase::at(&url));
        let mut cluster = Self {
            dialect,
            server,
            shards,
            databases,
            accounts,
            proxies: Vec::new(),
            workers: Vec::new(),
            record: Record::default(),
            started: 0,
            random,
        };
        for n in 0..workers {
            let mut proxies = Vec::new();
            if dialect != Dialect::Sqlite {
                for shard in &cluster.shards {
                    let host = shard.url.split(['@', '/']).find(|part| part.starts_with("127."));
                    proxies.push(Proxy::start(host.expect("a server")).await.unwrap());
                }
            }
            cluster.proxies.push(proxies);
            let worker = cluster.worker(n).await;
            cluster.workers.push(worker);
        }
        cluster
    }

    /// Starts a worker behind the proxies of this number.
    async fn worker(&mut self, n: usize) -> Worker {
        self.started += 1;
        let urls = std::array::from_fn(|shard| {
            let direct = &self.shards[shard].url;
            self.proxies[n].get(shard).map_or(direct.clone(), |proxy| proxy.url_for(direct))
        });
        let name = format!("worker {n}, process {}", self.started);
        Worker::start(name, &urls, self.random.u64(..), &self.record).await
    }

    /// Kills a worker, and starts another one in its place.
    pub async fn replace(&mut self, n: usize) {
        self.workers.remove(n).kill();
        let worker = self.worker(n).await;
        self.workers.insert(n, worker);
    }

    pub async fn kill_server(&self) {
        self.server.kill().await;
    }

    pub async fn restart_server(&self) {
        self.server.restart().await;
    }

    /// Stops a worker at a moment at which it does not keep a file locked: nobody could take over
    /// from it.
    pub async fn freeze(&mut self, n: usize) {
        loop {
            self.workers[n].freeze();
            if self.dialect != Dialect::Sqlite || self.can_write().await {
                return;
            }
            self.workers[n].thaw();
            tokio::time::sleep(Duration::from_micros(self.random.u64(..3_000))).await;
        }
    }

    /// Whether every file can be written to.
    async fn can_write(&self) -> bool {
        for shard in &self.shards {
            let mut connection = SqliteConnection::connect(&shard.url).await.unwrap();
            let tries = "PRAGMA busy_timeout = 300; BEGIN IMMEDIATE; ROLLBACK";
            let tried = sqlx::raw_sql(tries).execute(&mut connection).await;
            connection.close().await.unwrap();
            if tried.is_err() {
                return false;
            }
        }
        true
    }

    /// Whether what a run is for is still to be done.
    pub async fn is_waiting(&self, held: &HeldRun) -> bool {
        let count = match held {
            HeldRun::Delivery { handler, event, shard } => {
                let shard = &self.shards[*shard];
                let deliveries = shard.eventlog("deliveries");
                let of_run = format!(
                    "FROM {deliveries} WHERE event_id = '{event}' AND handler = '{handler}'"
                );
                shard.select(&["id"], &of_run).await.len()
            }
            HeldRun::Call { request, shard } => {
                let of_run = format!("FROM call_effects WHERE request = '{request}'");
                let effects = self.shards[*shard].select(&["id"], &of_run).await;
                usize::from(effects.is_empty())
            }
            HeldRun::Job { run } => {
                let runs = self.shards[0].eventlog("job_runs");
                let of_run =
                    format!("FROM {runs} WHERE id = '{run}' AND state IN ('WAITING', 'RUNNING')");
                self.shards[0].select(&["id"], &of_run).await.len()
            }
        };
        count > 0
    }

    /// Whether a node of a worker is still known on a shard.
    pub async fn is_known(&self, n: usize, shard: usize) -> bool {
        let name = &self.workers[n].name;
        // Jobs are stored on the default shard.
        let tables: &[_] = if shard == 0 { &["nodes", "job_nodes"] } else { &["nodes"] };
        let shard = &self.shards[shard];
        for table in tables {
            let of_node = format!("FROM {} WHERE name = '{name}'", shard.eventlog(table));
            if !shard.select(&["id"], &of_node).await.is_empty() {
                return true;
            }
        }
        false
    }

    /// Waits until each job has done a run. The first slot of a job is one period after its registration.
    pub async fn wait_for_jobs(&self) {
        let began = Instant::now();
        for job in worker::jobs::jobs() {
            let done =
                async || stored::read_job(&self.databases, job.clone()).await.count(RunState::Done);
            while done().await == 0 {
                assert!(began.elapsed() < PATIENCE, "no run of {} was done", job.name);
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Waits until everything is handled that is due by now, or nothing is any more. Ends the workers, and
    /// returns the history and how long the wait took.
    pub async fn end(mut self) -> (History, Duration) {
        for worker in &mut self.workers {
            worker.commits().await;
        }
        let began = Instant::now();
        let due = self.databases.default_shard().database_time().await.unwrap();
        let mut left = self.left_of(due).await;
        let (mut fewest, mut handled) = (left.len(), Instant::now());
        // A long backlog takes its time. Nothing at all is handled for so long only if it is stuck.
        while !left.is_empty() && handled.elapsed() < PATIENCE {
            tokio::time::sleep(LOOK).await;
            left = self.left_of(due).await;
            if left.len() < fewest {
                (fewest, handled) = (left.len(), Instant::now());
            }
        }
        let took = began.elapsed();
        if left.is_empty() {
            for worker in std::mem::take(&mut self.workers) {
                worker.stop().await;
            }
            left = self.left_of(due).await;
        } else {
            for shard in &self.shards {
                let nodes = format!("FROM {}", shard.eventlog("nodes"));
                let nodes = shard.select(&["id", "name", "version"], &nodes).await;
                left.extend(nodes.into_iter().map(|row| format!("node {}", shown(row))));
            }
        }
        let mut history = History {
            handlers: worker::handlers(),
            answers: self.record.answers(),
            left,
            ..History::default()
        };
        for shard in &self.shards {
            stored::read_shard(shard, &mut history).await;
        }
        for job in worker::jobs::jobs() {
            history.jobs.push(stored::read_job(&self.databases, job).await);
        }
        (history, took)
    }

    /// What is to be handled by now.
    pub async fn left(&self) -> Vec<String> {
        let now = self.databases.default_shard().database_time().await.unwrap();
        self.left_of(now).await
    }

    /// What was due by a time and is not done: slots that are not decided on, runs of jobs, deliveries,
    /// and events that lack theirs.
    async fn left_of(&self, due: DateTime<Utc>) -> Vec<String> {
        let mut left = self.deliveries_left().await;
        for job in JobOperations::new(&self.databases).jobs().await.unwrap() {
            if job.next_slot.is_none_or(|slot| slot <= due) {
                left.push(format!("{job:?}"));
            }
        }
        for (slot, run) in stored::runs_left(&self.shards[0]).await {
            if slot <= due {
                left.push(run);
            }
        }
        left
    }

    /// The deliveries that are there, and the events that lack theirs.
    async fn deliveries_left(&self) -> Vec<String> {
        const DELIVERY: [&str; 10] = [
            "id",
            "handler",
            "stream",
            "model_version",
            "event_id",
            "state",
            "node",
            "due",
            "attempts",
            "last_error",
        ];
        let mut left = Vec::new();
        for (n, shard) in self.shards.iter().enumerate() {
            let (events, deliveries) = (shard.eventlog("events"), shard.eventlog("deliveries"));
            // First the events: what they lack would otherwise appear among the deliveries
            // afterwards.
            let lacking = format!("FROM {events} WHERE COALESCE(fanned_out, 0) = 0");
            let lacking = shard.select(&["id", "model_id", "model_version"], &lacking).await;
            let lacking = lacking.into_iter().map(shown);
            left.extend(lacking.map(|row| format!("shard {n}, without deliveries: {row}")));
            let rows = shard.select(&DELIVERY, &format!("FROM {deliveries}")).await;
            left.extend(rows.into_iter().map(|row| format!("shard {n}: {}", shown(row))));
        }
        left
    }
}
