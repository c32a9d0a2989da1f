//! The measurement of commits: rounds in which each mode makes deposits for a while,
//! followed by a check of the money.
//!
//! Invariants: a figure is reported only if the database holds every acknowledged deposit
//! exactly once, with its event, and nothing else.

mod database;
mod mysql;
mod options;
mod postgres;
mod report;
mod rows;
mod sqlite;
mod worker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ekbatan::prelude::{Decimal, Uuid};
use ekbatan_testkit::Proxy;

use crate::failure::Failure;
use crate::statistics::RoundResult;
pub use database::StartedDatabase;
pub use options::{BenchDatabase, CommitDurability, CommitOptions};
use report::CommitFigure;
use rows::Totals;
pub use rows::{NAMESPACE, PRINCIPAL};
use worker::Worker;
pub use worker::ekbatan;

/// The amount of each deposit, in cents.
const CENTS: i64 = 150;
/// How long workers run before the measurement, to prepare statements and choose plans.
const WARM_UP: Duration = Duration::from_millis(500);
/// Deposits per worker over which round trips are counted, and deposits per worker before
/// the count starts.
const COUNTED: u64 = 40;
const UNCOUNTED: u64 = 20;

/// Runs all measurements and prints the figures.
pub async fn run(options: &CommitOptions) -> Result<(), Failure> {
    let wallets: Arc<[Uuid]> = (0..options.wallets).map(|_| Uuid::now_v7()).collect();
    eprintln!("starting {:?} with {} wallets", options.database, wallets.len());
    let most = options.tasks.iter().copied().max().unwrap_or(1);
    let durability = options.durability();
    let database = StartedDatabase::start(options.database, durability, most, &wallets).await?;
    let figures = measure(options, &database, &wallets).await;
    database.stop().await?;
    report::print(options, &figures?);
    Ok(())
}

async fn measure(
    options: &CommitOptions,
    database: &StartedDatabase,
    wallets: &Arc<[Uuid]>,
) -> Result<Vec<CommitFigure>, Failure> {
    let network = match options.delay() {
        Some(delay) => database.proxy().await?.inspect(|proxy| proxy.set_delay(delay)),
        None => None,
    };
    let mut figures = Vec::new();
    for &tasks in &options.tasks {
        let mut of_modes: Vec<CommitFigure> =
            options.mode.iter().map(|&mode| CommitFigure::new(mode, tasks)).collect();
        for round in 1..=options.repeats {
            for figure in &mut of_modes {
                let mode = figure.mode;
                eprint!(
                    "round {round} of {}: {:<16} {tasks:>3} tasks, {} s .. ",
                    options.repeats,
                    mode.name(),
                    options.seconds
                );
                let sample = sample(options, database, network.as_ref(), wallets, figure).await?;
                eprintln!("{:.0} actions/s", sample.per_second);
                figure.samples.push(sample);
            }
        }
        for figure in &mut of_modes {
            let Some(proxy) = database.proxy().await? else { continue };
            eprintln!("round trips: {:<16} {tasks:>3} tasks", figure.mode.name());
            let before = database.totals().await?;
            let (trips, deposits) = round_trips(database, &proxy, wallets, figure).await?;
            check(figure, before, deposits, database.totals().await?)?;
            figure.round_trips = Some(trips);
        }
        figures.append(&mut of_modes);
    }
    Ok(figures)
}

/// Measures the mode of a figure for one round.
async fn sample(
    options: &CommitOptions,
    database: &StartedDatabase,
    network: Option<&Proxy>,
    wallets: &Arc<[Uuid]>,
    figure: &CommitFigure,
) -> Result<RoundResult, Failure> {
    database.tidy().await?;
    let before = database.totals().await?;
    let workers = database.workers(figure.mode, figure.tasks, network).await?;
    let (workers, warm) = deposit(workers, wallets, StopWhen::Passed(WARM_UP)).await?;
    let seconds = StopWhen::Passed(Duration::from_secs_f64(options.seconds));
    let (workers, done) = deposit(workers, wallets, seconds).await?;
    close(workers).await;
    let deposits = warm.latencies.len() + done.latencies.len();
    check(figure, before, deposits, database.totals().await?)?;
    Ok(RoundResult::new(done.latencies, done.took))
}

/// Returns the round trips per deposit, and the number of deposits made to count them.
async fn round_trips(
    database: &StartedDatabase,
    proxy: &Proxy,
    wallets: &Arc<[Uuid]>,
    figure: &CommitFigure,
) -> Result<(f64, usize), Failure> {
    let workers = database.workers(figure.mode, figure.tasks, Some(proxy)).await?;
    let (workers, warm) = deposit(workers, wallets, StopWhen::Done(UNCOUNTED)).await?;
    proxy.reset();
    let (workers, done) = deposit(workers, wallets, StopWhen::Done(COUNTED)).await?;
    let trips = proxy.round_trips() as f64 / done.latencies.len() as f64;
    close(workers).await;
    Ok((trips, warm.latencies.len() + done.latencies.len()))
}

async fn close(workers: Vec<Worker>) {
    for worker in workers {
        worker.close().await;
    }
}

fn check(
    figure: &CommitFigure,
    before: Totals,
    deposits: usize,
    after: Totals,
) -> Result<(), Failure> {
    let expected = before.after(i64::try_from(deposits)?, CENTS);
    if after == expected {
        return Ok(());
    }
    Err(format!(
        "the money is wrong after {deposits} deposits in mode {} with {} tasks: expected {expected:?}, found {after:?}",
        figure.mode.name(),
        figure.tasks
    )
    .into())
}

/// When a worker stops.
#[derive(Clone, Copy)]
enum StopWhen {
    Passed(Duration),
    Done(u64),
}

struct Deposits {
    latencies: Vec<Duration>,
    took: Duration,
}

/// Runs all workers at the same time, each in its own task.
async fn deposit(
    workers: Vec<Worker>,
    wallets: &Arc<[Uuid]>,
    until: StopWhen,
) -> Result<(Vec<Worker>, Deposits), Failure> {
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for worker in workers {
        tasks.spawn(deposit_alone(worker, wallets.clone(), until));
    }
    let mut workers = Vec::new();
    let mut latencies = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        let (worker, mut of_worker) = ended??;
        workers.push(worker);
        latencies.append(&mut of_worker);
    }
    Ok((workers, Deposits { latencies, took: start.elapsed() }))
}

async fn deposit_alone(
    mut worker: Worker,
    wallets: Arc<[Uuid]>,
    until: StopWhen,
) -> Result<(Worker, Vec<Duration>), Failure> {
    let amount = Decimal::new(CENTS, 2);
    let mut random = Random::new();
    let mut latencies = Vec::new();
    let start = Instant::now();
    let mut now = start;
    while match until {
        StopWhen::Passed(time) => now - start < time,
        StopWhen::Done(deposits) => (latencies.len() as u64) < deposits,
    } {
        let wallet = wallets[random.below(wallets.len())];
        worker.deposit(wallet, amount).await?;
        let done = Instant::now();
        latencies.push(done - now);
        now = done;
    }
    Ok((worker, latencies))
}

/// SplitMix64, which is even enough to choose wallets.
pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        Self(Uuid::now_v7().as_u64_pair().1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}
