//! A run: all levels, and at each level the strategies in turns.
//!
//! Invariants: a cell has new wallets and, on a private database, empty tables. Its
//! processes start and exit with it, so no cache survives a cell. The money is checked
//! before the speed is reported.

use std::time::{Duration, Instant};

use crate::access::Access;
use crate::arguments::{Arguments, RunPlan};
use crate::cell::{Cell, Level, Sample};
use crate::failure::Failure;
use crate::lock_place::LockPlace;
use crate::machine::Machine;
use crate::money::{self, Wallets};
use crate::processes::{self, Moment, WorkDone, WorkerJob};
use crate::progress::Progress;
use crate::report;
use crate::results::Results;
use crate::servers::{Network, Servers};

/// Length of the extra pass that counts round trips, if one is needed.
const COUNTED: Duration = Duration::from_millis(500);

/// Runs and reports everything. Returns whether the money was right in all cells.
pub async fn run(arguments: Arguments) -> Result<bool, Failure> {
    let plan = arguments.plan()?;
    if cfg!(debug_assertions) {
        eprintln!("This is a debug build; its figures mean little. Build with --release.");
    }
    let servers = Servers::start(&plan, arguments.durability).await?;
    let measured = Runner { arguments: &arguments, servers: &servers }.measure(&plan).await;
    let access = servers.access.clone();
    let version = money::version(&access).await;
    let lock = servers.lock.name();
    servers.stop().await?;
    let results = Results {
        machine: Machine::look(version?),
        database: access.engine.name(),
        durability: arguments.durability.name(),
        lock,
        seconds: arguments.seconds,
        warm_up: arguments.warm_up,
        repeats: arguments.repeats,
        think_us: arguments.think,
        cells: measured?,
    };
    report::write(&results, &arguments)?;
    Ok(results.cells.iter().all(Cell::money_ok))
}

struct Runner<'a> {
    arguments: &'a Arguments,
    servers: &'a Servers,
}

/// The counts of a pass through a proxy.
struct Counted {
    round_trips: f64,
    connections: usize,
}

/// What the proxies have counted at a moment.
struct Reading {
    at: Instant,
    round_trips: u64,
    connections: usize,
}

impl Reading {
    fn of(network: &Network) -> Self {
        let (round_trips, connections) = (network.round_trips(), network.connections());
        Self { at: Instant::now(), round_trips, connections }
    }
}

impl Runner<'_> {
    async fn measure(&self, plan: &RunPlan) -> Result<Vec<Cell>, Failure> {
        money::prepare(&self.servers.access).await?;
        let passes = plan.levels.len() * plan.strategies.len() * self.arguments.repeats as usize;
        let mut progress = Progress::new(passes);
        let mut cells = Vec::new();
        for &level in &plan.levels {
            let mut of_level: Vec<Cell> =
                plan.strategies.iter().map(|&strategy| Cell::new(strategy, level)).collect();
            for round in 0..self.arguments.repeats {
                for cell in &mut of_level {
                    progress.begin(cell.strategy, &level);
                    self.pass(cell, round, &mut progress).await.map_err(|error| {
                        format!("{}, {}: {error}", cell.strategy.name(), level.text())
                    })?;
                    progress.end(cell);
                }
            }
            cells.append(&mut of_level);
        }
        progress.finish();
        Ok(cells)
    }

    /// One repeat of a cell. With a delay, it goes through the proxies, which also count.
    /// Without one, proxies would only cost time, so an extra pass counts.
    async fn pass(
        &self,
        cell: &mut Cell,
        round: u32,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let seconds = Duration::from_secs_f64;
        let (warm_up, window) = (seconds(self.arguments.warm_up), seconds(self.arguments.seconds));
        let network = Network::start(self.servers, cell.level.delay_us).await?;
        let through = network.as_ref().filter(|_| cell.level.delay_us > 0);
        let (sample, mut counted) =
            self.sample(cell, round, through, warm_up, window, progress).await?;
        cell.samples.push(sample);
        if round == 0 && network.is_some() && counted.is_none() {
            let (warm_up, window) = (warm_up.min(COUNTED), window.min(COUNTED));
            let (sample, of_pass) =
                self.sample(cell, round, network.as_ref(), warm_up, window, progress).await?;
            // The extra pass is checked for its money, not measured.
            if sample.money.is_err() {
                cell.samples.push(sample);
            }
            counted = of_pass;
        }
        if let (0, Some(counted)) = (round, counted) {
            cell.round_trips = Some(counted.round_trips);
            cell.connections = Some(counted.connections);
        }
        Ok(())
    }

    async fn sample(
        &self,
        cell: &Cell,
        round: u32,
        through: Option<&Network>,
        warm_up: Duration,
        window: Duration,
        progress: &mut Progress,
    ) -> Result<(Sample, Option<Counted>), Failure> {
        let direct = &self.servers.access;
        let wallets = Wallets::fresh(cell.level.wallets);
        money::open_wallets(direct, &wallets, self.servers.is_private()).await?;
        let (access, lock) = match through {
            Some(network) => (network.access(self.servers), network.lock(self.servers)),
            None => (direct.clone(), self.servers.lock.clone()),
        };
        let jobs = self.jobs(cell, round, &access, &lock, wallets, (warm_up, window));
        let (mut began, mut ended) = (None, None);
        let work = processes::run(jobs, |moment| match (moment, through) {
            (Moment::Deposits(deposits), _) => progress.add(deposits),
            (Moment::Began, Some(network)) => began = Some(Reading::of(network)),
            (Moment::Ended, Some(network)) => ended = Some(Reading::of(network)),
            (_, None) => {}
        })
        .await?;
        let money = money::check(direct, &wallets, work.acknowledged).await?;
        let counted = through.zip(began.zip(ended)).map(|(network, (began, ended))| Counted {
            round_trips: round_trips(network, &work, window, &began, &ended),
            connections: ended.connections,
        });
        Ok((sample(work, window, money), counted))
    }

    /// Splits the work of a cell evenly among its processes.
    fn jobs(
        &self,
        cell: &Cell,
        round: u32,
        access: &Access,
        lock: &LockPlace,
        wallets: Wallets,
        (warm_up, window): (Duration, Duration),
    ) -> Vec<WorkerJob> {
        let Level { tasks, processes, skew, .. } = cell.level;
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let job = |process: u32| WorkerJob {
            access: access.clone(),
            lock: lock.clone(),
            strategy: cell.strategy,
            tasks: tasks / processes + u32::from(process < tasks % processes),
            several_processes: processes > 1,
            wallets,
            skew,
            think_us: self.arguments.think,
            warm_up_us: micros(warm_up),
            window_us: micros(window),
            seed: self.arguments.seed ^ u64::from(process) << 16 ^ u64::from(round) << 24,
        };
        (0..processes).map(job).collect()
    }
}

/// The round trips of a deposit, between the readings at the begin and the end of the window.
fn round_trips(
    network: &Network,
    work: &WorkDone,
    window: Duration,
    began: &Reading,
    ended: &Reading,
) -> f64 {
    let saw_window =
        ended.at >= began.at + window * 9 / 10 && ended.round_trips > began.round_trips;
    let (trips, deposits) = if saw_window {
        (ended.round_trips - began.round_trips, work.actions)
    } else {
        // On a busy machine the begin may be read as late as the end. Then the whole pass counts, with its
        // logins.
        (network.round_trips(), work.acknowledged)
    };
    trips as f64 / deposits.max(1) as f64
}

fn sample(work: WorkDone, window: Duration, money: Result<u64, String>) -> Sample {
    Sample {
        window,
        actions: work.actions,
        begun: work.begun,
        attempts: work.attempts,
        latencies: work.latencies,
        slowest: work.slowest.unwrap_or_default(),
        money,
    }
}
