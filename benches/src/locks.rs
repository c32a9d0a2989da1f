//! The measurement of locks: rounds in which every mode contends for one key, in processes of
//! its own.
//!
//! What always holds: a figure is only reported when no two held the key at the same time.

mod child;
mod contender;
mod postgres;
mod process;
mod provider;
mod redis;
mod report;
mod timeline;
mod turns;

use std::time::Duration;

use clap::ValueEnum;

pub use self::child::{ChildOptions, run as run_child};
use self::process::Contest;
pub use self::provider::Provider;
use self::report::Figure;
use crate::Failure;
use crate::report::Sample;

/// What to measure.
#[derive(clap::Args)]
pub struct Options {
    /// Which locks; several, separated by commas. Default: all of them.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub provider: Vec<Provider>,

    /// What of them; several, separated by commas. Default: all there is.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub measure: Vec<Measure>,

    /// How long each measurement lasts, after a short warm-up.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,

    /// How many rounds; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// One alone takes the key and gives it back.
    Free,
    /// Two processes pass the key to each other, in turn.
    Handoff,
    /// Eight contend in one process.
    Local,
    /// Eight contend in four processes.
    Processes,
}

impl Measure {
    /// As it is written on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Handoff => "handoff",
            Self::Local => "local",
            Self::Processes => "processes",
        }
    }

    const fn processes(self) -> usize {
        match self {
            Self::Free | Self::Local => 1,
            Self::Handoff => 2,
            Self::Processes => 4,
        }
    }

    /// In each process.
    const fn contenders(self) -> usize {
        match self {
            Self::Free | Self::Handoff => 1,
            Self::Local => 8,
            Self::Processes => 2,
        }
    }

    /// How long the key is held: where it is passed on, until the other one waits for it.
    const fn hold(self) -> Duration {
        match self {
            Self::Handoff => Duration::from_millis(2),
            _ => Duration::ZERO,
        }
    }
}

/// By whom the lock is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// By hand, in the way of the provider.
    Raw,
    /// By the server's own lock that is waited for, where that is another way.
    Blocking,
    /// By LockProvider.
    Ekbatan,
}

impl Mode {
    /// As it is written on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Blocking => "blocking",
            Self::Ekbatan => "ekbatan",
        }
    }
}

/// Measures everything and prints it.
pub async fn run(options: &Options) -> Result<(), Failure> {
    let mut figures = Vec::new();
    let named =
        |provider: &&Provider| options.provider.is_empty() || options.provider.contains(provider);
    for &provider in Provider::value_variants().iter().filter(named) {
        eprintln!("starting {}", provider.name());
        let server = provider.start().await?;
        let measured = measure(options, provider, &server.address()).await;
        server.stop().await?;
        figures.append(&mut measured?);
    }
    report::print(options, &figures);
    Ok(())
}

async fn measure(
    options: &Options,
    provider: Provider,
    address: &str,
) -> Result<Vec<Figure>, Failure> {
    let mut figures = Vec::new();
    let named = |measure: &&Measure| {
        let named = options.measure.is_empty() || options.measure.contains(measure);
        named && (measure.processes() == 1 || provider.reaches_other_processes())
    };
    for &measure in Measure::value_variants().iter().filter(named) {
        let mut of_modes: Vec<Figure> =
            provider.modes().iter().map(|&mode| Figure::new(provider, measure, mode)).collect();
        for round in 1..=options.repeats {
            for figure in &mut of_modes {
                eprint!(
                    "round {round} of {}: {:<16} {:<9} {:<8} {} s .. ",
                    options.repeats,
                    provider.name(),
                    measure.name(),
                    figure.mode.name(),
                    options.seconds
                );
                let seconds = Duration::from_secs(options.seconds);
                let contest = Contest::new(provider, measure, figure.mode, seconds, address);
                let sample = sample(contest, measure).await?;
                eprintln!("{:.0}/s, median {:?}", sample.per_second, sample.p50);
                figure.samples.push(sample);
            }
        }
        figures.append(&mut of_modes);
    }
    Ok(figures)
}

/// One contest, and what came of it.
async fn sample(contest: Contest, measure: Measure) -> Result<Sample, Failure> {
    let sections = tokio::task::spawn_blocking(move || contest.hold()).await??;
    timeline::check(&sections)?;
    match timeline::sample(&sections, measure) {
        Some(sample) => Ok(sample),
        None => Err(format!("nothing came of the measure {}", measure.name()).into()),
    }
}
