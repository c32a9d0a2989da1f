//! Wallets on the shard of their country, on two SQLite files or on the databases that
//! `--config` names. The code is the same.
//!
//! The program opens wallets in two countries, transfers money within one country, tries
//! a transfer between them, which is rejected, allows it, and reads from both shards.

// The same table as in the example `wallet`.
#[path = "../wallet/migrations.rs"]
mod migrations;
mod wallet;

use std::path::PathBuf;

use clap::Parser;
use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use ekbatan::repository::{Direction, PageRequest};
use futures_util::TryStreamExt;
use migrations::migrations;
use wallet::{OpenWallet, Opening, Sending, Transfer, Wallet};

/// Wallets on the shard of their country.
#[derive(Parser)]
#[command(version)]
struct ShardedWalletArgs {
    /// A YAML file with at least the shards 0/0 and 1/0, such as
    /// config/sharded-wallet-postgres.yml. Default: two SQLite files in a temporary
    /// folder, removed at the end.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

type Failure = Box<dyn std::error::Error>;

const SQLITE: &str = include_str!("../../config/sharded-wallet.yml");

#[tokio::main]
async fn main() -> std::process::ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    match run(ShardedWalletArgs::parse()).await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sharded_wallet: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run(options: ShardedWalletArgs) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let config = match options.config {
        Some(file) => EkbatanConfig::load(file)?,
        None => {
            let folder = folder.path().display().to_string();
            EkbatanConfig::loader().yaml(SQLITE).env_from([("WALLET_FOLDER", folder)]).load()?
        }
    };
    let databases = Databases::connect(&config).await?;
    databases.migrate(&migrations()).await?;
    let namespace = config.namespace.as_deref().unwrap_or("com.example.wallet");
    let executor = ActionExecutor::builder(&databases, namespace).model::<Wallet>().build().await?;

    println!("1. The shards:");
    for shard in databases.shards() {
        println!("   {} is {}", shard.identifier(), shard.capabilities().dialect);
    }
    let poland = ShardIdentifier::new(0, 0)?;
    let mexico = ShardIdentifier::new(1, 0)?;

    println!("\n2. Open wallets, each on the shard of its country:");
    let anna = open(&executor, poland, "anna").await?;
    let bartek = open(&executor, poland, "bartek").await?;
    let carmen = open(&executor, mexico, "carmen").await?;

    println!("\n3. A transfer within Poland commits atomically:");
    let amount = Decimal::from(30);
    let sending = Sending { from: anna.id, to: bartek.id, amount };
    show(&executor.execute(&Transfer, sending).principal("anna").await?);

    println!("\n4. A transfer between countries is rejected before anything is sent:");
    let sending = Sending { from: anna.id, to: carmen.id, amount };
    match executor.execute(&Transfer, sending.clone()).principal("anna").await {
        Err(error @ ExecuteError::CrossShard { .. }) => println!("   {error}"),
        other => {
            return Err(format!("the transfer should have been rejected, but: {other:?}").into());
        }
    }

    println!("\n5. With permission, it commits one shard after the other, under one action id:");
    let call = executor.execute(&Transfer, sending).principal("anna").allow_cross_shard();
    let action = call.action_id();
    show(&call.await?);
    println!("   outcome of {action}: {:?}", executor.outcome(action).await?);
    println!("   partial commits: {}", databases.partial_commits().await?.len());

    println!("\n6. Read from both shards:");
    let wallets = databases.repository::<Wallet>();
    let mine = [anna.id, bartek.id, carmen.id];
    let found = wallets.find_by_ids(&mine).await?;
    let total: Decimal = found.iter().map(|wallet| wallet.balance).sum();
    println!("   three wallets hold {total}; {} wallets in all", wallets.count().await?);
    println!("   the first page of two, by balance:");
    let page = PageRequest::first(2).order_by(Wallet::BALANCE, Direction::Descending);
    for wallet in wallets.page(page).await?.rows {
        println!("   {:<8} {:>6}", wallet.owner, wallet.balance);
    }
    let owners: Vec<String> = wallets
        .stream(Wallet::OWNER.ne("bartek"))
        .map_ok(|wallet| wallet.into_value().owner)
        .try_collect()
        .await?;
    println!("   a stream in the order of the ids: {}", owners.join(", "));

    databases.close().await;
    if total == Decimal::from(300) {
        Ok(())
    } else {
        Err(format!("the wallets should hold 300, but they hold {total}").into())
    }
}

async fn open(
    executor: &ActionExecutor,
    country: ShardIdentifier,
    owner: &str,
) -> Result<Stored<Wallet>, Failure> {
    let opening = Opening { country, owner: owner.to_owned(), balance: Decimal::from(100) };
    let wallet = executor.execute(&OpenWallet, opening).principal(owner).await?;
    println!("   {owner:<8} {} on {country}", wallet.id);
    Ok(wallet)
}

fn show(wallets: &[Stored<Wallet>]) {
    for wallet in wallets {
        println!("   {:<8} {:>6} at version {}", wallet.owner, wallet.balance, wallet.version());
    }
}
