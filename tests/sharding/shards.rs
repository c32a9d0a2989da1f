//! Three shards for one test: migrated, on a clock that the test sets.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ekbatan::clock::Clock;
use ekbatan::config::{DataSourceConfig, ShardMemberConfig, UnknownShard};
use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use ekbatan::repository::Repository;
use ekbatan_testkit::{MariaDbServer, PostgresServer, TempSqlite};
use sqlx::{
    AssertSqlSafe, Connection as _, MySqlConnection, PgConnection, Row as _, SqliteConnection,
};

use crate::models::{Account, Note, Order, migrations};

/// How the three shards are made up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Sqlite,
    Postgres,
    Mixed,
}

impl Layout {
    fn dialects(self) -> [Dialect; 3] {
        use Dialect::{MariaDb, Postgres, Sqlite};
        match self {
            Layout::Sqlite => [Sqlite; 3],
            Layout::Postgres => [Postgres; 3],
            Layout::Mixed => [Postgres, MariaDb, Sqlite],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
    MariaDb,
}

const fn shard(group: u32, member: u32) -> ShardIdentifier {
    match ShardIdentifier::new(group, member) {
        Ok(shard) => shard,
        Err(_) => panic!("no such shard"),
    }
}

/// In the order in which shards are visited, and the default one first.
pub const FIRST: ShardIdentifier = ShardIdentifier::DEFAULT;
pub const SECOND: ShardIdentifier = shard(0, 1);
pub const THIRD: ShardIdentifier = shard(3, 7);
pub const SHARDS: [ShardIdentifier; 3] = [FIRST, SECOND, THIRD];
/// Configured nowhere.
pub const UNKNOWN: ShardIdentifier = shard(255, 63);

/// A clock that stands still until it is set.
pub struct TestClock(Mutex<DateTime<Utc>>);

impl Clock for TestClock {
    fn now(&self) -> DateTime<Utc> {
        *self.0.lock().unwrap()
    }
}

/// `seconds` after the moment at which every test begins.
pub fn instant(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_767_323_045 + seconds, 678_901_000).unwrap()
}

/// A row of SQL that was cast to text.
pub type TextRow = Vec<Option<String>>;

/// The database of one shard, as somebody sees it who knows no shards.
pub struct TestShard {
    pub shard: ShardIdentifier,
    pub url: String,
    pub dialect: Dialect,
    _file: Option<TempSqlite>,
}

pub struct TestShards {
    pub layout: Layout,
    pub databases: Databases,
    clock: Arc<TestClock>,
    shards: Vec<TestShard>,
}

impl TestShards {
    pub async fn start(layout: Layout) -> Self {
        let shards = Self::start_empty(layout).await;
        shards.databases.migrate(&migrations()).await.unwrap();
        shards
    }

    /// Without a single table.
    pub async fn start_empty(layout: Layout) -> Self {
        let mut shards = Vec::new();
        for (shard, dialect) in SHARDS.into_iter().zip(layout.dialects()) {
            shards.push(TestShard::create(shard, dialect).await);
        }
        let clock = Arc::new(TestClock(Mutex::new(instant(0))));
        let databases = Databases::connect(&config(&shards)).await.unwrap();
        Self { layout, databases: databases.with_clock(clock.clone()), clock, shards }
    }

    pub fn config(&self) -> EkbatanConfig {
        config(&self.shards)
    }

    /// The same shards, as another process would open them.
    pub async fn open_again(&self) -> Databases {
        self.open(&self.config()).await
    }

    /// The same shards, where an unknown one is the default one.
    pub async fn open_lenient(&self) -> Databases {
        self.open(&self.config().unknown_shard(UnknownShard::DefaultShard)).await
    }

    async fn open(&self, config: &EkbatanConfig) -> Databases {
        Databases::connect(config).await.unwrap().with_clock(self.clock.clone())
    }

    pub fn set_clock(&self, seconds: i64) {
        *self.clock.0.lock().unwrap() = instant(seconds);
    }

    pub async fn executor(&self) -> ActionExecutor {
        executor_on(&self.databases).await
    }

    pub fn accounts(&self) -> Repository<Account> {
        self.databases.repository()
    }

    pub fn on(&self, shard: ShardIdentifier) -> &TestShard {
        self.shards.iter().find(|other| other.shard == shard).unwrap()
    }

    /// How many rows a table has on each shard.
    pub async fn counts(&self, table: &str) -> [usize; 3] {
        let mut counts = [0; 3];
        for (count, shard) in counts.iter_mut().zip(&self.shards) {
            *count = shard.count(table).await;
        }
        counts
    }

    /// How many rows a table of the framework's has on each shard.
    pub async fn eventlog_counts(&self, table: &str) -> [usize; 3] {
        let mut counts = [0; 3];
        for (count, shard) in counts.iter_mut().zip(&self.shards) {
            *count = shard.count(&shard.eventlog(table)).await;
        }
        counts
    }

    /// Not a row of the application's or of an action's is on any shard.
    pub async fn assert_nothing_written(&self) {
        for table in ["accounts", "notes", "orders"] {
            assert_eq!(self.counts(table).await, [0; 3], "{table}");
        }
        for table in ["events", "idempotency_keys", "cross_shard_parts"] {
            assert_eq!(self.eventlog_counts(table).await, [0; 3], "{table}");
        }
    }

    /// One account per shard, without events.
    pub async fn three_accounts(&self) -> Vec<Stored<Account>> {
        let mut accounts = Vec::new();
        for shard in SHARDS {
            let account = crate::models::account(shard, &format!("owner on {shard}"));
            accounts.push(self.accounts().add(crate::models::quiet(account)).await.unwrap());
        }
        accounts
    }
}

fn config(shards: &[TestShard]) -> EkbatanConfig {
    let source = |shard: &TestShard| source(&shard.url).maximum_pool_size(3);
    shards[1..].iter().fold(EkbatanConfig::from(source(&shards[0])), |config, shard| {
        config.shard(shard.shard, ShardMemberConfig::new(0, source(shard)))
    })
}

/// A shard's database by its address.
pub fn source(url: &str) -> DataSourceConfig {
    DataSourceConfig::new(url).eventlog(eventlog_of(url))
}

/// Where MariaDB keeps the framework's tables: on a server that others share, in a database
/// of this test's own.
fn eventlog_of(url: &str) -> String {
    format!("{}_log", url.rsplit('/').next().unwrap())
}

pub async fn executor_on(databases: &Databases) -> ActionExecutor {
    ActionExecutor::builder(databases, "com.example.sharding")
        .model::<Account>()
        .model::<Note>()
        .model::<Order>()
        .build()
        .await
        .unwrap()
}

impl TestShard {
    pub async fn create(shard: ShardIdentifier, dialect: Dialect) -> Self {
        let (url, file) = match dialect {
            Dialect::Sqlite => {
                let file = TempSqlite::new().unwrap();
                (file.url(), Some(file))
            }
            Dialect::Postgres => {
                let server = PostgresServer::shared().await.unwrap();
                (server.create_database().await.unwrap(), None)
            }
            Dialect::MariaDb => {
                let server = MariaDbServer::shared().await.unwrap();
                (server.create_database().await.unwrap(), None)
            }
        };
        Self { shard, url, dialect, _file: file }
    }

    /// The framework's table of this name, as the dialect writes it.
    pub fn eventlog(&self, table: &str) -> String {
        match self.dialect {
            Dialect::Sqlite => format!("eventlog_{table}"),
            Dialect::Postgres => format!("eventlog.{table}"),
            Dialect::MariaDb => format!("{}.{table}", eventlog_of(&self.url)),
        }
    }

    /// Runs SQL on a connection of its own.
    pub async fn execute(&self, sql: &str) {
        Other::connect(self.dialect, &self.url).await.execute(sql).await;
    }

    /// The rows of `SELECT columns tail`, each column as text, on a connection of its own.
    pub async fn select(&self, columns: &[&str], tail: &str) -> Vec<TextRow> {
        let text = if self.dialect == Dialect::MariaDb { "CHAR" } else { "TEXT" };
        let cast: Vec<String> =
            columns.iter().map(|column| format!("CAST({column} AS {text})")).collect();
        let sql = AssertSqlSafe(format!("SELECT {} {tail}", cast.join(", ")));
        let texts = columns.len();
        match Other::connect(self.dialect, &self.url).await {
            Other::Sqlite(mut connection) => {
                let rows = sqlx::query(sql).fetch_all(&mut connection).await.unwrap();
                rows.iter().map(|row| (0..texts).map(|at| row.get(at)).collect()).collect()
            }
            Other::Postgres(mut connection) => {
                let rows = sqlx::query(sql).fetch_all(&mut connection).await.unwrap();
                rows.iter().map(|row| (0..texts).map(|at| row.get(at)).collect()).collect()
            }
            Other::MariaDb(mut connection) => {
                let rows = sqlx::query(sql).fetch_all(&mut connection).await.unwrap();
                rows.iter().map(|row| (0..texts).map(|at| row.get(at)).collect()).collect()
            }
        }
    }

    /// How many rows a table has, deleted ones included.
    pub async fn count(&self, table: &str) -> usize {
        let rows = self.select(&["count(*)"], &format!("FROM {table}")).await;
        rows[0][0].as_deref().unwrap().parse().unwrap()
    }

    /// Takes a table away, so that whoever asks for it is told that it is not there.
    pub async fn hide(&self, table: &str) {
        let hidden = self.renamed(table, "hidden");
        self.execute(&format!("ALTER TABLE {table} RENAME TO {hidden}")).await;
    }

    /// Puts back the table that was hidden.
    pub async fn show(&self, table: &str) {
        let name = table.rsplit('.').next().unwrap();
        let hidden = table.replace(name, "hidden");
        let shown = self.renamed(table, name);
        self.execute(&format!("ALTER TABLE {hidden} RENAME TO {shown}")).await;
    }

    /// Another name beside a table, as `RENAME TO` takes it.
    fn renamed(&self, table: &str, name: &str) -> String {
        match (self.dialect, table.rsplit_once('.')) {
            // It would move the table into the database of the session.
            (Dialect::MariaDb, Some((database, _))) => format!("{database}.{name}"),
            _ => name.to_owned(),
        }
    }

    /// Changes a row's version behind everybody's back.
    pub async fn overtake(&self, account: ShardedId<Account>) {
        overtake(self.dialect, &self.url, account).await;
    }

    /// Whether another session than the asking one waits for a row or holds one.
    pub async fn has_other_sessions(&self) -> bool {
        match self.dialect {
            Dialect::Sqlite => false,
            Dialect::Postgres => {
                let others = "FROM pg_stat_activity WHERE datname = current_database() \
                              AND pid <> pg_backend_pid() AND state <> 'idle'";
                self.select(&["count(*)"], others).await[0][0].as_deref() != Some("0")
            }
            Dialect::MariaDb => {
                let others = "FROM information_schema.processlist WHERE db = database() \
                              AND id <> connection_id() AND command <> 'Sleep'";
                self.select(&["count(*)"], others).await[0][0].as_deref() != Some("0")
            }
        }
    }

    /// Keeps every writer of accounts waiting, and lets readers pass.
    pub async fn hold_writers(&self) -> Other {
        hold_writers(self.dialect, &self.url).await
    }
}

/// Keeps every writer of accounts waiting until the connection is dropped.
pub async fn hold_writers(dialect: Dialect, url: &str) -> Other {
    let mut other = Other::connect(dialect, url).await;
    other
        .execute(match dialect {
            Dialect::Sqlite => "BEGIN IMMEDIATE",
            Dialect::Postgres => "BEGIN; LOCK TABLE accounts IN EXCLUSIVE MODE",
            Dialect::MariaDb => "LOCK TABLES accounts READ",
        })
        .await;
    other
}

/// Changes a row's version on a connection that the framework knows nothing of.
pub async fn overtake(dialect: Dialect, url: &str, account: ShardedId<Account>) {
    let sql = format!("UPDATE accounts SET version = version + 1 WHERE id = '{account}'");
    Other::connect(dialect, url).await.execute(&sql).await;
}

/// A connection that the framework knows nothing of.
pub enum Other {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
    MariaDb(MySqlConnection),
}

impl Other {
    pub async fn connect(dialect: Dialect, url: &str) -> Self {
        match dialect {
            Dialect::Sqlite => Self::Sqlite(SqliteConnection::connect(url).await.unwrap()),
            Dialect::Postgres => Self::Postgres(PgConnection::connect(url).await.unwrap()),
            Dialect::MariaDb => {
                let url = url.replace("mariadb:", "mysql:");
                Self::MariaDb(MySqlConnection::connect(&url).await.unwrap())
            }
        }
    }

    pub async fn execute(&mut self, sql: &str) {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        match self {
            Self::Sqlite(connection) => drop(sql.execute(connection).await.unwrap()),
            Self::Postgres(connection) => drop(sql.execute(connection).await.unwrap()),
            Self::MariaDb(connection) => drop(sql.execute(connection).await.unwrap()),
        }
    }
}

/// Waits until something holds that another task brings about.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
