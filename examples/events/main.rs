//! A ledger that is fed by the events of wallets.
//!
//! The program deposits money into wallets while a node posts each deposit to the ledger. Kill it
//! while it runs and start it again: it first posts what is still to be posted, and the ledger
//! agrees with the wallets.

#[path = "../wallet/wallet.rs"]
mod wallet;

mod ledger;

use std::time::Duration;

use clap::Parser;
use ekbatan::events::{DeliveryOperations, EventHandler, Node};
use ekbatan::prelude::*;
use futures_util::future::try_join_all;
use ledger::{Entry, PostToLedger, migrations};
use wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet};

/// A ledger that is fed by the events of wallets.
#[derive(Parser)]
#[command(version)]
struct EventsArgs {
    /// sqlite:FILE, or postgres://USER:PASSWORD@HOST:PORT/DATABASE, or the same with mysql:// or
    /// mariadb://.
    #[arg(long, value_name = "URL", default_value = "sqlite:ledger.db")]
    database: String,

    /// Number of deposits into each of four wallets.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    deposits: u32,
}

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    match run(EventsArgs::parse()).await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("events: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run(args: EventsArgs) -> Result<(), Failure> {
    let databases = Databases::open(&args.database).await?;
    databases.migrate(&migrations()).await?;
    let executor = ActionExecutor::builder(&databases, "com.example.ledger")
        .model::<Wallet>()
        .model::<Entry>()
        .build()
        .await?;
    let shard = databases.shards().next().ok_or("there is no shard")?;
    let operations = DeliveryOperations::new(&databases, &shard);
    let waiting = operations.pending(PostToLedger::NAME).await?;
    println!("1. {waiting} event(s) wait from an earlier run.");

    let node = Node::builder(&executor).handler(PostToLedger).start().await?;
    println!(
        "2. Depositing {} times into each of four wallets; kill me and start again.",
        args.deposits
    );
    let owners = ["anna", "bartek", "carmen", "dolores"];
    try_join_all(owners.map(|owner| deposit(&executor, owner, args.deposits))).await?;

    println!("3. The wallets are full; waiting for the ledger.");
    while operations.pending(PostToLedger::NAME).await? > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    node.drain(Duration::from_secs(30)).await;

    let wallets = databases.repository::<Wallet>().find_all().await?;
    let entries = databases.repository::<Entry>().find_all().await?;
    let in_wallets: Decimal = wallets.iter().map(|wallet| wallet.balance).sum();
    let in_ledger: Decimal = entries.iter().map(|entry| entry.amount).sum();
    println!(
        "4. {in_wallets} in {} wallets, {in_ledger} in {} lines of the ledger.",
        wallets.len(),
        entries.len()
    );
    databases.close().await;
    if in_wallets == in_ledger { Ok(()) } else { Err("the ledger is wrong".into()) }
}

async fn deposit(executor: &ActionExecutor, owner: &str, times: u32) -> Result<(), Failure> {
    let opening = Opening { owner: owner.to_owned(), currency: "EUR".to_owned() };
    let wallet = executor.execute(&OpenWallet, opening).await?.id;
    for _ in 0..times {
        executor.execute(&DepositMoney, Deposit { wallet, amount: Decimal::ONE }).await?;
    }
    Ok(())
}
