//! The private servers of a run, and the network to them.
//!
//! Invariants: every server is removed at the end of the run, however it ends. While a
//! pass is counted or delayed, all traffic goes through one proxy per server.

use std::time::Duration;

use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer, Proxy, RedisServer, TempSqlite};

use crate::access::{Access, DepositDurability, Engine};
use crate::arguments::{DatabaseSource, RunPlan};
use crate::failure::Failure;
use crate::lock_place::LockPlace;

/// A handle that keeps the database alive.
enum PrivateDatabase {
    Postgres(PostgresServer),
    MySql(MySqlServer),
    MariaDb(MariaDbServer),
    Sqlite(#[expect(dead_code, reason = "dropping it removes the file")] TempSqlite),
    Given,
}

pub struct Servers {
    database: PrivateDatabase,
    redis: Option<RedisServer>,
    pub access: Access,
    pub lock: LockPlace,
}

impl Servers {
    pub async fn start(plan: &RunPlan, durability: DepositDurability) -> Result<Self, Failure> {
        let (database, access) = match &plan.source {
            DatabaseSource::Given(access) => (PrivateDatabase::Given, access.clone()),
            DatabaseSource::Private(engine) => {
                private(*engine, durability, connections(plan)).await?
            }
        };
        let (redis, lock) = match &plan.lock {
            LockPlace::Redis => {
                let server = RedisServer::start().await?;
                let url = server.url();
                (Some(server), LockPlace::RedisAt(url))
            }
            lock => (None, lock.clone()),
        };
        Ok(Self { database, redis, access, lock })
    }

    /// Whether the database is private, so that its tables may be emptied.
    pub const fn is_private(&self) -> bool {
        !matches!(self.database, PrivateDatabase::Given)
    }

    pub async fn stop(self) -> Result<(), Failure> {
        if let Some(redis) = self.redis {
            redis.stop().await?;
        }
        match self.database {
            PrivateDatabase::Postgres(server) => Ok(server.stop().await?),
            PrivateDatabase::MySql(server) => Ok(server.stop().await?),
            PrivateDatabase::MariaDb(server) => Ok(server.stop().await?),
            PrivateDatabase::Sqlite(_) | PrivateDatabase::Given => Ok(()),
        }
    }
}

/// An upper bound of the open connections: one per task, and some per process.
fn connections(plan: &RunPlan) -> u32 {
    let of = |level: &crate::cell::Level| level.tasks + 10 * level.processes;
    plan.levels.iter().map(of).max().unwrap_or_default() + 20
}

async fn private(
    engine: Engine,
    durability: DepositDurability,
    connections: u32,
) -> Result<(PrivateDatabase, Access), Failure> {
    let full = durability == DepositDurability::Full;
    let connections = connections.to_string();
    let (kept, url) = match engine {
        Engine::Sqlite => {
            let file = TempSqlite::new()?;
            let url = file.url();
            (PrivateDatabase::Sqlite(file), url)
        }
        Engine::Postgres => {
            let builder = PostgresServer::builder()
                .setting("autovacuum", "on")
                .setting("max_connections", &connections)
                .setting("shared_buffers", "128MB")
                // Checkpoints run between cells, never during one.
                .setting("max_wal_size", "8GB")
                .setting("checkpoint_timeout", "1h");
            let server = if full { builder.durable() } else { builder }.start().await?;
            let url = server.create_database().await?;
            (PrivateDatabase::Postgres(server), url)
        }
        Engine::MySql => {
            let builder = MySqlServer::builder()
                .setting("max-connections", &connections)
                .setting("innodb-buffer-pool-size", "256M")
                .setting("innodb-redo-log-capacity", "2G");
            let server = if full { builder.durable() } else { builder }.start().await?;
            let url = server.create_database().await?;
            (PrivateDatabase::MySql(server), url)
        }
        Engine::MariaDb => {
            let builder = MariaDbServer::builder()
                .setting("max-connections", &connections)
                .setting("innodb-buffer-pool-size", "256M")
                .setting("innodb-log-file-size", "2G");
            let server = if full { builder.durable() } else { builder }.start().await?;
            let url = server.create_database().await?;
            (PrivateDatabase::MariaDb(server), url)
        }
    };
    Ok((kept, Access::new(engine, url, durability)))
}

/// The proxies in front of the servers.
pub struct Network {
    database: Proxy,
    redis: Option<Proxy>,
}

impl Network {
    /// Starts the proxies; `None` for a database without a network.
    pub async fn start(servers: &Servers, delay_us: u64) -> Result<Option<Self>, Failure> {
        let Some((host, port)) = servers.access.target()? else { return Ok(None) };
        let database = Proxy::start((host, port)).await?;
        let redis = match &servers.lock {
            LockPlace::RedisAt(url) => Some(Proxy::start(redis_address(url)).await?),
            _ => None,
        };
        let delay = Duration::from_micros(delay_us);
        database.set_delay(delay);
        if let Some(redis) = &redis {
            redis.set_delay(delay);
        }
        Ok(Some(Self { database, redis }))
    }

    pub fn access(&self, servers: &Servers) -> Access {
        servers.access.through(|url| self.database.url_for(url))
    }

    pub fn lock(&self, servers: &Servers) -> LockPlace {
        match (&servers.lock, &self.redis) {
            (LockPlace::RedisAt(url), Some(redis)) => LockPlace::RedisAt(redis.url_for(url)),
            (lock, _) => lock.clone(),
        }
    }

    pub fn round_trips(&self) -> u64 {
        self.database.round_trips() + self.redis.as_ref().map_or(0, Proxy::round_trips)
    }

    pub fn connections(&self) -> usize {
        self.database.connections() + self.redis.as_ref().map_or(0, Proxy::connections)
    }
}

/// The host and port of `redis://USER:PASSWORD@HOST:PORT/DB`.
fn redis_address(url: &str) -> String {
    let rest = url.trim_start_matches("redis://");
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    let address = authority.rsplit('@').next().unwrap_or(authority);
    match address.rsplit_once(':') {
        Some(_) => address.to_owned(),
        None => format!("{address}:6379"),
    }
}
