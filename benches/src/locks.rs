//! The measurement of locks: rounds in which each mode competes for one key, in child
//! processes of its own.
//!
//! Invariants: a figure is reported only if no two clients held the key at the same time.

#[cfg(feature = "aerospike")]
mod aerospike;
mod child;
mod etcd;
#[cfg(feature = "hbase")]
mod hbase;
mod key;
mod lock_client;
#[cfg(feature = "mongodb")]
mod mongodb;
mod mysql;
mod options;
mod postgres;
mod process;
mod protocol;
mod provider;
mod redis;
mod report;
mod sqlite;
mod timeline;
mod turns;

use std::time::Duration;

use clap::ValueEnum;

pub use self::child::{ChildOptions, run as run_child};
pub use self::options::LocksOptions;
use self::options::{Measure, Provider};
use self::process::Contest;
use self::provider::LockServer;
use self::report::LockFigure;
use crate::failure::Failure;
use crate::statistics::RoundResult;

/// Runs all measurements and prints the figures.
pub async fn run(options: &LocksOptions) -> Result<(), Failure> {
    let mut figures = Vec::new();
    let named =
        |provider: &&Provider| options.provider.is_empty() || options.provider.contains(provider);
    for &provider in Provider::value_variants().iter().filter(named) {
        eprintln!("starting {}", provider.name());
        let server = LockServer::start(provider).await?;
        let measured = measure(options, provider, &server.address()).await;
        server.stop().await?;
        figures.append(&mut measured?);
    }
    report::print(options, &figures);
    Ok(())
}

async fn measure(
    options: &LocksOptions,
    provider: Provider,
    address: &str,
) -> Result<Vec<LockFigure>, Failure> {
    let mut figures = Vec::new();
    let named = |measure: &&Measure| {
        let named = options.measure.is_empty() || options.measure.contains(measure);
        named && (measure.processes() == 1 || provider.reaches_other_processes())
    };
    for &measure in Measure::value_variants().iter().filter(named) {
        let mut of_modes: Vec<LockFigure> =
            provider.modes().iter().map(|&mode| LockFigure::new(provider, measure, mode)).collect();
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
                let seconds = Duration::from_secs_f64(options.seconds);
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

/// Measures one mode for one round.
async fn sample(contest: Contest, measure: Measure) -> Result<RoundResult, Failure> {
    let holds = tokio::task::spawn_blocking(move || contest.run()).await??;
    timeline::check(&holds)?;
    match timeline::sample(&holds, measure) {
        Some(sample) => Ok(sample),
        None => {
            Err(format!("the measure {} recorded no latency; raise --seconds", measure.name())
                .into())
        }
    }
}
