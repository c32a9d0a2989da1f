//! Measurements of ekbatan beside hand-written SQL. `--help` lists them; the README
//! explains how to read the figures.

mod commit;
mod events;
mod failure;
mod instructions;
mod locks;
mod seconds;
mod statistics;
#[path = "../../examples/wallet/wallet.rs"]
#[allow(dead_code)] // This program inserts wallets in bulk and never calls `OpenWallet`.
mod wallet;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures ekbatan beside hand-written SQL, on private servers and files.
///
/// Progress goes to stderr. Results go to stdout: a table, then one JSON line per figure.
/// Build with --release.
#[derive(Parser)]
#[command(name = "ekbatan-bench", version)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Deposits into random wallets: one row read, one versioned row and one event
    /// written.
    ///
    /// All modes do the same work on the same tables of one database, with equal
    /// durability. A round measures each mode once, and ratios are taken within a round.
    /// After each measurement the money is checked; the run fails unless balances,
    /// versions and events match the acknowledged deposits.
    Commit(commit::CommitOptions),

    /// Instructions of the calling process for one deposit, counted by valgrind.
    ///
    /// Unlike times, they hardly depend on the machine, so that a regression shows.
    Instructions(instructions::InstructionsOptions),

    /// The process that is counted.
    #[command(hide = true)]
    InstructionsChild(instructions::InstructionsChildOptions),

    /// Events: how many are handled, and how soon after their commit.
    ///
    /// Deposits are made while their events are handled by something that does nothing. All
    /// modes use one server with equal durability. The run fails unless each event was
    /// handled exactly once, and in order where the mode has one.
    Events(events::EventsOptions),

    /// Enqueued calls: what it costs to enqueue one, and how many run, and how soon.
    ///
    /// The same deposits as in `events`, each of which enqueues a call that does nothing. All modes use one
    /// server with equal durability. The run fails unless each call was run exactly once, and in turn
    /// where the mode has an order.
    Jobs(events::EventsOptions),

    /// Relays: how many events are sent to a broker, and how soon after their commit.
    ///
    /// The same deposits as in `events`, whose events are sent to a broker; a time ends when it has
    /// acknowledged. A relay is measured beside a loop by hand. The run fails unless each event was sent
    /// exactly once, and in order where the mode has one.
    Relay(events::RelayOptions),

    /// Locks: the cost of a free key, of a key that passes between processes, and of a
    /// key under contention.
    ///
    /// Each mode competes for one key in child processes of its own. A round measures
    /// each mode once, and ratios are taken within a round. The run fails if two clients
    /// held the key at the same time.
    Locks(locks::LocksOptions),

    /// One child process of a measurement of locks.
    #[command(hide = true)]
    LocksChild(locks::ChildOptions),
}

#[tokio::main]
async fn main() -> ExitCode {
    let bench = Cli::parse().bench;
    if cfg!(debug_assertions)
        && !matches!(bench, Bench::LocksChild(_) | Bench::InstructionsChild(_))
    {
        eprintln!("This is a debug build, so its figures mean little. Build with --release.");
    }
    let done = match bench {
        Bench::Commit(options) => match options.complete() {
            Ok(options) => commit::run(&options).await,
            Err(error) => Err(error),
        },
        Bench::Instructions(options) => instructions::run(&options).await,
        Bench::InstructionsChild(options) => instructions::run_child(options).await,
        Bench::Events(options) => match options.complete() {
            Ok(options) => events::run(&options).await,
            Err(error) => Err(error),
        },
        Bench::Jobs(options) => {
            let options = events::EventsOptions { subject: events::Subject::Jobs, ..options };
            match options.complete() {
                Ok(options) => events::run(&options).await,
                Err(error) => Err(error),
            }
        }
        Bench::Relay(options) => match options.complete() {
            Ok(options) => events::run(&options).await,
            Err(error) => Err(error),
        },
        Bench::Locks(options) => locks::run(&options).await,
        Bench::LocksChild(options) => locks::run_child(&options).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ekbatan-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
