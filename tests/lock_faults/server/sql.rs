//! What the servers with SQL report about locks and sessions.

use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row};

use super::{LOOK, LockServer};
use crate::providers::Kind;

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

const OTHERS: &str = "FROM pg_stat_activity \
     WHERE datname = current_database() AND backend_type = 'client backend' \
     AND application_name <> 'look'";

impl LockServer {
    /// Runs SQL on PostgreSQL and returns the first column.
    pub async fn postgres(&self, sql: &str) -> Vec<String> {
        let options: PgConnectOptions = self.url.parse().unwrap();
        let mut connection = options.application_name(LOOK).connect().await.unwrap();
        let sql = AssertSqlSafe(sql.to_owned());
        let rows = sqlx::raw_sql(sql).fetch_all(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub(super) async fn postgres_sessions(&self) -> usize {
        self.postgres(&format!("SELECT pid::text {OTHERS}")).await.len()
    }

    pub(super) async fn end_postgres_sessions(&self) {
        self.postgres(&format!("SELECT pg_terminate_backend(pid)::text {OTHERS}")).await;
    }

    /// A process names itself in `application_name`.
    pub(super) async fn end_postgres_sessions_of(&self, process: u32) -> usize {
        let name = format!("ekbatan-lock process {process}");
        let sql = "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity";
        self.postgres(&format!("{sql} WHERE application_name = '{name}'")).await.len()
    }

    pub(super) async fn held_on_postgres(&self) -> Vec<String> {
        self.postgres(if self.kind == Kind::PostgresLease { LEASES } else { SESSION_LOCKS }).await
    }

    /// A connection to MySQL or MariaDB. It uses no database, so it is not one of those that the
    /// tests count.
    async fn mysql_connection(&self) -> MySqlConnection {
        let (_, server) = self.url.split_once(':').unwrap();
        let (server, _) = server.rsplit_once('/').unwrap();
        MySqlConnection::connect(&format!("mysql:{server}")).await.unwrap()
    }

    /// Runs SQL on MySQL or MariaDB and returns the first column.
    async fn mysql(&self, sql: &str) -> Vec<String> {
        let mut connection = self.mysql_connection().await;
        let sql = AssertSqlSafe(sql.to_owned());
        let rows = sqlx::raw_sql(sql).fetch_all(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        rows.iter().map(|row| row.get_unchecked(0)).collect()
    }

    fn database(&self) -> &str {
        self.url.rsplit('/').next().unwrap()
    }

    /// The ids of the sessions of others.
    pub(super) async fn mysql_sessions(&self) -> Vec<String> {
        let database = self.database();
        let all = "SELECT CAST(id AS CHAR) FROM information_schema.processlist";
        self.mysql(&format!("{all} WHERE db = '{database}'")).await
    }

    pub(super) async fn end_mysql_sessions(&self) {
        self.kill_mysql(self.mysql_sessions().await).await;
    }

    /// The row of a lock names the process and the session.
    pub(super) async fn end_mysql_sessions_of(&self, process: u32) -> usize {
        let database = self.database();
        let sessions = self
            .mysql(&format!(
                "SELECT DISTINCT CAST(session AS CHAR) FROM {database}.lock_sessions \
                 WHERE holder LIKE '%process {process}' AND session = IS_USED_LOCK(lock_name)"
            ))
            .await;
        let ended = sessions.len();
        self.kill_mysql(sessions).await;
        ended
    }

    async fn kill_mysql(&self, sessions: Vec<String>) {
        let mut connection = self.mysql_connection().await;
        for session in sessions {
            let kill = AssertSqlSafe(format!("KILL {session}"));
            // A session that has just ended by itself cannot be killed.
            let _ = sqlx::raw_sql(kill).execute(&mut connection).await;
        }
        connection.close().await.unwrap();
    }

    pub(super) async fn held_on_mysql(&self) -> Vec<String> {
        let database = self.database();
        let sql = if self.kind.is_session() {
            format!(
                "SELECT lock_key FROM {database}.lock_sessions \
                 WHERE IS_USED_LOCK(lock_name) IS NOT NULL"
            )
        } else {
            format!("SELECT lock_key FROM {database}.lock_leases WHERE until > UTC_TIMESTAMP(6)")
        };
        self.mysql(&sql).await
    }
}
