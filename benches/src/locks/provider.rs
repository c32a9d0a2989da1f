//! What can be measured: the locks, their servers, and those who contend for them.

use std::sync::Arc;

use clap::ValueEnum;
use ekbatan::lock::{LockKey, LockProvider, PostgresLocks, ProcessBackend};
use ekbatan_lock_redis::RedisBackend;
use ekbatan_testkit::{PostgresServer, RedisServer};

use super::Mode;
use super::contender::{Contender, KEY};
use super::postgres::{self, Advisory, LeaseRow};
use super::redis;
use crate::Failure;

/// How many connections a pool of locks has.
const CONNECTIONS: usize = 4;

/// A provider of locks. A new one has a line in each `match` of this file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Provider {
    /// Within one process.
    Process,
    /// Advisory locks of one session.
    PostgresSession,
    /// Rows of a table.
    PostgresLease,
    /// Keys of one master.
    Redis,
}

/// What keeps the locks.
pub enum Server {
    None,
    Postgres { server: PostgresServer, url: String },
    Redis(RedisServer),
}

impl Provider {
    /// As it is written on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::PostgresSession => "postgres-session",
            Self::PostgresLease => "postgres-lease",
            Self::Redis => "redis",
        }
    }

    pub const fn reaches_other_processes(self) -> bool {
        !matches!(self, Self::Process)
    }

    /// How locks can be kept there.
    pub const fn modes(self) -> &'static [Mode] {
        match self {
            Self::Process | Self::PostgresSession | Self::Redis => &[Mode::Raw, Mode::Ekbatan],
            Self::PostgresLease => &[Mode::Raw, Mode::Blocking, Mode::Ekbatan],
        }
    }

    pub async fn start(self) -> Result<Server, Failure> {
        Ok(match self {
            Self::Process => Server::None,
            Self::PostgresSession | Self::PostgresLease => {
                let server = PostgresServer::builder().durable().start().await?;
                let url = server.create_database().await?;
                postgres::create(&url).await?;
                Server::Postgres { server, url }
            }
            Self::Redis => Server::Redis(RedisServer::start().await?),
        })
    }

    /// Those of one process.
    pub async fn contenders(
        self,
        mode: Mode,
        url: &str,
        count: usize,
    ) -> Result<Vec<Contender>, Failure> {
        if mode == Mode::Ekbatan {
            let locks = self.locks(url).await?;
            let contender = || Contender::Ekbatan(locks.clone(), LockKey::named(KEY));
            return Ok(std::iter::repeat_with(contender).take(count).collect());
        }
        let mut contenders = Vec::new();
        match (self, mode) {
            (Self::Process, _) => {
                let mutex = Arc::default();
                contenders.resize_with(count, || Contender::Mutex(Arc::clone(&mutex)));
            }
            (Self::PostgresSession, _) | (Self::PostgresLease, Mode::Blocking) => {
                for _ in 0..count {
                    contenders.push(Contender::Advisory(Advisory::connect(url).await?));
                }
            }
            (Self::PostgresLease, _) => {
                for _ in 0..count {
                    contenders.push(Contender::LeaseRow(LeaseRow::connect(url).await?));
                }
            }
            (Self::Redis, _) => {
                let of_one_process = redis::connect(url, count).await?;
                contenders.extend(of_one_process.into_iter().map(Contender::SetNx));
            }
        }
        Ok(contenders)
    }

    async fn locks(self, url: &str) -> Result<LockProvider, Failure> {
        const ZONE: &str = "bench";
        Ok(match self {
            Self::Process => LockProvider::new(ProcessBackend::new(), ZONE),
            Self::PostgresSession => {
                let database = PostgresLocks::connect(url, CONNECTIONS).await?;
                LockProvider::new(database.session().await?, ZONE)
            }
            Self::PostgresLease => {
                let database = PostgresLocks::connect(url, CONNECTIONS).await?;
                LockProvider::new(database.leases().await?, ZONE)
            }
            Self::Redis => {
                LockProvider::new(RedisBackend::connect(url, RedisBackend::NAMESPACE).await?, ZONE)
            }
        })
    }
}

impl Server {
    /// Where those who contend find it.
    pub fn address(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Postgres { url, .. } => url.clone(),
            Self::Redis(server) => server.url(),
        }
    }

    pub async fn stop(self) -> Result<(), Failure> {
        match self {
            Self::None => {}
            Self::Postgres { server, .. } => server.stop().await?,
            Self::Redis(server) => server.stop().await?,
        }
        Ok(())
    }
}
