//! Measurements of ekbatan beside hand-written SQL. `--help` says what there is; the README
//! says how to read it.

mod commit;
mod locks;
mod model;
mod mysql;
mod postgres;
mod report;
mod sqlite;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

/// Whatever ends a measurement early.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Measures ekbatan beside hand-written SQL, on servers and files of its own.
///
/// Progress goes to stderr, results to stdout: a table to read, then one JSON line per
/// figure. Build with --release.
#[derive(Parser)]
#[command(name = "ekbatan-bench", version)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Deposits into random wallets: one row read, one versioned row and one event written.
    ///
    /// All modes do the same work on the same tables of one database, equally durable, and
    /// take turns: a round measures every mode once, and ratios are taken within a round.
    /// After each measurement the money is counted; if balances, versions, events and what
    /// was acknowledged do not agree, the run fails.
    Commit(Options),

    /// Locks: what a key costs that is free, that passes between processes, and that several
    /// want at the same time.
    ///
    /// Every mode contends for one key in processes of its own, and they take turns: a round
    /// measures every mode once, and ratios are taken within a round. If two held the key at
    /// the same time, the run fails.
    Locks(locks::Options),

    /// One process of a measurement of locks.
    #[command(hide = true)]
    LocksChild(locks::ChildOptions),
}

/// What to measure.
#[derive(clap::Args)]
pub struct Options {
    /// Which database to start: a private server that flushes every commit, or a SQLite file
    /// in a temporary folder.
    #[arg(long, value_enum)]
    pub database: Kind,

    /// How long each measurement lasts, after a short warm-up.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,

    /// How many tasks deposit at the same time; several, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub tasks: Vec<u32>,

    /// How many wallets there are. Few wallets make conflicts.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub wallets: u32,

    /// How many rounds; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,

    /// Which modes take turns; several, separated by commas. Default: all of them.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub mode: Vec<Mode>,

    /// What a commit of SQLite survives. Default: wal. Servers are always measured in full.
    #[arg(long, value_enum)]
    pub durability: Option<Durability>,
}

/// A database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A private server.
    Postgres,
    /// A private server.
    #[value(name = "mysql")]
    MySql,
    /// A private server.
    #[value(name = "mariadb")]
    MariaDb,
    /// A file.
    Sqlite,
}

impl Kind {
    /// As it is written on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
            Self::MariaDb => "mariadb",
            Self::Sqlite => "sqlite",
        }
    }
}

/// How the work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// By hand, as usually written: a pool, BEGIN, SELECT, UPDATE, INSERT, COMMIT.
    SqlxTransaction,
    /// By hand, as quick as it gets: no pool, a SELECT, then one call that does the rest.
    SingleStatement,
    /// ActionExecutor::execute.
    Ekbatan,
}

impl Mode {
    /// As it is written on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SqlxTransaction => "sqlx-transaction",
            Self::SingleStatement => "single-statement",
            Self::Ekbatan => "ekbatan",
        }
    }
}

/// What a commit has survived once it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    /// The loss of power: every commit waits for the disk.
    Full,
    /// The death of the process: every commit is in the write-ahead log.
    Wal,
}

impl Durability {
    /// As it is written on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Wal => "wal",
        }
    }
}

impl Options {
    /// The options made whole, or what is wrong with them.
    fn complete(mut self) -> Result<Self, Failure> {
        if self.mode.is_empty() {
            self.mode = Mode::value_variants().to_vec();
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
        match (self.database, self.durability) {
            (Kind::Postgres | Kind::MySql | Kind::MariaDb, Some(Durability::Wal)) => Err(
                "--durability wal is for SQLite; servers are always measured with durability full"
                    .into(),
            ),
            _ => Ok(self),
        }
    }

    /// The durability that is measured.
    pub fn durability(&self) -> Durability {
        self.durability.unwrap_or(match self.database {
            Kind::Postgres | Kind::MySql | Kind::MariaDb => Durability::Full,
            Kind::Sqlite => Durability::Wal,
        })
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let bench = Arguments::parse().bench;
    if cfg!(debug_assertions) && !matches!(bench, Bench::LocksChild(_)) {
        eprintln!("This is a debug build; its figures mean little. Build with --release.");
    }
    let done = match bench {
        Bench::Commit(options) => match options.complete() {
            Ok(options) => commit::run(&options).await,
            Err(error) => Err(error),
        },
        Bench::Locks(options) => locks::run(&options).await,
        Bench::LocksChild(options) => locks::run_child(&options).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ekbatan-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
