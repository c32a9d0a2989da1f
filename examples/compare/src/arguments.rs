//! The command line.
//!
//! Invariants: a plan that `Arguments::plan` returns can be run. An error names the
//! option, its value and the way out, and no server has been started by then.

use std::path::{Path, PathBuf};

use clap::Parser;
use ekbatan::config::{ConfigError, EkbatanConfig, ExposeSecret};

use crate::access::{Access, DepositDurability, Engine};
use crate::cell::Level;
use crate::lock_place::LockPlace;
use crate::strategy::Strategy;

/// Compares ways to deposit into contended wallets: ekbatan's strategies, hand-written
/// SQL, SeaORM.
///
/// By default it uses its own SQLite file. For the name of a database it starts a private
/// server and removes it at the end. Progress goes to stderr, a table to stdout. Lists
/// are separated by commas, and every combination is measured. Build with --release.
#[derive(Parser)]
#[command(name = "compare", version)]
pub struct Arguments {
    /// sqlite, postgres, mysql or mariadb to start a private one, or the URL of a
    /// database to write to, such as postgres://USER:PASSWORD@HOST:PORT/DATABASE. That
    /// database must hold nothing else.
    #[arg(long, value_name = "KIND|URL", default_value = "sqlite", conflicts_with = "config")]
    pub database: String,

    /// A YAML file with the database: the URL, username and password of its default
    /// shard's primary.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Strategies to compare. Default: all, but coalesced-lease only with several
    /// processes.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME,..")]
    pub strategy: Vec<Strategy>,

    /// Where leases are taken: process, postgres (advisory locks of one session),
    /// postgres-lease (rows), redis (a private server), or redis://HOST:PORT/DB. Default:
    /// postgres on PostgreSQL, otherwise process, which several processes cannot share.
    #[arg(long, value_name = "PLACE")]
    pub lock: Option<String>,

    /// Number of concurrent tasks, over all processes.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64", value_name = "N,..", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub tasks: Vec<u32>,

    /// Number of processes that share the tasks.
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N,..", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub processes: Vec<u32>,

    /// Number of wallets.
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N,..", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub wallets: Vec<u32>,

    /// Skew of the choice of wallets (Zipf): 0 is uniform, 1 is typical, 2 is almost
    /// always the same few.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "S,..", value_parser = skew)]
    pub skew: Vec<f64>,

    /// Pause of a task between two deposits, in microseconds.
    #[arg(long, default_value_t = 0, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(..=60_000_000))]
    pub think: u64,

    /// Delay of the network to the database and to Redis, in microseconds each way.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "MICROSECONDS,..", value_parser = clap::value_parser!(u64).range(..=10_000_000))]
    pub delay_us: Vec<u64>,

    /// What an acknowledged deposit survives. A given server uses its own setting.
    #[arg(long, value_enum, default_value = "full")]
    pub durability: DepositDurability,

    /// Duration of each cell's measurement.
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: f64,

    /// Duration of the warm-up before it: statements are prepared, hot wallets are
    /// detected.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    pub warm_up: f64,

    /// Number of measurements of each cell; rates are medians. Strategies take turns.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,

    /// Seed for the choice of wallets.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,

    /// Writes one JSON line per cell; `-` is stdout.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Writes the cells as CSV; `-` is stdout.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Writes a self-contained HTML page with charts.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Writes the charts as one SVG picture.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Which database is used.
pub enum DatabaseSource {
    /// A private one, started by this program.
    Private(Engine),
    /// A running one.
    Given(Access),
}

/// Arguments that fit together.
pub struct RunPlan {
    pub source: DatabaseSource,
    pub lock: LockPlace,
    pub strategies: Vec<Strategy>,
    pub levels: Vec<Level>,
}

/// Arguments that do not fit together.
#[derive(Debug, thiserror::Error)]
pub enum ArgumentError {
    #[error(
        "--database {0:?} is not a known database; write sqlite, postgres, mysql, mariadb, or a URL that starts with one of them, such as sqlite:FILE"
    )]
    Database(String),
    #[error(
        "--lock {0:?} is not a known place for locks; write process, postgres, postgres-lease, redis or redis://HOST:PORT/DB"
    )]
    Lock(String),
    #[error(
        "--lock {0} keeps its locks in PostgreSQL, but --database is {1}; write --lock process or --lock redis, or --database postgres"
    )]
    LockElsewhere(&'static str, &'static str),
    #[error(
        "--delay-us {0} has no effect: SQLite has no network; leave it out, or choose another --database"
    )]
    DelayOfFile(u64),
    #[error(
        "--durability relaxed works only for databases that this program starts; a given server uses its own setting: leave the option out"
    )]
    DurabilityOfGiven,
    #[error(
        "--tasks {tasks} is less than --processes {processes}, but each process needs a task; raise --tasks or lower --processes"
    )]
    TooFewTasks { tasks: u32, processes: u32 },
    #[error(
        "--lock process excludes nobody in other processes, and --strategy {strategy} takes leases with --processes {processes}; write --lock redis, or name other strategies"
    )]
    LockOfOneProcess { strategy: &'static str, processes: u32 },
    #[error("{option} names {value} twice; name it once")]
    Twice { option: &'static str, value: String },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("--config {file}: {what}")]
    ConfigFile { file: String, what: String },
    #[error("{option} {file} cannot be written: {what}; name a file in a folder that exists")]
    Output { option: &'static str, file: String, what: &'static str },
}

impl Arguments {
    /// Validates the arguments.
    pub fn plan(&self) -> Result<RunPlan, ArgumentError> {
        let source = self.source()?;
        let (engine, given) = match &source {
            DatabaseSource::Private(engine) => (*engine, false),
            DatabaseSource::Given(access) => (access.engine, access.engine != Engine::Sqlite),
        };
        if given && self.durability == DepositDurability::Relaxed {
            return Err(ArgumentError::DurabilityOfGiven);
        }
        if let Some(&delay) = self.delay_us.iter().find(|&&delay| delay > 0)
            && engine == Engine::Sqlite
        {
            return Err(ArgumentError::DelayOfFile(delay));
        }
        once("--strategy", &self.strategy.iter().map(|it| it.name()).collect::<Vec<_>>())?;
        once("--tasks", &self.tasks)?;
        once("--processes", &self.processes)?;
        once("--wallets", &self.wallets)?;
        once("--skew", &self.skew)?;
        once("--delay-us", &self.delay_us)?;
        self.outputs()?;
        let most = self.processes.iter().copied().max().unwrap_or(1);
        if let Some(&tasks) = self.tasks.iter().find(|&&tasks| tasks < most) {
            return Err(ArgumentError::TooFewTasks { tasks, processes: most });
        }
        let strategies =
            if self.strategy.is_empty() { Strategy::usual(most) } else { self.strategy.clone() };
        let lock = self.lock(engine)?;
        let leasing = strategies.iter().find(|strategy| strategy.takes_leases_between_processes());
        if let Some(strategy) = leasing.filter(|_| most > 1 && matches!(lock, LockPlace::Process)) {
            let strategy = strategy.name();
            return Err(ArgumentError::LockOfOneProcess { strategy, processes: most });
        }
        Ok(RunPlan { source, lock, strategies, levels: self.levels() })
    }

    /// The files are written after the run, which must not be in vain.
    fn outputs(&self) -> Result<(), ArgumentError> {
        let outputs = [
            ("--json", &self.json),
            ("--csv", &self.csv),
            ("--html", &self.html),
            ("--svg", &self.svg),
        ];
        for (option, path) in outputs {
            let Some(path) = path.as_deref().filter(|path| *path != Path::new("-")) else {
                continue;
            };
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let what = if path.is_dir() {
                "it is a folder"
            } else if folder.is_some_and(|folder| !folder.is_dir()) {
                "there is no such folder"
            } else {
                continue;
            };
            return Err(ArgumentError::Output { option, file: path.display().to_string(), what });
        }
        Ok(())
    }

    fn source(&self) -> Result<DatabaseSource, ArgumentError> {
        let Some(file) = &self.config else {
            return match self.database.as_str() {
                "sqlite" => Ok(DatabaseSource::Private(Engine::Sqlite)),
                "postgres" => Ok(DatabaseSource::Private(Engine::Postgres)),
                "mysql" => Ok(DatabaseSource::Private(Engine::MySql)),
                "mariadb" => Ok(DatabaseSource::Private(Engine::MariaDb)),
                url => {
                    let engine = Engine::of(url)
                        .ok_or_else(|| ArgumentError::Database(self.database.clone()))?;
                    Ok(DatabaseSource::Given(Access::new(engine, url.to_owned(), self.durability)))
                }
            };
        };
        let config = EkbatanConfig::load(file)?;
        let config_error =
            |what: String| ArgumentError::ConfigFile { file: file.display().to_string(), what };
        let sharding = &config.sharding;
        let primary = sharding
            .member(sharding.default_shard)
            .and_then(|member| member.primary())
            .ok_or_else(|| {
            config_error("the default shard has no primary-config".to_owned())
        })?;
        let engine =
            Engine::of(&primary.url).ok_or_else(|| ArgumentError::Database(primary.url.clone()))?;
        if primary.eventlog != "eventlog" {
            return Err(config_error(format!(
                "eventlog is {:?}, and the strategies written by hand know only `eventlog`; leave the setting out for this comparison",
                primary.eventlog
            )));
        }
        let mut access = Access::new(engine, primary.url.clone(), self.durability);
        access.username = primary.username.clone();
        access.password = primary.password.as_ref().map(|it| it.expose_secret().to_owned());
        Ok(DatabaseSource::Given(access))
    }

    fn lock(&self, engine: Engine) -> Result<LockPlace, ArgumentError> {
        let lock = match self.lock.as_deref() {
            None if engine == Engine::Postgres => LockPlace::Postgres,
            None | Some("process") => LockPlace::Process,
            Some("postgres") => LockPlace::Postgres,
            Some("postgres-lease") => LockPlace::PostgresLease,
            Some("redis") => LockPlace::Redis,
            Some(url) if url.starts_with("redis://") => LockPlace::RedisAt(url.to_owned()),
            Some(other) => return Err(ArgumentError::Lock(other.to_owned())),
        };
        match lock {
            LockPlace::Postgres | LockPlace::PostgresLease if engine != Engine::Postgres => {
                Err(ArgumentError::LockElsewhere(lock.name(), engine.name()))
            }
            lock => Ok(lock),
        }
    }

    fn levels(&self) -> Vec<Level> {
        let mut levels = Vec::new();
        for &delay_us in &self.delay_us {
            for &processes in &self.processes {
                for &wallets in &self.wallets {
                    for &skew in &self.skew {
                        for &tasks in &self.tasks {
                            levels.push(Level { tasks, processes, wallets, skew, delay_us });
                        }
                    }
                }
            }
        }
        levels
    }
}

fn once<T: PartialEq + ToString>(option: &'static str, values: &[T]) -> Result<(), ArgumentError> {
    match values.iter().enumerate().find(|(n, value)| values[..*n].contains(value)) {
        Some((_, value)) => Err(ArgumentError::Twice { option, value: value.to_string() }),
        None => Ok(()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("it must be a number of seconds between 0.05 and 3600".to_owned()),
    }
}

fn skew(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(skew) if (0.0..=5.0).contains(&skew) => Ok(skew),
        _ => Err("it must be a number between 0 and 5".to_owned()),
    }
}
