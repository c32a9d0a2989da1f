//! The measurement: rounds in which every mode deposits for a while, and the money counted
//! after each.
//!
//! What always holds: a figure is only reported when all that its workers were told is
//! committed is in the database, once, with its events, and nothing else is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ekbatan::prelude::{Decimal, Uuid};
use ekbatan_testkit::Proxy;

use crate::model::Totals;
use crate::mysql::MySql;
use crate::postgres::Postgres;
use crate::report::{self, Figure, Sample};
use crate::sqlite::Sqlite;
use crate::worker::Worker;
use crate::{Failure, Kind, Mode, Options};

/// Every deposit's amount, in cents.
const CENTS: i64 = 150;
/// How long workers run before they are measured: statements are prepared, plans chosen.
const WARM_UP: Duration = Duration::from_millis(500);
/// How many deposits of each worker round trips are counted over, and before that are not.
const COUNTED: u64 = 40;
const UNCOUNTED: u64 = 20;

enum Database {
    Postgres(Postgres),
    /// MySQL or MariaDB.
    MySql(MySql),
    Sqlite(Box<Sqlite>),
}

impl Database {
    async fn start(options: &Options, wallets: &[Uuid]) -> Result<Self, Failure> {
        let most = options.tasks.iter().copied().max().unwrap_or(1);
        Ok(match options.database {
            Kind::Postgres => Self::Postgres(Postgres::start(most, wallets).await?),
            Kind::MySql => Self::MySql(MySql::start_mysql(wallets).await?),
            Kind::MariaDb => Self::MySql(MySql::start_mariadb(wallets).await?),
            Kind::Sqlite => {
                Self::Sqlite(Box::new(Sqlite::start(wallets, options.durability()).await?))
            }
        })
    }

    async fn tidy(&self) -> Result<(), Failure> {
        match self {
            Self::Postgres(postgres) => postgres.tidy().await,
            Self::MySql(mysql) => mysql.tidy().await,
            Self::Sqlite(sqlite) => sqlite.tidy().await,
        }
    }

    async fn totals(&self) -> Result<Totals, Failure> {
        match self {
            Self::Postgres(postgres) => postgres.totals().await,
            Self::MySql(mysql) => mysql.totals().await,
            Self::Sqlite(sqlite) => sqlite.totals().await,
        }
    }

    /// What counts round trips to the server, if it is one.
    async fn proxy(&self) -> Result<Option<Proxy>, Failure> {
        Ok(match self {
            Self::Postgres(postgres) => Some(postgres.proxy().await?),
            Self::MySql(mysql) => Some(mysql.proxy().await?),
            Self::Sqlite(_) => None,
        })
    }

    /// So many workers, directly or through a proxy.
    async fn workers(
        &self,
        mode: Mode,
        tasks: u32,
        proxy: Option<&Proxy>,
    ) -> Result<Vec<Worker>, Failure> {
        match self {
            Self::Postgres(postgres) => postgres.workers(mode, tasks, proxy).await,
            Self::MySql(mysql) => mysql.workers(mode, tasks, proxy).await,
            Self::Sqlite(sqlite) => sqlite.workers(mode, tasks).await,
        }
    }

    async fn stop(self) -> Result<(), Failure> {
        match self {
            Self::Postgres(postgres) => postgres.stop().await,
            Self::MySql(mysql) => mysql.stop().await,
            Self::Sqlite(_) => Ok(()),
        }
    }
}

/// Measures everything and prints it.
pub async fn run(options: &Options) -> Result<(), Failure> {
    let wallets: Arc<[Uuid]> = (0..options.wallets).map(|_| Uuid::now_v7()).collect();
    eprintln!("starting {:?} with {} wallets", options.database, wallets.len());
    let database = Database::start(options, &wallets).await?;
    let figures = measure(options, &database, &wallets).await;
    database.stop().await?;
    report::print(options, &figures?);
    Ok(())
}

async fn measure(
    options: &Options,
    database: &Database,
    wallets: &Arc<[Uuid]>,
) -> Result<Vec<Figure>, Failure> {
    let mut figures = Vec::new();
    for &tasks in &options.tasks {
        let mut of_modes: Vec<Figure> =
            options.mode.iter().map(|&mode| Figure::new(mode, tasks)).collect();
        for round in 1..=options.repeats {
            for figure in &mut of_modes {
                let mode = figure.mode;
                eprint!(
                    "round {round} of {}: {:<16} {tasks:>3} tasks, {} s .. ",
                    options.repeats,
                    mode.name(),
                    options.seconds
                );
                let sample = sample(options, database, wallets, mode, tasks).await?;
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

/// One mode, for a while.
async fn sample(
    options: &Options,
    database: &Database,
    wallets: &Arc<[Uuid]>,
    mode: Mode,
    tasks: u32,
) -> Result<Sample, Failure> {
    database.tidy().await?;
    let before = database.totals().await?;
    let workers = database.workers(mode, tasks, None).await?;
    let (workers, warm) = deposit(workers, wallets, Until::Passed(WARM_UP)).await?;
    let seconds = Until::Passed(Duration::from_secs(options.seconds));
    let (workers, done) = deposit(workers, wallets, seconds).await?;
    close(workers).await;
    let deposits = warm.latencies.len() + done.latencies.len();
    check(&Figure::new(mode, tasks), before, deposits, database.totals().await?)?;
    Ok(Sample::new(done.latencies, done.took))
}

/// Round trips per deposit, and how many deposits were made for it.
async fn round_trips(
    database: &Database,
    proxy: &Proxy,
    wallets: &Arc<[Uuid]>,
    figure: &Figure,
) -> Result<(f64, usize), Failure> {
    let workers = database.workers(figure.mode, figure.tasks, Some(proxy)).await?;
    let (workers, warm) = deposit(workers, wallets, Until::Done(UNCOUNTED)).await?;
    proxy.reset();
    let (workers, done) = deposit(workers, wallets, Until::Done(COUNTED)).await?;
    let trips = proxy.round_trips() as f64 / done.latencies.len() as f64;
    close(workers).await;
    Ok((trips, warm.latencies.len() + done.latencies.len()))
}

async fn close(workers: Vec<Worker>) {
    for worker in workers {
        worker.close().await;
    }
}

fn check(figure: &Figure, before: Totals, deposits: usize, after: Totals) -> Result<(), Failure> {
    let expected = before.after(i64::try_from(deposits)?, CENTS);
    if after == expected {
        return Ok(());
    }
    Err(format!(
        "after {deposits} deposits in mode {} with {} tasks the books are wrong: expected {expected:?}, found {after:?}",
        figure.mode.name(),
        figure.tasks
    )
    .into())
}

/// When a worker stops.
#[derive(Clone, Copy)]
enum Until {
    Passed(Duration),
    Done(u64),
}

struct Work {
    latencies: Vec<Duration>,
    took: Duration,
}

/// Has all workers deposit at once, each in a task of its own.
async fn deposit(
    workers: Vec<Worker>,
    wallets: &Arc<[Uuid]>,
    until: Until,
) -> Result<(Vec<Worker>, Work), Failure> {
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
    Ok((workers, Work { latencies, took: start.elapsed() }))
}

async fn deposit_alone(
    mut worker: Worker,
    wallets: Arc<[Uuid]>,
    until: Until,
) -> Result<(Worker, Vec<Duration>), Failure> {
    let amount = Decimal::new(CENTS, 2);
    let mut random = Random::new();
    let mut latencies = Vec::new();
    let start = Instant::now();
    let mut now = start;
    while match until {
        Until::Passed(time) => now - start < time,
        Until::Done(deposits) => (latencies.len() as u64) < deposits,
    } {
        let wallet = wallets[random.below(wallets.len())];
        worker.deposit(wallet, amount).await?;
        let done = Instant::now();
        latencies.push(done - now);
        now = done;
    }
    Ok((worker, latencies))
}

/// SplitMix64: even enough to choose wallets.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(Uuid::now_v7().as_u64_pair().1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}
