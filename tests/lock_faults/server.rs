//! The lock server of one test: the faults that a test injects, and the locks that the server reports.

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
    /// In-process locks have no server.
    None,
    /// A database on the PostgreSQL server that all tests share.
    SharedPostgres,
    Postgres(PostgresServer),
    Redis(RedisServer),
}

/// The advisory locks that PostgreSQL reports as held, and every lock that it reports as waited for.
const SESSION_LOCKS: &str = "SELECT format('%s %s of %s', locktype, mode, pid) FROM pg_locks \
     WHERE (locktype = 'advisory' AND database = \
         (SELECT oid FROM pg_database WHERE datname = current_database())) \
     OR (NOT granted AND pid IN \
         (SELECT pid FROM pg_stat_activity WHERE datname = current_database()))";

const LEASES: &str = "SELECT lock_key::text FROM eventlog.lock_leases \
     WHERE until > clock_timestamp() \
     UNION ALL SELECT format('waits: %s', pid) FROM pg_locks JOIN pg_stat_activity USING (pid) \
         WHERE NOT granted AND datname = current_database()";

/// The name of the test's own connections. They are not counted: the server may not have noticed yet
/// that one of them has ended.
const LOOK: &str = "look";

const OTHERS: &str = "FROM pg_stat_activity \
     WHERE datname = current_database() AND backend_type = 'client backend' \
     AND application_name <> 'look'";

impl LockServer {
    /// A server that the test does not harm: tests on PostgreSQL share one.
    pub async fn shared(kind: Kind) -> Self {
        match kind {
            Kind::PostgresLease | Kind::PostgresSession => {
                let server = PostgresServer::shared().await.unwrap();
                let url = server.create_database().await.unwrap();
                Self { kind, program: Program::SharedPostgres, url }
            }
            Kind::Process | Kind::Redis => Self::start(kind).await,
        }
    }

    /// A server of the test's own.
    pub async fn start(kind: Kind) -> Self {
        let (program, url) = match kind {
            Kind::Process => (Program::None, String::new()),
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
            Kind::PostgresLease | Kind::PostgresSession => {
                let server = PostgresServer::start().await.unwrap();
                let url = server.create_database().await.unwrap();
                (Program::Postgres(server), url)
            }
        };
        Self { kind, program, url }
    }

    /// The address that the server listens on, for a proxy.
    pub fn address(&self) -> (&'static str, u16) {
        let port = match &self.program {
            Program::None | Program::SharedPostgres => {
                unreachable!("there is no server of its own")
            }
            Program::Postgres(server) => server.port(),
            Program::Redis(server) => server.port(),
        };
        ("127.0.0.1", port)
    }

    /// Kills the server and restarts it with its data.
    pub async fn crash(&self) {
        self.kill().await;
        self.restart().await;
    }

    /// Replaces the server by one without data.
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

    /// Kills the server.
    pub async fn kill(&self) {
        match &self.program {
            Program::None | Program::SharedPostgres => {
                unreachable!("there is no server of its own")
            }
            Program::Postgres(server) => server.kill().await.unwrap(),
            Program::Redis(server) => server.kill().await.unwrap(),
        }
    }

    /// Starts the killed server with its data.
    pub async fn restart(&self) {
        match &self.program {
            Program::None | Program::SharedPostgres => {
                unreachable!("there is no server of its own")
            }
            Program::Postgres(server) => server.restart().await.unwrap(),
            Program::Redis(server) => server.restart().await.unwrap(),
        }
    }

    /// Ends all sessions and connections of others.
    pub async fn end_sessions(&self) {
        match &self.program {
            Program::None => unreachable!("there is no server"),
            Program::SharedPostgres | Program::Postgres(_) => {
                self.postgres(&format!("SELECT pg_terminate_backend(pid)::text {OTHERS}")).await;
            }
            Program::Redis(_) => {
                for ty in ["normal", "pubsub"] {
                    let _: usize = self.redis(&["CLIENT", "KILL", "TYPE", ty]).await;
                }
            }
        }
    }

    /// Ends the sessions of one process, which names itself in `application_name`.
    pub async fn end_sessions_of(&self, process: u32) {
        let name = format!("ekbatan-lock process {process}");
        let sql = "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity";
        let ended = self.postgres(&format!("{sql} WHERE application_name = '{name}'")).await;
        assert!(!ended.is_empty(), "process {process} has no session");
    }

    /// The number of connections of others.
    pub async fn connections(&self) -> usize {
        match &self.program {
            Program::None => 0,
            Program::SharedPostgres | Program::Postgres(_) => {
                self.postgres(&format!("SELECT pid::text {OTHERS}")).await.len()
            }
            Program::Redis(_) => {
                let list: String = self.redis(&["CLIENT", "LIST"]).await;
                let ours = format!("name={LOOK} ");
                list.lines().filter(|client| !client.contains(&ours)).count()
            }
        }
    }

    /// The locks that are held or waited for now.
    pub async fn held(&self) -> Vec<String> {
        match self.kind {
            Kind::Process => Vec::new(),
            Kind::Redis => self.redis(&["KEYS", "ekbatan-lock:{*"]).await,
            Kind::PostgresLease => self.postgres(LEASES).await,
            Kind::PostgresSession => self.postgres(SESSION_LOCKS).await,
        }
    }

    /// Runs SQL on PostgreSQL and returns the first column.
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
