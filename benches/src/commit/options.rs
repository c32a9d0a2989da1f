//! The options of the measurement of commits.

use std::time::Duration;

use clap::ValueEnum;

use crate::failure::Failure;

/// The options of `ekbatan-bench commit`.
#[derive(clap::Args)]
pub struct CommitOptions {
    /// Which database to start: a private server that flushes each commit, or a SQLite
    /// file in a temporary folder.
    #[arg(long, value_enum)]
    pub database: BenchDatabase,

    /// Duration of each measurement, after a short warm-up.
    #[arg(long, default_value_t = 5.0, value_parser = crate::seconds::parse)]
    pub seconds: f64,

    /// Number of concurrent tasks; several numbers, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub tasks: Vec<u32>,

    /// Number of wallets. Fewer wallets mean more conflicts.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub wallets: u32,

    /// Number of rounds; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,

    /// Modes to measure; several, separated by commas. Default: all that the database has.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub mode: Vec<CommitMode>,

    /// What a commit on SQLite survives. Default: wal. Servers are always measured with
    /// full durability.
    #[arg(long, value_enum)]
    pub durability: Option<CommitDurability>,

    /// Network between client and server, in microseconds each way. All modes then go through a
    /// proxy.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub delay_us: u32,
}

/// The database to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchDatabase {
    /// A private server.
    Postgres,
    /// A private server.
    #[value(name = "mysql")]
    MySql,
    /// A private server.
    #[value(name = "mariadb")]
    MariaDb,
    /// A file, without a server.
    Sqlite,
}

impl BenchDatabase {
    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
            Self::MariaDb => "mariadb",
            Self::Sqlite => "sqlite",
        }
    }
}

/// How a deposit is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CommitMode {
    /// By hand, as usually written: a pool, BEGIN, SELECT, UPDATE, INSERT, COMMIT.
    SqlxTransaction,
    /// By hand, as quick as it gets: no pool, a SELECT, then one call that does the rest.
    SingleStatement,
    /// ActionExecutor::execute.
    Ekbatan,
    /// By hand, the limit of SQLite: the library on one thread, prepared statements, and
    /// nothing else. With several tasks it is still one thread.
    Library,
}

impl CommitMode {
    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SqlxTransaction => "sqlx-transaction",
            Self::SingleStatement => "single-statement",
            Self::Ekbatan => "ekbatan",
            Self::Library => "library",
        }
    }

    /// Whether the mode exists for the database.
    fn exists_for(self, database: BenchDatabase) -> bool {
        self != Self::Library || database == BenchDatabase::Sqlite
    }
}

/// What an acknowledged commit survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CommitDurability {
    /// Power loss: each commit waits for the disk.
    Full,
    /// A crash of the process: each commit is in the write-ahead log.
    Wal,
}

impl CommitDurability {
    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Wal => "wal",
        }
    }
}

impl CommitOptions {
    /// Fills in defaults and rejects options that do not fit together.
    pub fn complete(mut self) -> Result<Self, Failure> {
        if self.mode.is_empty() {
            self.mode = CommitMode::value_variants().to_vec();
            self.mode.retain(|mode| mode.exists_for(self.database));
        }
        if let Some(mode) = self.mode.iter().find(|mode| !mode.exists_for(self.database)) {
            let (mode, database) = (mode.name(), self.database.name());
            return Err(format!("--mode {mode} is for SQLite; {database} is a server").into());
        }
        for (n, mode) in self.mode.iter().enumerate() {
            if self.mode[..n].contains(mode) {
                return Err(format!("--mode names {} twice", mode.name()).into());
            }
        }
        for (n, tasks) in self.tasks.iter().enumerate() {
            if self.tasks[..n].contains(tasks) {
                return Err(format!("--tasks names {tasks} twice").into());
            }
        }
        if self.delay_us > 0 && self.database == BenchDatabase::Sqlite {
            return Err("--delay-us is for servers; SQLite has no network".into());
        }
        match (self.database, self.durability) {
            (
                BenchDatabase::Postgres | BenchDatabase::MySql | BenchDatabase::MariaDb,
                Some(CommitDurability::Wal),
            ) => Err(
                "--durability wal is for SQLite; servers are always measured with durability full"
                    .into(),
            ),
            _ => Ok(self),
        }
    }

    /// The network to measure over; `None` for a direct connection.
    pub fn delay(&self) -> Option<Duration> {
        (self.delay_us > 0).then(|| Duration::from_micros(self.delay_us.into()))
    }

    /// The durability that is measured.
    pub fn durability(&self) -> CommitDurability {
        self.durability.unwrap_or(match self.database {
            BenchDatabase::Postgres | BenchDatabase::MySql | BenchDatabase::MariaDb => {
                CommitDurability::Full
            }
            BenchDatabase::Sqlite => CommitDurability::Wal,
        })
    }
}
