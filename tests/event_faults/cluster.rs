//! Three shards, and processes that commit to them and handle their events.

use std::time::{Duration, Instant};

use ekbatan::prelude::*;
use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer, Proxy, TempSqlite};
use sqlx::{Connection as _, SqliteConnection};
use support::worker_process::PATIENCE;
use support::{Dialect, ScratchDatabase};

use crate::accounts::{self, Open, Opening, SHARDS};
use crate::history::{Effect, Event, History};
use crate::worker::{self, HeldRun, Record, Worker};

/// How many accounts each shard has.
const ACCOUNTS: usize = 8;

/// The pause between two looks at what others do. Each opens connections.
pub const LOOK: Duration = Duration::from_millis(100);

/// The server of the three shards. No other test uses it.
enum Server {
    Files { _files: Vec<TempSqlite> },
    Postgres(PostgresServer),
    MySql(MySqlServer),
    MariaDb(MariaDbServer),
}

pub struct Cluster {
    dialect: Dialect,
    server: Server,
    /// The shards, beside all proxies.
    shards: [ScratchDatabase; SHARDS],
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
        let (server, urls) = start_server(dialect).await;
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
        let killed = match &self.server {
            Server::Files { .. } => unreachable!("files have no server"),
            Server::Postgres(server) => server.kill().await,
            Server::MySql(server) => server.kill().await,
            Server::MariaDb(server) => server.kill().await,
        };
        killed.unwrap();
    }

    pub async fn restart_server(&self) {
        let restarted = match &self.server {
            Server::Files { .. } => unreachable!("files have no server"),
            Server::Postgres(server) => server.restart().await,
            Server::MySql(server) => server.restart().await,
            Server::MariaDb(server) => server.restart().await,
        };
        restarted.unwrap();
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

    /// Whether a run's delivery is still there.
    pub async fn is_waiting(&self, held: &HeldRun) -> bool {
        let shard = &self.shards[held.shard];
        let HeldRun { handler, event, .. } = held;
        let of_run = format!(
            "FROM {} WHERE event_id = '{event}' AND handler = '{handler}'",
            shard.eventlog("deliveries")
        );
        !shard.select(&["id"], &of_run).await.is_empty()
    }

    /// Whether a worker's node is still known on a shard.
    pub async fn is_known(&self, n: usize, shard: usize) -> bool {
        let shard = &self.shards[shard];
        let name = &self.workers[n].name;
        let of_node = format!("FROM {} WHERE name = '{name}'", shard.eventlog("nodes"));
        !shard.select(&["id"], &of_node).await.is_empty()
    }

    /// Waits until every event is handled, or none is any more. Ends the workers, and returns the history and how long
    /// the wait took.
    pub async fn end(mut self) -> (History, Duration) {
        for worker in &mut self.workers {
            worker.commits().await;
        }
        let began = Instant::now();
        let mut left = self.left().await;
        let (mut fewest, mut handled) = (left.len(), Instant::now());
        // A long backlog takes its time. Nothing at all is handled for so long only if it is stuck.
        while !left.is_empty() && handled.elapsed() < PATIENCE {
            tokio::time::sleep(LOOK).await;
            left = self.left().await;
            if left.len() < fewest {
                (fewest, handled) = (left.len(), Instant::now());
            }
        }
        let took = began.elapsed();
        if left.is_empty() {
            for worker in std::mem::take(&mut self.workers) {
                worker.stop().await;
            }
            left = self.left().await;
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
            read(shard, &mut history).await;
        }
        (history, took)
    }

    /// The deliveries that are there, and the events that lack theirs.
    pub async fn left(&self) -> Vec<String> {
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

fn shown(row: Vec<Option<String>>) -> String {
    let values: Vec<String> = row.into_iter().map(|value| value.unwrap_or_default()).collect();
    values.join(" | ")
}

/// Adds what a shard stores to a history.
async fn read(shard: &ScratchDatabase, history: &mut History) {
    let text = |value: &Option<String>| value.clone().expect("no null");
    let number = |value: &Option<String>| value.as_ref().expect("no null").parse::<i64>().unwrap();
    let events = format!("FROM {} WHERE event_type IS NOT NULL", shard.eventlog("events"));
    let columns = ["id", "model_id", "model_version", "action_id"];
    for row in shard.select(&columns, &events).await {
        history.events.push(Event {
            id: text(&row[0]),
            account: text(&row[1]),
            version: number(&row[2]),
            action: text(&row[3]),
        });
    }
    for row in shard.select(&["handler", "event", "after_version"], "FROM entries").await {
        history.effects.push(Effect {
            handler: text(&row[0]),
            event: text(&row[1]),
            after: number(&row[2]),
        });
    }
    for row in shard.select(&["id", "version"], "FROM accounts").await {
        history.versions.insert(text(&row[0]), number(&row[1]));
    }
}

async fn start_server(dialect: Dialect) -> (Server, [String; SHARDS]) {
    let mut urls = Vec::new();
    let server = match dialect {
        Dialect::Sqlite => {
            let files: Vec<_> = (0..SHARDS).map(|_| TempSqlite::new().unwrap()).collect();
            urls.extend(files.iter().map(TempSqlite::url));
            Server::Files { _files: files }
        }
        Dialect::Postgres => {
            // What the server has written survives it: the operating system keeps it.
            let server = PostgresServer::builder()
                .setting("synchronous_commit", "on")
                .setting("max_connections", "200")
                .start()
                .await
                .unwrap();
            for _ in 0..SHARDS {
                urls.push(server.create_database().await.unwrap());
            }
            Server::Postgres(server)
        }
        Dialect::MySql => {
            let server = MySqlServer::start().await.unwrap();
            for _ in 0..SHARDS {
                urls.push(server.create_database().await.unwrap());
            }
            Server::MySql(server)
        }
        Dialect::MariaDb => {
            let server = MariaDbServer::start().await.unwrap();
            for _ in 0..SHARDS {
                urls.push(server.create_database().await.unwrap());
            }
            Server::MariaDb(server)
        }
    };
    (server, urls.try_into().unwrap())
}
