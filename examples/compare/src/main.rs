//! Which way of contending holds? Wallets take deposits, on your database, by each of the
//! framework's strategies and by what people write or use instead, in one run.
//!
//! `cargo run --release --example compare` needs no server; `-- --help` says what else there
//! is, and the guide's page "Comparing strategies" what each figure means.
//!
//! What always holds: a figure stands beside the answer to whether the money was right. A run
//! in which it was not ends as a failure.

mod access;
mod arguments;
mod cell;
mod contenders;
mod histogram;
mod machine;
mod money;
mod peers;
mod processes;
mod progress;
mod report;
mod run;
mod servers;
mod skew;
mod strategy;
#[path = "../../wallet/wallet.rs"]
#[allow(dead_code)] // wallets are not opened one by one here
mod wallet;
mod worker;

use std::process::ExitCode;

use clap::Parser;

use arguments::Arguments;

/// Whatever ends a run early.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    // The processes that deposit are this program again; they are told everything by stdin.
    if std::env::args().nth(1).as_deref() == Some(processes::WORKER) {
        return worker::main().await;
    }
    let arguments = Arguments::parse();
    match run::run(arguments).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("compare: money was lost or made; see the cells that say so");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}
