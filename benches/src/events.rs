//! The measurement of events, of enqueued calls and of relays: rounds in which deposits are made while each mode
//! handles their events or runs the calls that they enqueue.
//!
//! Invariants: a figure is reported only if every acknowledged deposit is in its wallet, and every
//! event was handled exactly once, in the order of its wallet if the mode has one.

#[cfg_attr(not(feature = "alternatives"), path = "events/no_alternatives.rs")]
mod alternatives;
mod broker_site;
mod load;
mod mode;
mod node;
mod options;
mod publish_loop;
mod recorder;
mod report;
mod sample;
mod share;
mod table_queue;

use std::sync::Arc;

use ekbatan::prelude::Uuid;

use crate::commit::StartedDatabase;
use crate::failure::Failure;
use broker_site::BrokerSite;
use options::{EventsMeasure, EventsMode};
pub use options::{EventsOptions, RelayOptions, Subject};
use recorder::Recorder;
use report::EventsFigure;
use sample::{EventsSample, Round};

/// The most connections of all modes at once.
const CONNECTIONS: u32 = 160;

/// Runs all measurements and prints the figures.
pub async fn run(options: &EventsOptions) -> Result<(), Failure> {
    let wallets: Arc<[Uuid]> = (0..options.wallets).map(|_| Uuid::now_v7()).collect();
    eprintln!("starting {:?} with {} wallets", options.database, wallets.len());
    let mut database = StartedDatabase::start_counting(
        options.database,
        options.durability(),
        CONNECTIONS,
        &wallets,
    )
    .await?;
    let site = match options.broker {
        Some(broker) => Some(BrokerSite::start(broker).await?),
        None => None,
    };
    let figures = measure(options, &mut database, site.as_ref(), &wallets).await;
    database.stop().await?;
    report::print(options, &figures?);
    Ok(())
}

async fn measure(
    options: &EventsOptions,
    database: &mut StartedDatabase,
    site: Option<&BrokerSite>,
    wallets: &Arc<[Uuid]>,
) -> Result<Vec<EventsFigure>, Failure> {
    let mut figures = Vec::new();
    for &measure in &options.measure {
        let tasks: Vec<Option<u32>> = match measure.has_tasks() {
            true => options.tasks.iter().copied().map(Some).collect(),
            false => vec![None],
        };
        let modes = || options.mode.iter().filter(|mode| mode.has(measure));
        for tasks in tasks {
            figures.extend(modes().map(|&mode| EventsFigure::new(measure, mode, tasks)));
        }
    }
    // All measures are taken in each round, so that their ratios compare what ran close together.
    for round in 1..=options.repeats {
        for figure in &mut figures {
            eprint!(
                "round {round} of {}: {:<18} {:<18} {:>3} tasks .. ",
                options.repeats,
                figure.measure.name(),
                figure.mode.name(),
                figure.tasks.map_or("-".to_owned(), |tasks| tasks.to_string()),
            );
            let tasks = figure.tasks.unwrap_or(1);
            let sample =
                sample(options, database, site, wallets, figure.measure, figure.mode, tasks)
                    .await?;
            eprintln!(
                "{:.0}/s, median {:?}, {:.0} queries/s",
                sample.result.per_second,
                sample.result.p50,
                sample.queries_per_second.unwrap_or_default()
            );
            figure.samples.push(sample);
        }
    }
    Ok(figures)
}

/// Measures one mode for one round, in an empty database.
async fn sample(
    options: &EventsOptions,
    database: &mut StartedDatabase,
    site: Option<&BrokerSite>,
    wallets: &Arc<[Uuid]>,
    measure: EventsMeasure,
    mode: EventsMode,
    tasks: u32,
) -> Result<EventsSample, Failure> {
    database.empty(wallets).await?;
    database.tidy().await?;
    let recorder = Arc::new(Recorder::new(wallets));
    let round = Round { options, database, site, wallets, mode, tasks, recorder };
    let failed = |error: Failure| -> Failure {
        format!("{} of {} with {tasks} tasks: {error}", measure.name(), mode.name()).into()
    };
    round.measure(measure).await.map_err(failed)
}
