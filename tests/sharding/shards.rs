//! Three shards for one test, migrated, with a clock that the test sets.

use std::ops::Deref;
use std::sync::Arc;

use ekbatan::config::{ShardMemberConfig, UnknownShard};
use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use ekbatan::repository::Repository;
use support::{Dialect, PlainConnection, ScratchDatabase, TestClock, instant};

use crate::models::{Account, Note, Order, account, migrations, quiet};

/// The databases of the three shards.
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

const fn shard(group: u32, member: u32) -> ShardIdentifier {
    match ShardIdentifier::new(group, member) {
        Ok(shard) => shard,
        Err(_) => panic!("no such shard"),
    }
}

/// The shards in the order in which they are visited. The first one is the default shard.
pub const FIRST: ShardIdentifier = ShardIdentifier::DEFAULT;
pub const SECOND: ShardIdentifier = shard(0, 1);
pub const THIRD: ShardIdentifier = shard(3, 7);
pub const SHARDS: [ShardIdentifier; 3] = [FIRST, SECOND, THIRD];
/// A shard that no configuration names.
pub const UNKNOWN: ShardIdentifier = shard(255, 63);

/// The database of one shard.
pub struct TestShard {
    pub shard: ShardIdentifier,
    scratch: ScratchDatabase,
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

    /// Creates the shards without any table.
    pub async fn start_empty(layout: Layout) -> Self {
        let mut shards = Vec::new();
        for (shard, dialect) in SHARDS.into_iter().zip(layout.dialects()) {
            shards.push(TestShard { shard, scratch: ScratchDatabase::create(dialect).await });
        }
        let clock = Arc::new(TestClock::default());
        let databases = Databases::connect(&config(&shards)).await.unwrap();
        Self { layout, databases: databases.with_clock(clock.clone()), clock, shards }
    }

    pub fn config(&self) -> EkbatanConfig {
        config(&self.shards)
    }

    /// Opens the same shards a second time, as another process would.
    pub async fn open_again(&self) -> Databases {
        self.open(&self.config()).await
    }

    /// Opens the same shards; ids of unknown shards belong to the default shard.
    pub async fn open_lenient(&self) -> Databases {
        self.open(&self.config().unknown_shard(UnknownShard::DefaultShard)).await
    }

    async fn open(&self, config: &EkbatanConfig) -> Databases {
        Databases::connect(config).await.unwrap().with_clock(self.clock.clone())
    }

    pub fn set_clock(&self, seconds: i64) {
        self.clock.set(instant(seconds));
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

    /// Counts the rows of a table on each shard.
    pub async fn counts(&self, table: &str) -> [usize; 3] {
        let mut counts = [0; 3];
        for (count, shard) in counts.iter_mut().zip(&self.shards) {
            *count = shard.count(table).await;
        }
        counts
    }

    /// Counts the rows of a table of the framework on each shard.
    pub async fn eventlog_counts(&self, table: &str) -> [usize; 3] {
        let mut counts = [0; 3];
        for (count, shard) in counts.iter_mut().zip(&self.shards) {
            *count = shard.count(&shard.eventlog(table)).await;
        }
        counts
    }

    /// Checks that no shard has a row of the application or of an action.
    pub async fn assert_nothing_written(&self) {
        for table in ["accounts", "notes", "orders"] {
            assert_eq!(self.counts(table).await, [0; 3], "{table}");
        }
        for table in
            ["events", "idempotency_keys", "idempotency_decisions", "inbox", "cross_shard_parts"]
        {
            assert_eq!(self.eventlog_counts(table).await, [0; 3], "{table}");
        }
    }

    /// Adds an account on each shard, without events.
    pub async fn three_accounts(&self) -> Vec<Stored<Account>> {
        let mut accounts = Vec::new();
        for shard in SHARDS {
            let account = account(shard, &format!("owner on {shard}"));
            accounts.push(self.accounts().add(quiet(account)).await.unwrap());
        }
        accounts
    }
}

fn config(shards: &[TestShard]) -> EkbatanConfig {
    let source = |shard: &TestShard| shard.config().maximum_pool_size(3);
    shards[1..].iter().fold(EkbatanConfig::from(source(&shards[0])), |config, shard| {
        config.shard(shard.shard, ShardMemberConfig::new(0, source(shard)))
    })
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

/// An idempotency key whose home is this shard.
pub fn key_at(executor: &ActionExecutor, home: ShardIdentifier) -> String {
    key_named(executor, home, "key")
}

/// An idempotency key that begins with this name, and whose home is this shard.
pub fn key_named(executor: &ActionExecutor, home: ShardIdentifier, name: &str) -> String {
    let keys = (0..).map(|n| format!("{name} {n}"));
    let found = keys.take(1_000).find(|key| executor.key_home(None, key) == home);
    found.expect("every shard is the home of some keys")
}

impl Deref for TestShard {
    type Target = ScratchDatabase;

    fn deref(&self) -> &ScratchDatabase {
        &self.scratch
    }
}

impl TestShard {
    /// Renames a table, so that statements which use it fail.
    pub async fn hide(&self, table: &str) {
        let hidden = self.renamed(table, "hidden");
        self.execute(&format!("ALTER TABLE {table} RENAME TO {hidden}")).await;
    }

    /// Gives the hidden table its name back.
    pub async fn show(&self, table: &str) {
        let name = table.rsplit('.').next().unwrap();
        let hidden = table.replace(name, "hidden");
        let shown = self.renamed(table, name);
        self.execute(&format!("ALTER TABLE {hidden} RENAME TO {shown}")).await;
    }

    /// The new name of a table, as `RENAME TO` takes it.
    fn renamed(&self, table: &str, name: &str) -> String {
        match (self.dialect, table.rsplit_once('.')) {
            // Without the database, MariaDB moves the table into the database of the session.
            (Dialect::MariaDb, Some((database, _))) => format!("{database}.{name}"),
            _ => name.to_owned(),
        }
    }

    /// Increments the version of a row. The framework does not know of it.
    pub async fn overtake(&self, account: ShardedId<Account>) {
        overtake(&self.url, account).await;
    }

    /// Whether a session other than the asking one runs a statement or has a transaction open.
    pub async fn has_busy_sessions(&self) -> bool {
        let others = match self.dialect {
            Dialect::Sqlite => return false,
            Dialect::Postgres => {
                "FROM pg_stat_activity WHERE datname = current_database() \
                 AND pid <> pg_backend_pid() AND state <> 'idle'"
            }
            Dialect::MySql | Dialect::MariaDb => {
                "FROM information_schema.processlist WHERE db = database() \
                 AND id <> connection_id() AND command <> 'Sleep'"
            }
        };
        self.select(&["count(*)"], others).await[0][0].as_deref() != Some("0")
    }

    /// Whether a session waits for the lock of [`hold_writers`](Self::hold_writers). SQLite has no
    /// sessions to ask for.
    pub async fn has_blocked_writer(&self) -> bool {
        let waiting = match self.dialect {
            Dialect::Sqlite => panic!("SQLite has no sessions"),
            Dialect::Postgres => {
                "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            }
            Dialect::MySql | Dialect::MariaDb => {
                "FROM information_schema.processlist WHERE db = database() \
                 AND state LIKE 'Waiting for%lock'"
            }
        };
        self.select(&["count(*)"], waiting).await[0][0].as_deref() != Some("0")
    }

    /// Blocks every writer of accounts, and no reader, until the connection is dropped.
    pub async fn hold_writers(&self) -> PlainConnection {
        hold_writers(&self.url).await
    }
}

/// Blocks every writer of accounts, and no reader, until the connection is dropped.
pub async fn hold_writers(url: &str) -> PlainConnection {
    let mut connection = PlainConnection::connect(url).await;
    let hold = match &connection {
        PlainConnection::Sqlite(_) => "BEGIN IMMEDIATE",
        PlainConnection::Postgres(_) => "BEGIN; LOCK TABLE accounts IN EXCLUSIVE MODE",
        PlainConnection::MySql(_) => "LOCK TABLES accounts READ",
    };
    connection.execute(hold).await;
    connection
}

/// Increments the version of a row. The framework does not know of it.
pub async fn overtake(url: &str, account: ShardedId<Account>) {
    let sql = format!("UPDATE accounts SET version = version + 1 WHERE id = '{account}'");
    PlainConnection::connect(url).await.execute(&sql).await;
}
