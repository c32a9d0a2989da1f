//! A hot wallet: many tasks deposit into one wallet, first with retries, then under a
//! lock.
//!
//! Without a lock, deposits that read the same version conflict, and all but one of them
//! run again. Under a lock that spans the read and the commit, each deposit commits at
//! its first attempt. At the end, a holder exceeds its lease, and its commit is rejected.
//!
//! The lock is one of this process, or with `--lock` one of a server that processes share. Each such
//! server needs the feature of its name:
//!
//! ```sh
//! cargo run --example locked_wallet
//! cargo run --example locked_wallet --features etcd -- --lock etcd
//! cargo run --example locked_wallet --features mongodb -- --lock mongodb --url mongodb://localhost
//! ```

mod lock_server;
#[path = "../wallet/wallet.rs"]
mod wallet;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use clap::Parser;
use ekbatan::action::{Budget, ErrorKind, RetryPolicy};
use ekbatan::lock::{Lease, WithLockError};
use ekbatan::prelude::*;
use lock_server::{LockPlace, LockServer};
use wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet, WalletError, migrations};

const TASKS: u32 = 20;

type Failure = Box<dyn std::error::Error>;

#[derive(Parser)]
struct Options {
    /// Where the lock is.
    #[arg(long, value_enum, default_value = "in-process")]
    lock: LockPlace,

    /// The address of the lock server. Without it, the example starts one and removes it afterwards.
    #[arg(long)]
    url: Option<String>,
}

/// A deposit that counts its attempts.
struct CountingDeposit {
    attempts: Arc<AtomicU32>,
}

impl Action for CountingDeposit {
    const NAME: &'static str = "wallet.deposit_money";
    type Params = Deposit;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<Stored<Wallet>, WalletError> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        DepositMoney.perform(ctx, params).await
    }
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    match run(Options::parse()).await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("locked_wallet: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let server = LockServer::start(options.lock, options.url).await?;
    // An application has the same in its file, as `lock-config`.
    let config =
        EkbatanConfig::single(format!("sqlite:{}", folder.path().join("wallet.db").display()))
            .locks(server.config());
    let databases = Databases::connect(&config).await?;
    let locks = KeyedLocks::connect(&config).await?;
    databases.migrate(&migrations()).await?;
    let executor =
        ActionExecutor::builder(&databases, "com.example.wallet").model::<Wallet>().build().await?;
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let wallet = executor.execute(&OpenWallet, opening).await?.id;

    println!("{TASKS} tasks deposit into one wallet at the same time.");
    for locked in [false, true] {
        let attempts = Arc::new(AtomicU32::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..TASKS {
            let (executor, locks) = (executor.clone(), locks.clone());
            let action = CountingDeposit { attempts: attempts.clone() };
            tasks.spawn(async move {
                let call = executor
                    .execute(&action, Deposit { wallet, amount: Decimal::ONE })
                    .retry(RetryPolicy::default().with(ErrorKind::Stale, Budget::new(1_000)));
                if locked {
                    call.with_lock(&locks, &lock_key!("wallet", wallet), LockOptions::default())
                        .await
                        .map_err(|error| error.to_string())
                } else {
                    call.await.map_err(|error| error.to_string())
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        let way = if locked { "under a lock" } else { "with retries" };
        println!("   {way}: {} attempts", attempts.load(Ordering::Relaxed));
    }

    println!("\nA holder exceeds its lease:");
    let options = LockOptions::default().hold(Duration::from_millis(200));
    let late = locks
        .with_lock(&lock_key!("wallet", wallet), options, async |lease: Lease| {
            println!("   it holds the lock with token {}", lease.token());
            println!("   its lease ends: {}", lease.lost().await);
            let action = CountingDeposit { attempts: Arc::default() };
            let deposit = Deposit { wallet, amount: Decimal::ONE };
            executor.execute(&action, deposit).fenced_by(&lease).await
        })
        .await;
    match late {
        Err(WithLockError::Work(error @ ExecuteError::FenceLost { .. })) => println!("   {error}"),
        other => return Err(format!("the commit should have been rejected, but: {other:?}").into()),
    }

    let balance = databases.repository::<Wallet>().get(wallet).await?.balance;
    println!("\nThe wallet holds {balance}.");
    if balance == Decimal::from(2 * TASKS) {
        Ok(())
    } else {
        Err(format!("it should hold {}", 2 * TASKS).into())
    }
}
