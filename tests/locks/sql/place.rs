//! A database on a server with SQL locks, and what the server reports about it.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, Lease, LockKey, LockProvider};
use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer, Proxy};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use crate::providers::{CONNECTIONS, Kind, LONG, mysql_database, on_mysql, on_postgres};

/// The connections of others to the current database.
const POSTGRES_CONNECTIONS: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE datname = current_database() AND pid <> pg_backend_pid() \
     AND backend_type = 'client backend'";
const MYSQL_CONNECTIONS: &str = "SELECT COUNT(*) FROM information_schema.processlist \
     WHERE db = DATABASE() AND id <> CONNECTION_ID()";

/// The database of one test.
pub struct Place {
    pub kind: Kind,
    pub url: String,
}

impl Place {
    /// A database on the server that all tests share.
    pub async fn shared(kind: Kind) -> Self {
        let url = if is_postgres(kind) {
            PostgresServer::shared().await.unwrap().create_database().await.unwrap()
        } else {
            mysql_database(kind).await
        };
        Self { kind, url }
    }

    /// A provider, as one process connects it.
    pub async fn process(&self) -> LockProvider {
        self.process_at(&self.url).await
    }

    async fn process_at(&self, url: &str) -> LockProvider {
        if is_postgres(self.kind) {
            on_postgres(self.kind, url).await
        } else {
            on_mysql(self.kind, url).await
        }
    }

    /// A provider whose connections lead through the proxy.
    pub async fn process_through(&self, proxy: &Proxy) -> LockProvider {
        self.process_at(&proxy.url_for(&self.url)).await
    }

    pub async fn proxy(&self) -> Proxy {
        let address = self.url.split(['@', '/']).find(|part| part.starts_with("127.")).unwrap();
        Proxy::start(address).await.unwrap()
    }

    /// The result of a query for one number.
    pub async fn number(&self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        if is_postgres(self.kind) {
            let mut connection = PgConnection::connect(&self.url).await.unwrap();
            let number = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
            connection.close().await.unwrap();
            number
        } else {
            let mut connection = mysql_client(&self.url).await;
            let number = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
            connection.close().await.unwrap();
            number
        }
    }

    pub async fn execute(&self, sql: &str) {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        if is_postgres(self.kind) {
            sql.execute(&mut PgConnection::connect(&self.url).await.unwrap()).await.unwrap();
        } else {
            sql.execute(&mut mysql_client(&self.url).await).await.unwrap();
        }
    }

    /// The number of locks that the server reports as held.
    pub async fn held(&self) -> i64 {
        let sql = match self.kind {
            Kind::PostgresLease => {
                "SELECT count(*) FROM eventlog.lock_leases WHERE until > clock_timestamp()"
            }
            Kind::PostgresSession => {
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = \
                 (SELECT oid FROM pg_database WHERE datname = current_database())"
            }
            kind if kind.is_session() => {
                "SELECT COUNT(*) FROM lock_sessions WHERE IS_USED_LOCK(lock_name) IS NOT NULL"
            }
            _ => "SELECT COUNT(*) FROM lock_leases WHERE until > UTC_TIMESTAMP(6)",
        };
        self.number(sql).await
    }

    /// Waits until the server reports that no lock is held.
    pub async fn none_held(&self) {
        let none = async {
            while self.held().await > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, none).await.expect("the server holds a lock without a holder");
    }

    /// The number of connections of others to the database.
    pub async fn connections(&self) -> i64 {
        let sql = if is_postgres(self.kind) { POSTGRES_CONNECTIONS } else { MYSQL_CONNECTIONS };
        self.number(sql).await
    }

    /// The maximum number of connections of one process.
    pub fn most_connections(&self) -> i64 {
        match self.kind {
            kind if kind.is_session() => 1,
            // The pool, and one for the notifications of releases.
            Kind::PostgresLease => CONNECTIONS as i64 + 1,
            _ => CONNECTIONS as i64,
        }
    }
}

fn is_postgres(kind: Kind) -> bool {
    matches!(kind, Kind::PostgresLease | Kind::PostgresSession)
}

/// A connection of the test's own, to MySQL or MariaDB.
pub async fn mysql_client(url: &str) -> MySqlConnection {
    let (_, rest) = url.split_once(':').unwrap();
    MySqlConnection::connect(&format!("mysql:{rest}")).await.unwrap()
}

/// Acquires a key from a server that may not be back yet.
pub async fn acquire_eventually(locks: &LockProvider, key: &LockKey) -> Lease {
    loop {
        match locks.acquire(key, LONG).await {
            Ok(lease) => return lease,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// A server that a test may harm. MySQL and MariaDB write a binary log, so that every statement must
/// be safe for replication.
pub enum Server {
    Postgres(PostgresServer),
    MySql(MySqlServer),
    MariaDb(MariaDbServer),
}

impl Server {
    /// The server of this kind. Starting one takes seconds, so that tests use it one after another.
    pub async fn alone(kind: Kind) -> MappedMutexGuard<'static, Self> {
        static POSTGRES: Mutex<Option<Server>> = Mutex::const_new(None);
        static MYSQL: Mutex<Option<Server>> = Mutex::const_new(None);
        static MARIADB: Mutex<Option<Server>> = Mutex::const_new(None);
        let server = if is_postgres(kind) {
            &POSTGRES
        } else if kind.is_mariadb() {
            &MARIADB
        } else {
            &MYSQL
        };
        let mut server = server.lock().await;
        if server.is_none() {
            *server = Some(Self::start(kind).await);
        }
        MutexGuard::map(server, |server| server.as_mut().unwrap())
    }

    async fn start(kind: Kind) -> Self {
        if is_postgres(kind) {
            Self::Postgres(PostgresServer::start().await.unwrap())
        } else if kind.is_mariadb() {
            Self::MariaDb(MariaDbServer::builder().binlog().start().await.unwrap())
        } else {
            Self::MySql(MySqlServer::builder().binlog().start().await.unwrap())
        }
    }

    pub async fn create_database(&self) -> String {
        let url = match self {
            Self::Postgres(server) => server.create_database().await,
            Self::MySql(server) => server.create_database().await,
            Self::MariaDb(server) => server.create_database().await,
        };
        url.unwrap()
    }

    pub async fn kill(&self) {
        let killed = match self {
            Self::Postgres(server) => server.kill().await,
            Self::MySql(server) => server.kill().await,
            Self::MariaDb(server) => server.kill().await,
        };
        killed.unwrap();
    }

    pub async fn restart(&self) {
        let restarted = match self {
            Self::Postgres(server) => server.restart().await,
            Self::MySql(server) => server.restart().await,
            Self::MariaDb(server) => server.restart().await,
        };
        restarted.unwrap();
    }
}
