//! Wallets that take deposits, on an embedded SQLite file or on the server that
//! `--database` or `--config` names. The code is the same for every database.
//!
//! The program opens wallets, deposits from many tasks, provokes a version conflict,
//! makes a deposit that is rejected, and repeats a call under one idempotency key. Then
//! it prints what the database holds, to show that state and events agree.

mod report;
mod wallet;

use std::future::IntoFuture;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use ekbatan::action::{ErrorKind, RetryPolicy};
use ekbatan::prelude::*;
use tokio::sync::Barrier;
use wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet, WalletError, migrations};

/// Wallets that take deposits, on an embedded SQLite file, PostgreSQL, MySQL or MariaDB.
///
/// RUST_LOG=ekbatan=debug shows every step and every retry of an action.
#[derive(Parser)]
#[command(version)]
struct WalletArgs {
    /// sqlite:FILE, or postgres://USER:PASSWORD@HOST:PORT/DATABASE, or the same with
    /// mysql:// or mariadb://. Default: a SQLite file in a temporary folder, removed at
    /// the end.
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    database: Option<String>,

    /// A YAML file with the database, such as config/wallet.yml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Number of concurrent tasks.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    tasks: u32,

    /// Number of deposits that each task makes.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    deposits: u32,
}

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    match run(WalletArgs::parse()).await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wallet: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run(options: WalletArgs) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let config = match (options.config, options.database) {
        (Some(file), _) => EkbatanConfig::load(file)?,
        (None, Some(url)) => EkbatanConfig::single(url),
        (None, None) => {
            EkbatanConfig::single(format!("sqlite:{}", folder.path().join("wallets.db").display()))
        }
    };
    let databases = Databases::connect(&config).await?;
    databases.migrate(&migrations()).await?;
    let namespace = config.namespace.as_deref().unwrap_or("com.example.wallet");
    let executor = ActionExecutor::builder(&databases, namespace).model::<Wallet>().build().await?;
    println!("Database: {}", databases.capabilities().dialect);

    println!("\n1. Open two wallets.");
    let alice = open(&executor, "alice").await?;
    let bob = open(&executor, "bob").await?;

    println!(
        "\n2. Let {} tasks make {} deposits of 1.50 each, into either wallet.",
        options.tasks, options.deposits
    );
    deposit_concurrently(&executor, [alice.id, bob.id], options.tasks, options.deposits).await?;
    println!("   All of them committed; those that met a changed row read it again.");

    println!("\n3. Two deposits read the same version of alice's wallet; one of them is retried.");
    conflict(&executor, alice.id).await?;

    println!("\n4. Make a deposit that the wallet rejects:");
    let rejected = executor
        .execute(&DepositMoney, Deposit { wallet: bob.id, amount: Decimal::from(-5) })
        .await;
    match rejected {
        Err(ExecuteError::Domain(WalletError::AmountNotPositive(amount))) => {
            println!("   rejected, because {amount} is not positive; nothing was written");
        }
        other => {
            return Err(format!("the deposit should have been rejected, but: {other:?}").into());
        }
    }

    println!("\n5. Send one deposit twice under one idempotency key:");
    let key = format!("top-up-of-{}", bob.id);
    for call in ["first ", "second"] {
        let deposit = Deposit { wallet: bob.id, amount: Decimal::from(100) };
        let wallet =
            executor.execute(&DepositMoney, deposit).principal("bob").idempotency_key(&key).await?;
        println!("   {call} answer: balance {}, version {}", wallet.balance, wallet.version());
    }

    println!("\n6. Read what the database holds:\n");
    let default = config.sharding.member(config.sharding.default_shard);
    let eventlog = default.and_then(|shard| shard.primary()).map_or("", |at| &at.eventlog);
    let agree = report::print(&databases, eventlog, &[alice.id, bob.id]).await?;
    databases.close().await;
    if !agree {
        return Err("state and events do not agree".into());
    }
    println!(
        "\nEach wallet's balance is the sum of its deposits, and each of its versions has one event."
    );
    Ok(())
}

async fn open(executor: &ActionExecutor, owner: &str) -> Result<Stored<Wallet>, Failure> {
    let opening = Opening { owner: owner.to_owned(), currency: "EUR".to_owned() };
    let wallet = executor.execute(&OpenWallet, opening).principal(owner).await?;
    println!("   {owner}: {} at version {}", wallet.id, wallet.version());
    Ok(wallet)
}

async fn deposit_concurrently(
    executor: &ActionExecutor,
    wallets: [Id<Wallet>; 2],
    tasks: u32,
    deposits: u32,
) -> Result<(), Failure> {
    // Many tasks on two rows conflict often, so allow many retries.
    let patient =
        RetryPolicy::default().with(ErrorKind::Stale, ekbatan::action::Budget::new(1_000));
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let (executor, retry) = (executor.clone(), patient.clone());
        running.spawn(async move {
            for _ in 0..deposits {
                let deposit =
                    Deposit { wallet: wallets[task as usize % 2], amount: Decimal::new(150, 2) };
                executor
                    .execute(&DepositMoney, deposit)
                    .principal("teller")
                    .retry(retry.clone())
                    .await?;
            }
            Ok::<(), ExecuteError<WalletError>>(())
        });
    }
    while let Some(task) = running.join_next().await {
        task??;
    }
    Ok(())
}

/// A deposit whose first attempt waits until another deposit has read the same version.
struct MeetingDeposit {
    both_have_read: Arc<Barrier>,
    met: AtomicBool,
}

impl Action for MeetingDeposit {
    const NAME: &'static str = "wallet.meeting_deposit";
    type Params = Deposit;
    type Output = (u32, Stored<Wallet>);
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<Self::Output, WalletError> {
        let wallet = ctx.get(params.wallet).await?;
        let read = wallet.version();
        if !self.met.swap(true, Ordering::Relaxed) {
            self.both_have_read.wait().await;
        }
        println!("   attempt {}: read version {read}", ctx.attempt());
        let wallet = wallet.change(|wallet| wallet.deposit(params.amount))?;
        Ok((ctx.attempt(), ctx.plan().update(wallet)))
    }
}

async fn conflict(executor: &ActionExecutor, wallet: Id<Wallet>) -> Result<(), Failure> {
    let both_have_read = Arc::new(Barrier::new(2));
    let deposit =
        || MeetingDeposit { both_have_read: both_have_read.clone(), met: AtomicBool::new(false) };
    let (first, second) = (deposit(), deposit());
    let amount = Decimal::from(10);
    let (first, second) = tokio::join!(
        executor.execute(&first, Deposit { wallet, amount }).into_future(),
        executor.execute(&second, Deposit { wallet, amount }).into_future(),
    );
    for (attempts, wallet) in [first?, second?] {
        println!(
            "   committed version {} at attempt {attempts}: balance {}",
            wallet.version(),
            wallet.balance
        );
    }
    Ok(())
}
