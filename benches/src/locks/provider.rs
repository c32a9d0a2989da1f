//! The servers that store the locks, and the clients of each provider.

use std::sync::Arc;

use ekbatan::lock::{
    EtcdBackend, LockKey, LockProvider, MySqlLocks, PostgresLocks, ProcessBackend, SqliteLocks,
};
use ekbatan_lock_redis::RedisBackend;
#[cfg(feature = "aerospike")]
use ekbatan_testkit::AerospikeServer;
#[cfg(feature = "mongodb")]
use ekbatan_testkit::FerretDbServer;
use ekbatan_testkit::{
    EtcdServer, MariaDbServer, MySqlServer, PostgresServer, RedisServer, TempSqlite,
};

#[cfg(feature = "aerospike")]
use super::aerospike::AerospikeRecord;
use super::etcd::EtcdMutex;
use super::key::KEY;
use super::lock_client::LockClient;
#[cfg(feature = "mongodb")]
use super::mongodb::MongoDocument;
use super::mysql::{self, MySqlRow, NamedLock};
use super::options::{LockMode, Provider};
use super::postgres::{self, Advisory, LeaseRow};
use super::redis;
use super::sqlite::SqliteRow;
use crate::failure::Failure;

/// The size of ekbatan's pool of lock connections.
const CONNECTIONS: usize = 4;

/// The running server, if the provider needs one.
pub enum LockServer {
    None,
    Postgres {
        server: PostgresServer,
        url: String,
    },
    Redis(RedisServer),
    MySql {
        server: MySqlServer,
        url: String,
    },
    MariaDb {
        server: MariaDbServer,
        url: String,
    },
    File(TempSqlite),
    Etcd(EtcdServer),
    #[cfg(feature = "hbase")]
    HBase(ekbatan_testkit::HBaseServer, String),
    #[cfg(feature = "mongodb")]
    FerretDb(FerretDbServer),
    #[cfg(feature = "aerospike")]
    Aerospike(AerospikeServer),
}

impl LockServer {
    pub async fn start(provider: Provider) -> Result<Self, Failure> {
        Ok(match provider {
            Provider::Process => Self::None,
            Provider::PostgresSession | Provider::PostgresLease => {
                let server = PostgresServer::builder().durable().start().await?;
                let url = server.create_database().await?;
                postgres::create(&url).await?;
                Self::Postgres { server, url }
            }
            Provider::Redis => Self::Redis(RedisServer::start().await?),
            Provider::MysqlSession | Provider::MysqlLease => {
                let server = MySqlServer::builder().durable().start().await?;
                let url = server.create_database().await?;
                mysql::create(&url).await?;
                Self::MySql { server, url }
            }
            Provider::MariadbSession | Provider::MariadbLease => {
                let server = MariaDbServer::builder().durable().start().await?;
                let url = server.create_database().await?;
                mysql::create(&url).await?;
                Self::MariaDb { server, url }
            }
            Provider::Sqlite => Self::File(TempSqlite::new()?),
            Provider::Etcd => Self::Etcd(EtcdServer::start().await?),
            #[cfg(feature = "hbase")]
            Provider::HBase => {
                let server = ekbatan_testkit::HBaseServer::start().await?;
                super::hbase::create(&server).await?;
                // The port of the rows, for the hand-written locks.
                let address = format!("{} {}", server.rows_port().await?, server.url());
                Self::HBase(server, address)
            }
            // The PostgreSQL below it writes to disk before it acknowledges, as in production.
            #[cfg(feature = "mongodb")]
            Provider::Mongodb => {
                let server = FerretDbServer::builder().setting("fsync", "on");
                Self::FerretDb(server.setting("full_page_writes", "on").start().await?)
            }
            #[cfg(feature = "aerospike")]
            Provider::Aerospike => Self::Aerospike(AerospikeServer::start().await?),
        })
    }

    /// The address that clients connect to; empty without a server.
    pub fn address(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Postgres { url, .. } | Self::MySql { url, .. } | Self::MariaDb { url, .. } => {
                url.clone()
            }
            Self::File(file) => file.url(),
            Self::Redis(server) => server.url(),
            Self::Etcd(server) => server.url(),
            #[cfg(feature = "hbase")]
            Self::HBase(_, address) => address.clone(),
            #[cfg(feature = "mongodb")]
            Self::FerretDb(server) => server.url(),
            #[cfg(feature = "aerospike")]
            Self::Aerospike(server) => server.url(),
        }
    }

    pub async fn stop(self) -> Result<(), Failure> {
        match self {
            Self::None | Self::File(_) => {}
            Self::MySql { server, .. } => server.stop().await?,
            Self::MariaDb { server, .. } => server.stop().await?,
            Self::Postgres { server, .. } => server.stop().await?,
            Self::Redis(server) => server.stop().await?,
            Self::Etcd(server) => server.stop().await?,
            #[cfg(feature = "hbase")]
            Self::HBase(server, _) => server.stop().await?,
            #[cfg(feature = "mongodb")]
            Self::FerretDb(server) => server.stop().await?,
            #[cfg(feature = "aerospike")]
            Self::Aerospike(server) => server.stop().await?,
        }
        Ok(())
    }
}

/// Connects the clients of one process.
pub async fn clients(
    provider: Provider,
    mode: LockMode,
    url: &str,
    count: usize,
) -> Result<Vec<LockClient>, Failure> {
    if mode == LockMode::Ekbatan {
        let locks = locks(provider, url).await?;
        let client = || LockClient::Ekbatan(locks.clone(), LockKey::named(KEY));
        return Ok(std::iter::repeat_with(client).take(count).collect());
    }
    let mut clients = Vec::new();
    match (provider, mode) {
        (Provider::Process, _) => {
            let mutex = Arc::default();
            clients.resize_with(count, || LockClient::Mutex(Arc::clone(&mutex)));
        }
        (Provider::PostgresSession, _) | (Provider::PostgresLease, LockMode::Blocking) => {
            for _ in 0..count {
                clients.push(LockClient::Advisory(Advisory::connect(url).await?));
            }
        }
        (Provider::PostgresLease, _) => {
            for _ in 0..count {
                clients.push(LockClient::LeaseRow(LeaseRow::connect(url).await?));
            }
        }
        (Provider::MysqlSession | Provider::MariadbSession, _)
        | (Provider::MysqlLease | Provider::MariadbLease, LockMode::Blocking) => {
            for _ in 0..count {
                clients.push(LockClient::NamedLock(NamedLock::connect(url).await?));
            }
        }
        (Provider::MysqlLease | Provider::MariadbLease, _) => {
            for _ in 0..count {
                clients.push(LockClient::MySqlRow(MySqlRow::connect(url).await?));
            }
        }
        (Provider::Sqlite, _) => {
            for _ in 0..count {
                clients.push(LockClient::SqliteRow(SqliteRow::connect(url).await?));
            }
        }
        (Provider::Etcd, _) => {
            for _ in 0..count {
                clients.push(LockClient::EtcdMutex(EtcdMutex::connect(url).await?));
            }
        }
        #[cfg(feature = "hbase")]
        (Provider::HBase, _) => {
            let port = url.split(' ').next().unwrap_or_default().parse()?;
            for _ in 0..count {
                let row = super::hbase::CheckAndMutate::connect(port).await?;
                clients.push(LockClient::CheckAndMutate(row));
            }
        }
        #[cfg(feature = "mongodb")]
        (Provider::Mongodb, _) => {
            for _ in 0..count {
                clients.push(LockClient::MongoDocument(MongoDocument::connect(url).await?));
            }
        }
        #[cfg(feature = "aerospike")]
        (Provider::Aerospike, _) => {
            for _ in 0..count {
                clients.push(LockClient::AerospikeRecord(AerospikeRecord::connect(url).await?));
            }
        }
        (Provider::Redis, _) => {
            let of_one_process = redis::connect(url, count).await?;
            clients.extend(of_one_process.into_iter().map(LockClient::SetNx));
        }
    }
    Ok(clients)
}

async fn locks(provider: Provider, url: &str) -> Result<LockProvider, Failure> {
    const ZONE: &str = "bench";
    Ok(match provider {
        Provider::Process => LockProvider::new(ProcessBackend::new(), ZONE),
        Provider::PostgresSession => {
            let database = PostgresLocks::connect(url, CONNECTIONS).await?;
            LockProvider::new(database.session().await?, ZONE)
        }
        Provider::PostgresLease => {
            let database = PostgresLocks::connect(url, CONNECTIONS).await?;
            LockProvider::new(database.leases().await?, ZONE)
        }
        Provider::MysqlSession | Provider::MariadbSession => {
            let server = MySqlLocks::connect(url, CONNECTIONS).await?;
            LockProvider::new(server.session().await?, ZONE)
        }
        Provider::MysqlLease | Provider::MariadbLease => {
            let server = MySqlLocks::connect(url, CONNECTIONS).await?;
            LockProvider::new(server.leases().await?, ZONE)
        }
        Provider::Sqlite => {
            LockProvider::new(SqliteLocks::connect(url).await?.leases().await?, ZONE)
        }
        Provider::Etcd => {
            LockProvider::new(EtcdBackend::connect(url, EtcdBackend::NAMESPACE).await?, ZONE)
        }
        #[cfg(feature = "hbase")]
        Provider::HBase => {
            use ekbatan::lock::HBaseBackend;
            let url = url.split(' ').nth(1).unwrap_or_default();
            LockProvider::new(HBaseBackend::connect(url, HBaseBackend::NAMESPACE).await?, ZONE)
        }
        #[cfg(feature = "mongodb")]
        Provider::Mongodb => {
            use ekbatan::lock::MongoDbBackend;
            LockProvider::new(MongoDbBackend::connect(url, MongoDbBackend::NAMESPACE).await?, ZONE)
        }
        #[cfg(feature = "aerospike")]
        Provider::Aerospike => {
            use ekbatan::lock::AerospikeBackend;
            let backend = AerospikeBackend::connect(url, AerospikeBackend::NAMESPACE).await?;
            LockProvider::new(backend, ZONE)
        }
        Provider::Redis => {
            LockProvider::new(RedisBackend::connect(url, RedisBackend::NAMESPACE).await?, ZONE)
        }
    })
}
