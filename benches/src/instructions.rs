//! The instructions of one action, which hardly depend on how fast or how busy the machine is.
//!
//! Deposits run one after another in a process that valgrind counts. It runs twice, with few deposits
//! and with many, and the difference is what the further ones took: start and connection drop out. The
//! instructions of a server are not counted, only those of the process that calls it.

use std::process::{Command, Stdio};

use clap::ValueEnum;
use ekbatan::config::{DataSourceConfig, Durability};
use ekbatan::prelude::*;
use serde::Serialize;

use crate::commit::{self, BenchDatabase, CommitDurability, StartedDatabase};
use crate::failure::Failure;
use crate::statistics::print_json;

/// Enough that statements are prepared, pools are filled and the log of SQLite has its length.
const FEW: u32 = 500;
const MANY: u32 = 1_500;

const WALLETS: usize = 10;

/// The options of `ekbatan-bench instructions`.
#[derive(clap::Args)]
pub struct InstructionsOptions {
    /// Databases; several, separated by commas. Default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    database: Vec<BenchDatabase>,

    /// Fail if an action takes more instructions.
    #[arg(long)]
    at_most: Option<u64>,
}

/// The job of the process that is counted.
#[derive(clap::Args)]
pub struct InstructionsChildOptions {
    #[arg(long)]
    url: String,
    #[arg(long, value_delimiter = ',')]
    wallets: Vec<Uuid>,
    #[arg(long)]
    deposits: u32,
}

#[derive(Serialize)]
struct InstructionsRecord {
    bench: &'static str,
    database: &'static str,
    instructions: u64,
}

/// Counts for each database, and prints the figures.
pub async fn run(options: &InstructionsOptions) -> Result<(), Failure> {
    let all = BenchDatabase::value_variants();
    let named = |database: &&BenchDatabase| {
        options.database.is_empty() || options.database.contains(database)
    };
    let mut records = Vec::new();
    for &database in all.iter().filter(named) {
        eprintln!("starting {}", database.name());
        let instructions = count(database).await?;
        eprintln!("{}: {instructions} instructions for each action", database.name());
        records.push(InstructionsRecord {
            bench: "instructions",
            database: database.name(),
            instructions,
        });
    }
    print_json(&records);
    let most = options.at_most.unwrap_or(u64::MAX);
    match records.iter().find(|record| record.instructions > most) {
        Some(InstructionsRecord { database, instructions, .. }) => Err(format!(
            "an action on {database} takes {instructions} instructions, more than {most}; find out what \
             was added, or raise the limit"
        )
        .into()),
        None => Ok(()),
    }
}

async fn count(database: BenchDatabase) -> Result<u64, Failure> {
    let wallets: Vec<Uuid> = (0..WALLETS).map(|_| Uuid::now_v7()).collect();
    let started = StartedDatabase::start(database, CommitDurability::Wal, 1, &wallets).await?;
    let url = started.config(None).url;
    let counted = tokio::task::spawn_blocking(move || {
        Ok::<_, Failure>((counted(&url, &wallets, FEW)?, counted(&url, &wallets, MANY)?))
    });
    let counted = counted.await;
    started.stop().await?;
    let (few, many) = counted??;
    Ok(many.saturating_sub(few) / u64::from(MANY - FEW))
}

/// The instructions of a process that makes so many deposits.
fn counted(url: &str, wallets: &[Uuid], deposits: u32) -> Result<u64, Failure> {
    let wallets: Vec<String> = wallets.iter().map(Uuid::to_string).collect();
    let program = std::env::current_exe()?;
    let output = Command::new("valgrind")
        // The counts go to stdout, where the process itself writes nothing.
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/stdout"])
        .arg(program)
        .args(["instructions-child", "--url", url, "--wallets", &wallets.join(",")])
        .args(["--deposits", &deposits.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind cannot be run, install it: {error}"))?;
    let counts = String::from_utf8_lossy(&output.stdout);
    let summary = counts.lines().find_map(|line| line.strip_prefix("summary:"));
    match summary.and_then(|count| count.trim().parse().ok()) {
        Some(count) if output.status.success() => Ok(count),
        _ => Err(format!(
            "valgrind counted nothing ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
        .into()),
    }
}

/// Makes the deposits, on one thread.
pub async fn run_child(options: InstructionsChildOptions) -> Result<(), Failure> {
    let deposits = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(deposit(&options))
    };
    tokio::task::spawn_blocking(deposits).await?
}

async fn deposit(options: &InstructionsChildOptions) -> Result<(), Failure> {
    // A commit on SQLite then runs where it is called, as in the measurement of commits.
    let config = DataSourceConfig::new(&options.url).durability(Durability::Wal);
    let mut worker = commit::ekbatan(config, 1).await?.pop().ok_or("one task has one worker")?;
    for (_, &wallet) in (0..options.deposits).zip(options.wallets.iter().cycle()) {
        worker.deposit(wallet, Decimal::ONE).await?;
    }
    worker.close().await;
    Ok(())
}
