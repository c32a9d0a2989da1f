//! The lock server of one test: the faults that a test injects, and the locks that the server reports.

#[cfg(feature = "hbase")]
mod hbase;
mod sql;

use ekbatan::lock::KeyedLockProvider;
use ekbatan_testkit::{
    EtcdServer, MariaDbServer, MySqlServer, PostgresServer, Proxy, RedisServer, TempSqlite,
};
use redis::{AsyncConnectionConfig, FromRedisValue};
use sqlx::{Connection, Row, SqliteConnection};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use crate::providers::Kind;
use crate::stores::{self, StoreServer};

pub struct LockServer {
    kind: Kind,
    program: Program,
    pub url: String,
}

enum Program {
    /// In-process locks have no server.
    None,
    /// The processes share a file.
    File {
        _file: TempSqlite,
    },
    /// A database on the server that all tests share.
    Shared,
    Postgres(PostgresServer),
    Redis(RedisServer),
    Etcd(EtcdServer),
    #[cfg(feature = "hbase")]
    HBase(hbase::Table),
    Store(StoreServer),
    MySql(MappedMutexGuard<'static, MySqlServer>),
    MariaDb(MappedMutexGuard<'static, MariaDbServer>),
}

/// The name of the test's own connections. They are not counted: the server may not have noticed yet
/// that one of them has ended.
const LOOK: &str = "look";

impl LockServer {
    /// A server that the test does not harm: tests on servers with SQL share one.
    pub async fn shared(kind: Kind) -> Self {
        let url = match kind {
            Kind::PostgresLease | Kind::PostgresSession => {
                PostgresServer::shared().await.unwrap().create_database().await
            }
            Kind::MySqlLease | Kind::MySqlSession => {
                MySqlServer::shared().await.unwrap().create_database().await
            }
            Kind::MariaDbLease | Kind::MariaDbSession => {
                MariaDbServer::shared().await.unwrap().create_database().await
            }
            #[cfg(feature = "hbase")]
            Kind::HBase => return Self::start(kind).await,
            Kind::Process
            | Kind::Redis
            | Kind::Etcd
            | Kind::MongoDb
            | Kind::Aerospike
            | Kind::Sqlite => {
                return Self::start(kind).await;
            }
        };
        Self { kind, program: Program::Shared, url: url.unwrap() }
    }

    /// A server of the test's own. That of MySQL or MariaDB takes seconds to start, so tests use one
    /// after another.
    pub async fn start(kind: Kind) -> Self {
        let (program, url) = match kind {
            Kind::Process => (Program::None, String::new()),
            Kind::Sqlite => {
                let file = TempSqlite::new().unwrap();
                let url = file.url();
                (Program::File { _file: file }, url)
            }
            Kind::Redis => {
                // The operating system keeps what a killed server had written.
                let server = RedisServer::builder()
                    .setting("appendonly", "yes")
                    .setting("appendfsync", "no")
                    .start()
                    .await
                    .unwrap();
                let url = server.url();
                (Program::Redis(server), url)
            }
            Kind::Etcd => {
                let server = EtcdServer::start().await.unwrap();
                let url = server.url();
                (Program::Etcd(server), url)
            }
            #[cfg(feature = "hbase")]
            Kind::HBase => {
                let table = hbase::Table::new().await;
                let url = table.url();
                (Program::HBase(table), url)
            }
            Kind::MongoDb | Kind::Aerospike => {
                let server = StoreServer::start(kind).await;
                let url = server.url();
                (Program::Store(server), url)
            }
            Kind::PostgresLease | Kind::PostgresSession => {
                let server = PostgresServer::start().await.unwrap();
                let url = server.create_database().await.unwrap();
                (Program::Postgres(server), url)
            }
            Kind::MySqlLease | Kind::MySqlSession => {
                static SERVER: Mutex<Option<MySqlServer>> = Mutex::const_new(None);
                let mut server = SERVER.lock().await;
                if server.is_none() {
                    *server = Some(MySqlServer::start().await.unwrap());
                }
                let server = MutexGuard::map(server, |server| server.as_mut().unwrap());
                let url = server.create_database().await.unwrap();
                (Program::MySql(server), url)
            }
            Kind::MariaDbLease | Kind::MariaDbSession => {
                static SERVER: Mutex<Option<MariaDbServer>> = Mutex::const_new(None);
                let mut server = SERVER.lock().await;
                if server.is_none() {
                    *server = Some(MariaDbServer::start().await.unwrap());
                }
                let server = MutexGuard::map(server, |server| server.as_mut().unwrap());
                let url = server.create_database().await.unwrap();
                (Program::MariaDb(server), url)
            }
        };
        Self { kind, program, url }
    }

    /// The address that the server listens on, for a proxy.
    pub fn address(&self) -> &str {
        #[cfg(feature = "hbase")]
        if let Program::HBase(table) = &self.program {
            return table.rows();
        }
        self.url.split(['@', '/']).find(|part| part.starts_with("127.")).expect("a server")
    }

    /// The URL of clients behind a proxy to [`address`](Self::address).
    pub fn url_through(&self, proxy: &Proxy) -> String {
        #[cfg(feature = "hbase")]
        if let Program::HBase(table) = &self.program {
            return table.url_through(proxy);
        }
        proxy.url_for(&self.url)
    }

    /// Kills the server and restarts it with its data.
    pub async fn crash(&self) {
        self.kill().await;
        self.restart().await;
    }

    /// Replaces the server by one without data.
    pub async fn fail_over_to_an_empty_one(&self) {
        if let Program::Etcd(server) = &self.program {
            return server.lose_data().await.unwrap();
        }
        let dir: Vec<String> = self.redis(&["CONFIG", "GET", "dir"]).await;
        self.kill().await;
        for entry in std::fs::read_dir(&dir[1]).unwrap() {
            let path = entry.unwrap().path();
            assert!(path.to_string_lossy().contains("appendonly"), "{path:?}");
            std::fs::remove_dir_all(path).unwrap();
        }
        self.restart().await;
    }

    /// Kills the server.
    pub async fn kill(&self) {
        if let Program::Store(server) = &self.program {
            return server.kill().await;
        }
        let killed = match &self.program {
            Program::Postgres(server) => server.kill().await,
            Program::Redis(server) => server.kill().await,
            Program::Etcd(server) => server.kill().await,
            #[cfg(feature = "hbase")]
            Program::HBase(table) => table.server.kill().await,
            Program::MySql(server) => server.kill().await,
            Program::MariaDb(server) => server.kill().await,
            _ => unreachable!("there is no server of its own"),
        };
        killed.unwrap();
    }

    /// Starts the killed server with its data.
    pub async fn restart(&self) {
        if let Program::Store(server) = &self.program {
            return server.restart().await;
        }
        let restarted = match &self.program {
            Program::Postgres(server) => server.restart().await,
            Program::Redis(server) => server.restart().await,
            Program::Etcd(server) => server.restart().await,
            #[cfg(feature = "hbase")]
            Program::HBase(table) => table.server.restart().await,
            Program::MySql(server) => server.restart().await,
            Program::MariaDb(server) => server.restart().await,
            _ => unreachable!("there is no server of its own"),
        };
        restarted.unwrap();
    }

    /// Ends all sessions and connections of others.
    pub async fn end_sessions(&self) {
        if self.kind == Kind::Redis {
            for ty in ["normal", "pubsub"] {
                let _: usize = self.redis(&["CLIENT", "KILL", "TYPE", ty]).await;
            }
        } else if self.kind.is_postgres() {
            self.end_postgres_sessions().await;
        } else {
            self.end_mysql_sessions().await;
        }
    }

    /// Ends the sessions of one process that have its locks, and returns how many.
    pub async fn end_sessions_of(&self, process: u32) -> usize {
        if self.kind.is_postgres() {
            self.end_postgres_sessions_of(process).await
        } else {
            self.end_mysql_sessions_of(process).await
        }
    }

    /// The number of connections of others.
    pub async fn connections(&self) -> usize {
        match self.kind {
            Kind::Process | Kind::Sqlite => 0,
            Kind::Redis => {
                let list: String = self.redis(&["CLIENT", "LIST"]).await;
                let ours = format!("name={LOOK} ");
                list.lines().filter(|client| !client.contains(&ours)).count()
            }
            #[cfg(feature = "hbase")]
            Kind::HBase => hbase::connections_of_this_process(self.address()),
            // One is that of the server's gateway for JSON to the server itself.
            Kind::Etcd => self.established().saturating_sub(1),
            kind if kind.is_store() => self.established(),
            kind if kind.is_postgres() => self.postgres_sessions().await,
            _ => self.mysql_sessions().await.len(),
        }
    }

    /// The locks that are held or waited for now.
    pub async fn held(&self) -> Vec<String> {
        match self.kind {
            Kind::Process => Vec::new(),
            Kind::Redis => self.held_on_redis().await,
            Kind::Etcd => self.held_on_etcd().await,
            #[cfg(feature = "hbase")]
            Kind::HBase => hbase::held(&self.url).await,
            Kind::MongoDb | Kind::Aerospike => self.held_in_a_store().await,
            Kind::Sqlite => self.held_in_the_file().await,
            kind if kind.is_postgres() => self.held_on_postgres().await,
            _ => self.held_on_mysql().await,
        }
    }

    /// Without the keys that are kept for a moment for a process that waited.
    async fn held_on_redis(&self) -> Vec<String> {
        let mut held = Vec::new();
        for key in self.redis::<Vec<String>>(&["KEYS", "ekbatan-lock:{*"]).await {
            let lock: Option<String> = self.redis(&["GET", &key]).await;
            if lock.is_some_and(|lock| !lock.ends_with("|the next process")) {
                held.push(key);
            }
        }
        held
    }

    /// The places in all queues, also those of callers that wait.
    async fn held_on_etcd(&self) -> Vec<String> {
        let Program::Etcd(server) = &self.program else { unreachable!("a server of its own") };
        let keys = server.keys("ekbatan-lock/").await.unwrap();
        keys.into_iter().filter(|key| key != "ekbatan-lock/epoch").collect()
    }

    /// As another process lists them.
    async fn held_in_a_store(&self) -> Vec<String> {
        let locks = stores::connect(self.kind, &self.url).await;
        let held = locks.list(usize::MAX).await.unwrap();
        locks.close().await;
        held.keys.iter().map(|held| held.key.to_string()).collect()
    }

    /// The connections that the operating system knows.
    fn established(&self) -> usize {
        let port = self.address().rsplit(':').next().unwrap().parse::<u16>().unwrap();
        // The server's side: an address and a port in hexadecimal digits, then those of the
        // client, then the state, of which 01 is an open connection.
        let ours = format!(":{port:04X}");
        let all = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let open = |line: &&str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(1).is_some_and(|local| local.ends_with(&ours)) && words.get(3) == Some(&"01")
        };
        all.lines().filter(open).count()
    }

    async fn held_in_the_file(&self) -> Vec<String> {
        const LEASES: &str = "SELECT lock_key FROM eventlog_lock_leases \
             WHERE until > unixepoch('subsec') * 1000";
        let mut connection = SqliteConnection::connect(&self.url).await.unwrap();
        let rows = sqlx::query(LEASES).fetch_all(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn redis<T: FromRedisValue>(&self, words: &[&str]) -> T {
        // The limits of the client are too short for a server that is busy.
        let patient =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let client = redis::Client::open(&*self.url).unwrap();
        let connecting = client.get_multiplexed_async_connection_with_config(&patient);
        let mut connection = connecting.await.unwrap();
        let mut name = redis::cmd("CLIENT");
        let () = name.arg("SETNAME").arg(LOOK).query_async(&mut connection).await.unwrap();
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.unwrap()
    }
}
