//! What the command line says.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use uuid::Uuid;

use crate::failure::Failure;

/// Shows and settles what the handlers of an application have not handled, and its jobs.
#[derive(Parser)]
#[command(name = "ekbatan", version)]
pub struct Arguments {
    /// The application's configuration. Default: config/ekbatan.yml.
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// The address of a database, instead of --config: sqlite:FILE, postgres://.., mysql://.. or
    /// mariadb://..
    #[arg(long, value_name = "URL", global = true)]
    pub database: Option<String>,
    /// With --database, on MySQL and MariaDB: the database with the framework's tables, if the
    /// application's configuration gives another `eventlog`.
    #[arg(long, value_name = "NAME", global = true)]
    pub eventlog: Option<String>,
    /// Only this shard, such as 0/1. Default: all.
    #[arg(long, value_name = "GROUP/MEMBER", global = true)]
    pub shard: Option<String>,
    /// Prints JSON for programs, errors included.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Handlers of events.
    Events {
        #[command(subcommand)]
        command: EventCommand,
    },
    /// Jobs that run by a schedule.
    Jobs {
        #[command(subcommand)]
        command: JobCommand,
    },
}

#[derive(Subcommand)]
pub enum JobCommand {
    /// Lists the jobs: when they are due, and what waits and runs.
    List,
    /// Lists the last runs of a job, the last first, and the slots that were not run.
    History {
        job: String,
        #[command(flatten)]
        most: Most,
    },
    /// Lets no scheduled run of a job start.
    Pause {
        job: String,
        #[command(flatten)]
        operator: Operator,
    },
    /// Ends a pause. What was due during it is not run.
    Resume {
        job: String,
        #[command(flatten)]
        operator: Operator,
    },
    /// Runs a job once more, also a paused one.
    Run {
        job: String,
        #[command(flatten)]
        operator: Operator,
    },
}

#[derive(Subcommand)]
pub enum EventCommand {
    /// Shows how far each handler is.
    Status,
    /// Lists events that were given up and hold up their model.
    Parked {
        #[command(flatten)]
        most: Most,
    },
    /// Lists events that have failed and are tried again.
    Failing {
        #[command(flatten)]
        most: Most,
    },
    /// Lists the dead letters that nobody has settled.
    DeadLetters {
        #[command(flatten)]
        most: Most,
    },
    /// Lists the remote calls of which it is not known whether they happened.
    InDoubt {
        #[command(flatten)]
        most: Most,
    },
    /// Settles a remote call: it happened. A parked event is tried again.
    Happened {
        #[arg(value_parser = id)]
        key: Uuid,
        /// What the other system answered, as the handler would have got it.
        #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
        outcome: String,
        #[command(flatten)]
        operator: Operator,
    },
    /// Settles a remote call: it did not happen, and never will. A parked event is tried again.
    DidNotHappen {
        #[arg(value_parser = id)]
        key: Uuid,
        #[command(flatten)]
        operator: Operator,
    },
    /// Lists what operators did, the last first. What was skipped, dismissed or replayed by its id is
    /// shown by `look`.
    Log {
        #[command(flatten)]
        most: Most,
    },
    /// Shows a delivery or a dead letter, and its event.
    Look {
        #[arg(value_parser = id)]
        id: Uuid,
    },
    /// Tries a parked event again.
    Retry {
        #[arg(value_parser = id)]
        id: Uuid,
        #[command(flatten)]
        operator: Operator,
    },
    /// Moves a parked event to the dead letters, as settled.
    Skip {
        #[arg(value_parser = id)]
        id: Uuid,
        #[command(flatten)]
        operator: Operator,
    },
    /// Settles a dead letter without handling it.
    Dismiss {
        #[arg(value_parser = id)]
        id: Uuid,
        #[command(flatten)]
        operator: Operator,
    },
    /// Delivers events once more. Without --yes it only counts them.
    #[command(group = ArgGroup::new("selected").args(["id", "handler"]).required(true))]
    Replay {
        /// One dead letter, instead of --handler.
        #[arg(value_parser = id, conflicts_with_all = [
            "settled", "stored", "event_type", "model_type", "model_id", "from", "until", "yes",
        ])]
        id: Option<Uuid>,
        #[command(flatten)]
        selection: Selection,
        /// Do it, if that many are selected.
        #[arg(long, value_name = "COUNT")]
        yes: Option<u64>,
        #[command(flatten)]
        operator: Operator,
    },
    /// Deletes dead letters; their events stay. Without --yes it only counts them.
    Purge {
        #[command(flatten)]
        selection: Selection,
        /// Do it, if that many are selected.
        #[arg(long, value_name = "COUNT")]
        yes: Option<u64>,
        #[command(flatten)]
        operator: Operator,
    },
    /// Lets no node claim events for a handler.
    Pause {
        handler: String,
        #[command(flatten)]
        operator: Operator,
    },
    /// Ends a pause.
    Resume {
        handler: String,
        #[command(flatten)]
        operator: Operator,
    },
    /// Ends a handler that the application does not have any more. What it has not handled moves to
    /// the dead letters. Without --yes it only counts that.
    Retire {
        handler: String,
        /// Do it, if that many events are not handled.
        #[arg(long, value_name = "COUNT")]
        yes: Option<u64>,
        #[command(flatten)]
        operator: Operator,
    },
}

/// How many rows are listed.
#[derive(Args)]
pub struct Most {
    /// How many; of events, on each shard.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = at_least_one)]
    pub most: usize,
}

/// An id of a row.
fn id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| {
        "an id is a UUID, such as 0199a1c2-0000-7000-8000-000000000000; the lists show them"
            .to_owned()
    })
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("nothing would be listed; use at least 1".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("{error}; write a whole number")),
    }
}

/// Who does it, and why.
#[derive(Args)]
pub struct Operator {
    /// Who does it; stored.
    #[arg(long)]
    who: Option<String>,
    /// Why; stored.
    #[arg(long)]
    why: Option<String>,
}

/// An operator and a reason.
pub struct Given {
    pub who: String,
    pub why: String,
}

impl Operator {
    /// Fails if something is missing.
    pub fn given(self) -> Result<Given, Failure> {
        match (self.who, self.why) {
            (Some(who), Some(why)) => Ok(Given { who, why }),
            (None, None) => Err(Failure::usage(
                "--who and --why are missing; say who does it and why, both are stored with what is done",
            )),
            (None, _) => Err(missing("--who", "say who does it")),
            (_, None) => Err(missing("--why", "say why")),
        }
    }
}

fn missing(option: &str, what: &str) -> Failure {
    Failure::usage(format!("{option} is missing; {what}, it is stored with what is done"))
}

/// Which dead letters or events are meant.
#[derive(Args)]
pub struct Selection {
    /// The handler.
    #[arg(long)]
    pub handler: Option<String>,
    /// The dead letters that are settled, instead of those that are not.
    #[arg(long, conflicts_with = "stored")]
    pub settled: bool,
    /// Stored events that wait for nothing, instead of dead letters.
    #[arg(long)]
    pub stored: bool,
    /// Only events with this name.
    #[arg(long, value_name = "NAME")]
    pub event_type: Option<String>,
    /// Only events of models with this name.
    #[arg(long, value_name = "NAME")]
    pub model_type: Option<String>,
    /// Only events of the model with this id.
    #[arg(long, value_name = "ID")]
    pub model_id: Option<String>,
    /// Only from this time on, such as 2026-03-01T09:00:00Z: of dead letters the time at which they
    /// were given up, of events their own.
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// Only before this time.
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
}
