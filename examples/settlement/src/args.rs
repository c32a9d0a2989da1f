//! The command line.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use ekbatan::jobs::{Schedule, ScheduleError};

use crate::broker::BrokerChoice;

/// Orders that banks settle in windows.
#[derive(Debug, Parser)]
#[command(version)]
pub struct SettlementArgs {
    /// sqlite:FILE, postgres://USER:PASSWORD@HOST:PORT/DATABASE, or the same with mysql:// or
    /// mariadb://; `postgres` starts a private server. Default: a SQLite file in a temporary folder,
    /// removed at the end.
    #[arg(long, value_name = "URL")]
    pub database: Option<String>,

    /// Where batches are sent: in-process, nats or kafka (starts a private server), nats://HOST:PORT or
    /// kafka://HOST:PORT. Kafka needs the feature `kafka` of this package.
    #[arg(long, default_value = "in-process")]
    pub broker: BrokerChoice,

    /// Number of banks.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub banks: u16,

    /// When windows close: `cron EXPRESSION in ZONE`, `daily TIMES in ZONE` or `every DURATION`.
    #[arg(long, default_value = "cron 0 9,12,15,17 * * MON-FRI in America/Sao_Paulo")]
    pub cutoffs: Schedule,

    /// The most orders of a batch.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub batch: u16,

    /// Where to listen. Port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,

    /// Plays a day with four cutoffs, prints how every order ended, and ends.
    #[arg(long)]
    pub demo: bool,

    /// How many seconds the day of the demo has.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(4..=3600))]
    pub day: u32,

    /// How many orders a second each bank of the demo sends.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub rate: u16,

    /// Adds orders by a transaction that is open across a cutoff. Not on SQLite, where a transaction
    /// holds up every other one.
    #[arg(long, requires = "demo")]
    pub slow_import: bool,

    /// Takes no orders: settles what is left, prints how every order ended, and ends.
    #[arg(long, conflicts_with = "demo")]
    pub finish: bool,

    /// Closes windows as it is often done by hand, which loses orders.
    #[arg(long)]
    pub naive: bool,

    /// Ends the process right after the commit of the first batch, as a crash does.
    #[arg(long)]
    pub die_after_batch: bool,

    /// How many seconds to wait for the last orders.
    #[arg(long, default_value_t = 120)]
    pub patience: u32,
}

impl SettlementArgs {
    /// When windows close: in a demo so that the day has four cutoffs.
    pub fn schedule(&self) -> Result<Schedule, ScheduleError> {
        if self.demo { Schedule::every(self.period()) } else { Ok(self.cutoffs.clone()) }
    }

    /// When the job looks for windows that are due: at the cutoffs. What is left over is due already.
    pub fn job_schedule(&self) -> Result<Schedule, ScheduleError> {
        if self.finish { Schedule::every(Duration::from_secs(1)) } else { self.schedule() }
    }

    /// The time between two cutoffs of the demo.
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.day.into()) / crate::demo::CUTOFFS
    }
}
