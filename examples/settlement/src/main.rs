//! The settlement of orders between banks, after a problem that many have: orders come in at any rate,
//! belong to a window, and must leave in complete batches after the cutoff, each once. The intake takes no
//! lock and waits for nobody; the node that closes the window does the work.
//!
//! `settlement --demo` plays a day in a minute. Kill it while it runs and start it again with the same
//! `--database` and `--finish`: every order ends, once. With `--naive` it does not.

mod args;
mod batch;
mod broker;
mod check;
mod client;
mod demo;
mod emission;
mod http;
mod import;
mod intake;
#[cfg(feature = "kafka")]
mod kafka;
mod machine;
mod migrations;
mod naive;
mod nats;
mod order;
mod report;
mod settlement;
mod site;
mod view;

use args::SettlementArgs;
use clap::Parser;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    match site::run(SettlementArgs::parse()).await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("settlement: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
