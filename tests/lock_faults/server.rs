//! A lock server of one test: what can be done to it, and what it says of locks itself.

use ekbatan_testkit::{PostgresServer, RedisServer};
use redis::FromRedisValue;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, Row};

use crate::providers::Kind;

pub struct LockServer {
    kind: Kind,
    program: Program,
    pub url: String,
}

enum Program {
    /// Locks that need no server.
    None,
    Postgres(PostgresServer),
    Redis(RedisServer),
}

/// All that is held, and all that is queued for a lock, in the words of PostgreSQL.
const SESSION_LOCKS: &str = "SELECT format('%s %s of %s', locktype, mode, pid) FROM pg_locks \
     WHERE (locktype = 'advisory' AND database = \
         (SELECT oid FROM pg_database WHERE datname = current_database())) OR NOT granted";

const LEASES: &str = "SELECT lock_key::text FROM eventlog.lock_leases \
     WHERE until > clock_timestamp() \
     UNION ALL SELECT format('waits: %s', pid) FROM pg_locks WHERE NOT granted";

/// As what the test's own connections are known; the server may have yet to notice that one
/// of them has ended.
const LOOK: &str = "look";

const OTHERS: &str = "FROM pg_stat_activity \
     WHERE datname = current_database() AND application_name <> 'look'";

impl LockServer {
    pub async fn start(kind: Kind) -> Self {
        let (program, url) = match kind {
            Kind::Process => (Program::None, String::new()),
            Kind::Redis => {
                // What a killed server had written to its file, the system has.
                let server = RedisServer::builder()
                    .setting("appendonly", "yes")
                    .setting("appendfsync", "no")
                    .start()
                    .await
                    .unwrap();
                let url = server.url();
                (Program::Redis(server), url)
            }
            Kind::PostgresLease | Kind::PostgresSession => {
                let server = PostgresServer::start().await.unwrap();
                let url = server.create_database().await.unwrap();
                (Program::Postgres(server), url)
            }
        };
        Self { kind, program, url }
    }

    /// Where it listens, for a proxy.
    pub fn address(&self) -> (&'static str, u16) {
        let port = match &self.program {
            Program::None => unreachable!("there is no server"),
            Program::Postgres(server) => server.port(),
            Program::Redis(server) => server.port(),
        };
        ("127.0.0.1", port)
    }

    /// Kills it as a crash would, and starts it again with what it had.
    pub async fn crash(&self) {
        self.kill().await;
        self.restart().await;
    }

    /// Has a server that knows nothing take its place.
    pub async fn fail_over_to_an_empty_one(&self) {
        let dir: Vec<String> = self.redis(&["CONFIG", "GET", "dir"]).await;
        self.kill().await;
        for entry in std::fs::read_dir(&dir[1]).unwrap() {
            let path = entry.unwrap().path();
            assert!(path.to_string_lossy().contains("appendonly"), "{path:?}");
            std::fs::remove_dir_all(path).unwrap();
        }
        self.restart().await;
    }

    /// Ends it as a crash would.
    pub async fn kill(&self) {
        match &self.program {
            Program::None => unreachable!("there is no server"),
            Program::Postgres(server) => server.kill().await.unwrap(),
            Program::Redis(server) => server.kill().await.unwrap(),
        }
    }

    /// Starts it with what it had.
    pub async fn restart(&self) {
        match &self.program {
            Program::None => unreachable!("there is no server"),
            Program::Postgres(server) => server.restart().await.unwrap(),
            Program::Redis(server) => server.restart().await.unwrap(),
        }
    }

    /// Ends every session and connection that it has.
    pub async fn end_sessions(&self) {
        match &self.program {
            Program::None => unreachable!("there is no server"),
            Program::Postgres(_) => {
                self.postgres(&format!("SELECT pg_terminate_backend(pid)::text {OTHERS}")).await;
            }
            Program::Redis(_) => {
                for ty in ["normal", "pubsub"] {
                    let _: usize = self.redis(&["CLIENT", "KILL", "TYPE", ty]).await;
                }
            }
        }
    }

    /// Ends the sessions of one process, which has said who it is.
    pub async fn end_sessions_of(&self, process: u32) {
        let name = format!("ekbatan-lock process {process}");
        let sql = "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity";
        let ended = self.postgres(&format!("{sql} WHERE application_name = '{name}'")).await;
        assert!(!ended.is_empty(), "process {process} has no session");
    }

    /// How many connections others have.
    pub async fn connections(&self) -> usize {
        match &self.program {
            Program::None => 0,
            Program::Postgres(_) => {
                self.postgres(&format!("SELECT pid::text {OTHERS}")).await.len()
            }
            Program::Redis(_) => {
                let list: String = self.redis(&["CLIENT", "LIST"]).await;
                let ours = format!("name={LOOK} ");
                list.lines().filter(|client| !client.contains(&ours)).count()
            }
        }
    }

    /// What it holds and queues now.
    pub async fn held(&self) -> Vec<String> {
        match self.kind {
            Kind::Process => Vec::new(),
            Kind::Redis => self.redis(&["KEYS", "ekbatan-lock:{*"]).await,
            Kind::PostgresLease => self.postgres(LEASES).await,
            Kind::PostgresSession => self.postgres(SESSION_LOCKS).await,
        }
    }

    /// Asks PostgreSQL, or tells it something that answers nothing.
    pub async fn postgres(&self, sql: &str) -> Vec<String> {
        let options: PgConnectOptions = self.url.parse().unwrap();
        let mut connection = options.application_name(LOOK).connect().await.unwrap();
        let sql = sqlx::AssertSqlSafe(sql.to_owned());
        let rows = sqlx::raw_sql(sql).fetch_all(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn redis<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let client = redis::Client::open(&*self.url).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut name = redis::cmd("CLIENT");
        let () = name.arg("SETNAME").arg(LOOK).query_async(&mut connection).await.unwrap();
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.unwrap()
    }
}
