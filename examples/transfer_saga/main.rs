//! Transfers between two countries, each of them with its own database, by a saga: steps that
//! commit one after the other, and one that undoes the first.
//!
//! The program sends money from Poland to Mexico while the receiver takes her time: some of the
//! offers are accepted, some expire, and with some both happens at once. Kill it while it runs with
//! `--config` and start it again: it goes on, and no money is lost.

mod migrations;
mod receiver;
mod sender;
mod steps;
mod transfer;
mod wallet;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use ekbatan::action::{Budget, ErrorKind, RetryPolicy};
use ekbatan::domain::ShardIdentifier;
use ekbatan::events::Node;
use ekbatan::prelude::*;
use migrations::migrations;
use receiver::{AcceptOffer, OfOffer};
use sender::{BeginTransfer, ExpireTransfer, Sending};
use steps::{TellReceiver, TellSender};
use transfer::{Offer, OfferError, OfferState, Transfer, TransferState};
use wallet::{OpenWallet, Opening, Wallet};

/// Transfers between two databases, by a saga.
#[derive(Parser)]
#[command(version)]
struct TransferSagaArgs {
    /// A YAML file with at least the shards 0/0 and 1/0, such as
    /// config/sharded-wallet-postgres.yml. Default: two SQLite files in a temporary folder,
    /// removed at the end.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Number of transfers.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=500))]
    transfers: u32,

    /// How long an offer is open, in milliseconds. The receiver takes up to twice as long.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    open_for: u64,
}

type Failure = Box<dyn std::error::Error>;

const SQLITE: &str = include_str!("../../config/sharded-wallet.yml");

/// What each of the two wallets holds at first.
const BALANCE: Decimal = Decimal::ONE_THOUSAND;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    match run(TransferSagaArgs::parse()).await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transfer_saga: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run(args: TransferSagaArgs) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let config = match args.config {
        Some(file) => EkbatanConfig::load(file)?,
        None => {
            let folder = folder.path().display().to_string();
            EkbatanConfig::loader().yaml(SQLITE).env_from([("WALLET_FOLDER", folder)]).load()?
        }
    };
    let databases = Databases::connect(&config).await?;
    databases.migrate(&migrations()).await?;
    let namespace = config.namespace.as_deref().unwrap_or("com.example.wallet");
    // Events change the wallets, too, several at a time.
    let patience = RetryPolicy::default().with(ErrorKind::Stale, Budget::new(100));
    let executor = ActionExecutor::builder(&databases, namespace)
        .retry(patience)
        .model::<Wallet>()
        .model::<Transfer>()
        .model::<Offer>()
        .build()
        .await?;

    println!("1. {} transfer(s) are on their way from an earlier run.", open(&databases).await?);
    let anna = wallet(&executor, ShardIdentifier::new(0, 0)?, "anna").await?;
    let carmen = wallet(&executor, ShardIdentifier::new(1, 0)?, "carmen").await?;
    let node = Node::builder(&executor)
        .handler(TellReceiver)
        .handler(TellSender)
        .action(ExpireTransfer)
        .start()
        .await?;

    println!(
        "2. Sending 1.00 from Poland to Mexico {} times; with --config, kill me and start again.",
        args.transfers
    );
    let open_for = Duration::from_millis(args.open_for);
    let sending = Sending { from: anna, to: carmen, amount: Decimal::ONE, open_for };
    let send = async {
        for _ in 0..args.transfers {
            executor.execute(&BeginTransfer, sending.clone()).principal("anna").await?;
        }
        println!("3. All are sent; waiting for the last one to end.");
        while open(&databases).await? > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    tokio::select! {
        sent = send => sent,
        failed = answer(&executor, open_for) => failed,
    }?;
    node.drain(Duration::from_secs(30)).await;

    let in_wallets = report(&databases, &[anna, carmen]).await?;
    databases.close().await;
    if in_wallets == BALANCE + BALANCE { Ok(()) } else { Err("money was lost or made".into()) }
}

/// The number of transfers that have not ended.
async fn open(databases: &Databases) -> Result<u64, ReadError> {
    let open = Transfer::STATE.is_in([TransferState::Offered, TransferState::Expired]);
    databases.repository::<Transfer>().count_where(open).await
}

/// The wallet of an owner, opened by the first run. The key makes it one, even if the commit of a run that was
/// killed arrives after this one has looked.
async fn wallet(
    executor: &ActionExecutor,
    country: ShardIdentifier,
    owner: &str,
) -> Result<ShardedId<Wallet>, Failure> {
    let opening = Opening { country, owner: owner.to_owned(), balance: BALANCE };
    let open = executor.execute(&OpenWallet, opening).principal(owner);
    Ok(open.idempotency_key("open-wallet").await?.id)
}

/// Accepts each offer, after a time that may be longer than it is open. Ends with an error only.
async fn answer(executor: &ActionExecutor, open_for: Duration) -> Result<(), Failure> {
    let offers = executor.databases().repository::<Offer>();
    let (mut seen, mut answers) = (HashSet::new(), tokio::task::JoinSet::new());
    loop {
        for offer in offers.find_where(Offer::STATE.eq(OfferState::Open)).await? {
            if seen.insert(offer.id) {
                let (executor, of) = (executor.clone(), OfOffer { offer: offer.id });
                answers.spawn(async move {
                    tokio::time::sleep(open_for.mul_f64(2.0 * fastrand::f64())).await;
                    executor.execute(&AcceptOffer, of).principal("carmen").await
                });
            }
        }
        while let Some(answered) = answers.try_join_next() {
            match answered? {
                // It was withdrawn at the same time.
                Err(ExecuteError::Domain(OfferError::NotOpen(..))) | Ok(()) => {}
                Err(error) => return Err(error.into()),
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Prints how the transfers have ended. Returns the sum of these balances. The databases may have more
/// wallets, of the example `sharded_wallet`.
async fn report(databases: &Databases, wallets: &[ShardedId<Wallet>]) -> Result<Decimal, Failure> {
    let transfers = databases.repository::<Transfer>();
    let completed = transfers.count_where(Transfer::STATE.eq(TransferState::Completed)).await?;
    let returned = transfers.count_where(Transfer::STATE.eq(TransferState::Returned)).await?;
    let offers = databases.repository::<Offer>();
    let accepted = offers.count_where(Offer::STATE.eq(OfferState::Accepted)).await?;
    let withdrawn = offers.count_where(Offer::STATE.eq(OfferState::Withdrawn)).await?;
    println!("4. {accepted} offers were accepted and {withdrawn} withdrawn.");
    let wallets = databases.repository::<Wallet>().find_by_ids(wallets).await?;
    for wallet in &wallets {
        println!("   {:<8} {:>9}", wallet.owner, wallet.balance);
    }
    let sum = wallets.iter().map(|wallet| wallet.balance).sum();
    println!("5. {completed} transfers completed, {returned} returned, {sum} in the wallets.");
    if (completed, returned) == (accepted, withdrawn) {
        Ok(sum)
    } else {
        Err("a transfer ended in another way than its offer".into())
    }
}
