//! The options of the measurement of events.

use clap::ValueEnum;

use super::broker_site::BenchBroker;
use crate::commit::{BenchDatabase, CommitDurability};
use crate::failure::Failure;

/// The options of `ekbatan-bench events` and of `ekbatan-bench jobs`.
#[derive(clap::Args)]
pub struct EventsOptions {
    /// Which database to start: a private server that flushes each commit, or a SQLite
    /// file in a temporary folder.
    #[arg(long, value_enum)]
    pub database: BenchDatabase,

    /// Measures to take; several, separated by commas. Default: all that the database has.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub measure: Vec<EventsMeasure>,

    /// Modes to measure; several, separated by commas. Default: all that the database has.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub mode: Vec<EventsMode>,

    /// Duration of the deposits of each measurement, after a short warm-up.
    #[arg(long, default_value_t = 3.0, value_parser = crate::seconds::parse)]
    pub seconds: f64,

    /// Number of rounds; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,

    /// Number of tasks that deposit; several numbers, separated by commas. `drain` and `idle` do
    /// not depend on it.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub tasks: Vec<u32>,

    /// Number of wallets.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub wallets: u32,

    /// Number of events in the backlog of `drain`, and behind the parked one of `parked`.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub backlog: u32,

    /// Deposits per second while latency is measured. Default: half of what the mode handles, which
    /// is measured first.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: Option<u32>,

    /// What a commit on SQLite survives. Default: wal. Servers are always measured with
    /// full durability.
    #[arg(long, value_enum)]
    pub durability: Option<CommitDurability>,

    /// Which of the measurements it is.
    #[arg(skip)]
    pub subject: Subject,

    /// The broker that events are sent to.
    #[arg(skip)]
    pub broker: Option<BenchBroker>,
}

/// The options of `ekbatan-bench relay`.
#[derive(clap::Args)]
pub struct RelayOptions {
    /// Which broker to start.
    #[arg(long, value_enum)]
    pub broker: BenchBroker,

    #[command(flatten)]
    pub events: EventsOptions,
}

impl RelayOptions {
    /// Fills in defaults and rejects options that do not fit together.
    pub fn complete(self) -> Result<EventsOptions, Failure> {
        let Self { broker, events } = self;
        EventsOptions { subject: Subject::Relay, broker: Some(broker), ..events }.complete()
    }
}

/// What follows a deposit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Subject {
    /// The handling of its event.
    #[default]
    Events,
    /// A call that it enqueues.
    Jobs,
    /// The sending of its event to a broker.
    Relay,
}

impl Subject {
    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Jobs => "jobs",
            Self::Relay => "relay",
        }
    }

    /// What is measured unless the options say otherwise.
    const fn modes(self) -> &'static [EventsMode] {
        use EventsMode::{
            Apalis, Calls, CallsInTurn, Ekbatan, GraphileUnordered, GraphileWorker, Hexeract,
            OutboxSkipLocked, Pgmq, PollAndPublish, Relay,
        };
        match self {
            Self::Events => &[Ekbatan, OutboxSkipLocked, Hexeract, Pgmq, GraphileWorker],
            Self::Relay => &[Relay, PollAndPublish],
            Self::Jobs => &[Ekbatan, Calls, CallsInTurn, Apalis, GraphileUnordered, GraphileWorker],
        }
    }

    const fn measures(self) -> &'static [EventsMeasure] {
        use EventsMeasure::{
            Commits, Drain, Idle, LatencyOtherNode, LatencySameNode, Parked, Throughput,
        };
        match self {
            Self::Events => {
                &[Commits, Throughput, LatencySameNode, LatencyOtherNode, Drain, Idle, Parked]
            }
            Self::Relay => &[Commits, Throughput, LatencySameNode, Drain],
            Self::Jobs => &[Commits, Throughput, LatencySameNode, LatencyOtherNode, Drain],
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EventsMeasure {
    /// Deposits alone. Their events are stored, and nothing handles them.
    Commits,
    /// Deposits, and the handling of their events, until all are handled.
    Throughput,
    /// The time from the answer of a deposit to the start of the handler, in one process, at half
    /// of the load.
    LatencySameNode,
    /// The same, if the deposits share nothing with the handlers but the database.
    LatencyOtherNode,
    /// A backlog of events that was committed before a node starts.
    Drain,
    /// Queries of a node that has nothing to do.
    Idle,
    /// `throughput`, with many events behind one that is parked.
    Parked,
}

impl EventsMeasure {
    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Commits => "commits",
            Self::Throughput => "throughput",
            Self::LatencySameNode => "latency-same-node",
            Self::LatencyOtherNode => "latency-other-node",
            Self::Drain => "drain",
            Self::Idle => "idle",
            Self::Parked => "parked",
        }
    }

    /// Whether it depends on the number of tasks that deposit.
    pub const fn has_tasks(self) -> bool {
        !matches!(self, Self::Drain | Self::Idle)
    }

    /// Whether times are measured.
    pub const fn has_times(self) -> bool {
        !matches!(self, Self::Drain | Self::Idle)
    }

    /// Whether events are counted.
    pub const fn has_rate(self) -> bool {
        !matches!(self, Self::Idle)
    }

    /// Whether less is better, as times are compared.
    pub const fn compares_times(self) -> bool {
        matches!(self, Self::LatencySameNode | Self::LatencyOtherNode)
    }

    fn exists_for(self, database: BenchDatabase) -> bool {
        // Nobody counts what reads a file.
        self != Self::Idle || database != BenchDatabase::Sqlite
    }
}

/// What handles the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EventsMode {
    /// A node with one handler.
    Ekbatan,
    /// Each deposit enqueues a call, which a node runs. Nothing handles the events.
    Calls,
    /// The same. The calls of one wallet run in turn.
    CallsInTurn,
    /// By hand: rows of a table that workers lock, handle and delete.
    OutboxSkipLocked,
    /// The statements of the crate hexeract-outbox-sql.
    Hexeract,
    /// The statements of pgmq.
    Pgmq,
    /// The crates apalis and apalis-postgres.
    Apalis,
    /// The crate graphile_worker, with a queue for each wallet.
    GraphileWorker,
    /// The crate graphile_worker, without queues.
    GraphileUnordered,
    /// A node with a relay.
    Relay,
    /// By hand: a loop reads the oldest rows of a table, sends them and deletes them.
    PollAndPublish,
}

impl EventsMode {
    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ekbatan => "ekbatan",
            Self::Calls => "calls",
            Self::CallsInTurn => "calls-in-turn",
            Self::OutboxSkipLocked => "outbox-skip-locked",
            Self::Hexeract => "hexeract",
            Self::Pgmq => "pgmq",
            Self::Apalis => "apalis",
            Self::GraphileWorker => "graphile-worker",
            Self::GraphileUnordered => "graphile-unordered",
            Self::Relay => "relay",
            Self::PollAndPublish => "poll-and-publish",
        }
    }

    /// Whether the events of one wallet are handled in the order of their commits.
    pub const fn is_ordered(self) -> bool {
        matches!(self, Self::Ekbatan | Self::CallsInTurn | Self::Relay)
    }

    /// How graphile_worker does the same.
    pub const fn graphile(self) -> Self {
        match self {
            Self::Calls | Self::Apalis | Self::GraphileUnordered => Self::GraphileUnordered,
            _ => Self::GraphileWorker,
        }
    }

    /// Whether the mode has the measure.
    pub fn has(self, measure: EventsMeasure) -> bool {
        match (self, measure) {
            (Self::Ekbatan | Self::Relay, _) => true,
            // The others have no order that a failed event holds up.
            (_, EventsMeasure::Parked) => false,
            // These never hear of deposits but from the database.
            (
                Self::Hexeract
                | Self::Pgmq
                | Self::Apalis
                | Self::GraphileWorker
                | Self::GraphileUnordered,
                EventsMeasure::LatencyOtherNode,
            ) => false,
            _ => true,
        }
    }

    /// Whether the program was built with it.
    const fn is_compiled_in(self) -> bool {
        let is_alternative =
            matches!(self, Self::Apalis | Self::GraphileWorker | Self::GraphileUnordered);
        cfg!(feature = "alternatives") || !is_alternative
    }

    fn exists_for(self, database: BenchDatabase) -> bool {
        matches!(self, Self::Ekbatan | Self::Calls | Self::CallsInTurn | Self::Relay)
            || database == BenchDatabase::Postgres
    }
}

impl EventsOptions {
    /// Fills in defaults and rejects options that do not fit together.
    pub fn complete(mut self) -> Result<Self, Failure> {
        let is_sent =
            |mode: &EventsMode| matches!(mode, EventsMode::Relay | EventsMode::PollAndPublish);
        if self.broker.is_none() && self.mode.iter().any(is_sent) {
            return Err(
                "--mode relay and poll-and-publish are those of the measurement `relay`".into()
            );
        }
        if self.broker.is_some() && !self.mode.iter().all(is_sent) {
            return Err("the measurement `relay` has the modes relay and poll-and-publish".into());
        }
        let database = self.database;
        if self.mode.is_empty() {
            self.mode = self.subject.modes().to_vec();
            self.mode.retain(|mode| mode.is_compiled_in() && mode.exists_for(database));
        }
        if self.measure.is_empty() {
            self.measure = self.subject.measures().to_vec();
            self.measure.retain(|measure| measure.exists_for(database));
        }
        if let Some(mode) = self.mode.iter().find(|mode| !mode.is_compiled_in()) {
            return Err(format!(
                "--mode {} needs `cargo run -p ekbatan-bench --features alternatives`",
                mode.name()
            )
            .into());
        }
        if let Some(mode) = self.mode.iter().find(|mode| !mode.exists_for(database)) {
            return Err(format!("--mode {} is for PostgreSQL only", mode.name()).into());
        }
        if let Some(measure) = self.measure.iter().find(|measure| !measure.exists_for(database)) {
            return Err(format!("--measure {} needs a server", measure.name()).into());
        }
        if database != BenchDatabase::Sqlite && self.durability == Some(CommitDurability::Wal) {
            return Err(
                "--durability wal is for SQLite; servers are always measured with durability full"
                    .into(),
            );
        }
        refuse_twice("--mode", self.mode.iter().map(|mode| mode.name()))?;
        refuse_twice("--measure", self.measure.iter().map(|measure| measure.name()))?;
        refuse_twice("--tasks", self.tasks.iter())?;
        Ok(self)
    }

    /// The durability that is measured.
    pub fn durability(&self) -> CommitDurability {
        self.durability.unwrap_or(match self.database {
            BenchDatabase::Sqlite => CommitDurability::Wal,
            _ => CommitDurability::Full,
        })
    }
}

fn refuse_twice<T: PartialEq + std::fmt::Display>(
    option: &str,
    values: impl Iterator<Item = T>,
) -> Result<(), Failure> {
    let mut seen = Vec::new();
    for value in values {
        if seen.contains(&value) {
            return Err(format!("{option} names {value} twice").into());
        }
        seen.push(value);
    }
    Ok(())
}
