//! The lock provider of one test, with a namespace of its own.

use std::time::Duration;

use ekbatan::lock::{
    KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockProvider, MySqlLocks,
    PostgresLocks, ProcessBackend, SqliteLocks, WithLockError,
};
use ekbatan_lock_etcd::EtcdBackend;
use ekbatan_lock_redis::RedisBackend;
use ekbatan_testkit::{
    EtcdServer, MariaDbServer, MySqlServer, PostgresServer, RedisServer, TempSqlite,
};
use support::until;
use uuid::Uuid;

use crate::sql::place::Place;
use crate::stores;

/// Every provider that the suite runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Process,
    Redis,
    Etcd,
    HBase,
    MongoDb,
    #[cfg_attr(
        not(feature = "aerospike"),
        expect(dead_code, reason = "its tests need the feature")
    )]
    Aerospike,
    PostgresLease,
    PostgresSession,
    Sqlite,
    MySqlLease,
    MySqlSession,
    MariaDbLease,
    MariaDbSession,
}

impl Kind {
    /// Whether it is one of those of `scripts/test stores`.
    pub fn is_store(self) -> bool {
        matches!(self, Kind::MongoDb | Kind::Aerospike | Kind::HBase)
    }

    pub fn is_mariadb(self) -> bool {
        matches!(self, Kind::MariaDbLease | Kind::MariaDbSession)
    }

    /// Whether a holder learns of a loss before its lease is renewed.
    pub fn watches_leases(self) -> bool {
        self == Kind::Etcd || self == Kind::HBase
    }

    /// Whether its locks are in a database on a server with SQL.
    pub fn is_sql_server(self) -> bool {
        self.is_session()
            || matches!(self, Kind::PostgresLease | Kind::MySqlLease | Kind::MariaDbLease)
    }

    /// Whether its locks belong to a session of the server.
    pub fn is_session(self) -> bool {
        matches!(self, Kind::PostgresSession | Kind::MySqlSession | Kind::MariaDbSession)
    }
}

/// The size of a provider's connection pool.
pub const CONNECTIONS: usize = 4;

/// Longer than any step takes, also on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

pub struct TestLocks {
    pub locks: LockProvider,
    kind: Kind,
    /// The address of the database, or the namespace on the shared server.
    place: String,
    _file: Option<TempSqlite>,
}

impl TestLocks {
    pub async fn start(kind: Kind) -> Self {
        let mut file = None;
        let place = match kind {
            Kind::Process => String::new(),
            Kind::Redis | Kind::Etcd | Kind::MongoDb | Kind::Aerospike | Kind::HBase => {
                Uuid::new_v4().to_string()
            }
            Kind::PostgresLease | Kind::PostgresSession => {
                PostgresServer::shared().await.unwrap().create_database().await.unwrap()
            }
            Kind::Sqlite => file.insert(TempSqlite::new().unwrap()).url(),
            Kind::MySqlLease | Kind::MySqlSession | Kind::MariaDbLease | Kind::MariaDbSession => {
                mysql_database(kind).await
            }
        };
        Self { locks: provider(kind, &place).await, kind, place, _file: file }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The database of the locks, if they are on a server with SQL.
    pub fn place(&self) -> Option<Place> {
        self.kind.is_sql_server().then(|| Place { kind: self.kind, url: self.place.clone() })
    }

    /// The provider of another node. In-process locks have one node only.
    pub async fn other_node(&self) -> LockProvider {
        match self.kind {
            Kind::Process => self.locks.clone(),
            kind => provider(kind, &self.place).await,
        }
    }

    /// Opens the provider of another node, for a task. In-process locks are locks of their own.
    pub fn opening(&self) -> impl Future<Output = LockProvider> + Send + use<> {
        let (kind, place) = (self.kind, self.place.clone());
        async move { provider(kind, &place).await }
    }

    /// Acquires a free key.
    pub async fn hold(&self, key: &LockKey) -> Lease {
        self.try_for(key, LONG, LONG).await.unwrap_or_else(|| panic!("{key} is free"))
    }

    pub async fn try_for(&self, key: &LockKey, wait: Duration, hold: Duration) -> Option<Lease> {
        self.locks.try_acquire(key, wait, hold).await.unwrap()
    }

    /// Acquires the key if it is free now.
    pub async fn try_now(&self, key: &LockKey) -> Option<Lease> {
        self.try_for(key, Duration::ZERO, LONG).await
    }

    pub async fn take(&self, key: &LockKey, options: LockOptions) -> Option<Lease> {
        self.locks.take(key, &options).await.unwrap()
    }

    /// Waits until the server reports no holder.
    pub async fn is_free_in_the_end(&self, key: &LockKey) {
        // A busy server may answer too late for one look.
        let is_free = async || matches!(self.locks.inspect(key).await, Ok(None));
        until("the key is free", is_free).await;
    }
}

/// Repeats a call with longer and longer waits, until it finds a key busy as the test expects.
pub async fn until_busy(
    mut wait: Duration,
    mut call: impl AsyncFnMut(Duration) -> Result<(), WithLockError<()>>,
) {
    while let Err(other) = call(wait).await {
        // A busy machine may take longer than the wait for the steps before it.
        let is_late = matches!(
            other,
            WithLockError::Busy { .. }
                | WithLockError::Lock(LockError::InDoubt { .. } | LockError::Unavailable { .. })
        );
        assert!(is_late && wait < LONG, "with a wait of {wait:?}: {other:?}");
        wait *= 2;
    }
}

async fn provider(kind: Kind, place: &str) -> LockProvider {
    match kind {
        Kind::Process => LockProvider::new(ProcessBackend::new(), "test"),
        Kind::Redis => {
            let server = RedisServer::shared().await.unwrap();
            let backend = RedisBackend::connect(&server.url(), place).await.unwrap();
            LockProvider::new(backend, "test")
        }
        Kind::Etcd => {
            let server = EtcdServer::shared().await.unwrap();
            let backend = EtcdBackend::connect(&server.url(), place).await.unwrap();
            LockProvider::new(backend, "test")
        }
        Kind::MongoDb | Kind::Aerospike | Kind::HBase => {
            stores::provider(kind, &stores::url(kind).await, place).await
        }
        Kind::PostgresLease | Kind::PostgresSession => on_postgres(kind, place).await,
        Kind::Sqlite => on_sqlite(place).await,
        Kind::MySqlLease | Kind::MySqlSession | Kind::MariaDbLease | Kind::MariaDbSession => {
            on_mysql(kind, place).await
        }
    }
}

/// A provider on PostgreSQL, as another process connects it.
pub async fn on_postgres(kind: Kind, url: &str) -> LockProvider {
    let database = PostgresLocks::connect(url, CONNECTIONS).await.unwrap();
    match kind {
        Kind::PostgresLease => LockProvider::new(database.leases().await.unwrap(), "test"),
        Kind::PostgresSession => LockProvider::new(database.session().await.unwrap(), "test"),
        _ => unreachable!("{kind:?} is not on PostgreSQL"),
    }
}

/// An empty database on the server of this kind.
pub async fn mysql_database(kind: Kind) -> String {
    if kind.is_mariadb() {
        MariaDbServer::shared().await.unwrap().create_database().await.unwrap()
    } else {
        MySqlServer::shared().await.unwrap().create_database().await.unwrap()
    }
}

/// A provider on MySQL or MariaDB, with its tables in the test's own database.
pub async fn on_mysql(kind: Kind, url: &str) -> LockProvider {
    let database = url.rsplit('/').next().unwrap_or_default();
    let server = MySqlLocks::connect(url, CONNECTIONS).await.unwrap().eventlog(database);
    if kind.is_session() {
        LockProvider::new(server.session().await.unwrap(), "test")
    } else {
        LockProvider::new(server.leases().await.unwrap(), "test")
    }
}

pub async fn on_sqlite(url: &str) -> LockProvider {
    let file = SqliteLocks::connect(url).await.unwrap();
    LockProvider::new(file.leases().await.unwrap(), "test")
}
