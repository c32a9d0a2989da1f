//! Which strategy holds under contention? This program deposits into wallets on a database of
//! your choice. It runs each of ekbatan's strategies, and the usual alternatives, in one run.
//!
//! `cargo run --release --example compare` needs no server. `-- --help` lists the options; the
//! guide's page "Comparing strategies" explains each figure.
//!
//! Invariants: each figure comes with a check of the money. The program exits with a failure if
//! any check failed.

mod access;
mod arguments;
mod cell;
mod contender;
mod ekbatan_strategies;
mod failure;
mod histogram;
mod lock_place;
mod machine;
mod money;
mod peers;
mod processes;
mod progress;
mod report;
mod results;
mod run;
mod servers;
mod skew;
mod strategy;
#[path = "../../wallet/wallet.rs"]
#[allow(dead_code)] // This program inserts wallets in bulk and never calls `OpenWallet`.
mod wallet;
mod worker;

use std::process::ExitCode;

use clap::Parser;

use arguments::Arguments;

#[tokio::main]
async fn main() -> ExitCode {
    // The worker processes are this program, started again. They read their job from stdin.
    if std::env::args().nth(1).as_deref() == Some(processes::WORKER) {
        return worker::main().await;
    }
    let arguments = Arguments::parse();
    match run::run(arguments).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("compare: the money is wrong; see the cells that say so");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}
