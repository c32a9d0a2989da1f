//! A hot wallet: many tasks deposit into one, first with retries, then under a lock.
//!
//! Without a lock, deposits that read the same version conflict, and all but one run again.
//! Under a lock that spans the read and the commit each of them goes through at its first
//! attempt. Then a holder that is too slow finds that its commit is refused.

#[path = "wallet/wallet.rs"]
mod wallet;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ekbatan::action::{Budget, ErrorKind, RetryPolicy};
use ekbatan::config::{LockConfig, LockProviderKind};
use ekbatan::lock::{Lease, WithLockError};
use ekbatan::prelude::*;
use wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet, WalletError, migrations};

const TASKS: u32 = 20;

type Failure = Box<dyn std::error::Error>;

/// Deposits, and counts how often it was run for that.
struct CountedDeposit {
    attempts: Arc<AtomicU32>,
}

impl Action for CountedDeposit {
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
    match run().await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("locked_wallet: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    // Locks of this process alone; others are shared by many, and a file can say which.
    let config =
        EkbatanConfig::single(format!("sqlite:{}", folder.path().join("wallet.db").display()))
            .locks(LockConfig::of(LockProviderKind::InProcess));
    let databases = Databases::connect(&config).await?;
    let locks = KeyedLocks::connect(&config).await?;
    databases.migrate(&migrations()).await?;
    let executor =
        ActionExecutor::builder(&databases, "com.example.wallet").model::<Wallet>().build().await?;
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let wallet = executor.execute(&OpenWallet, opening).await?.id;

    println!("{TASKS} tasks deposit into one wallet at once.");
    for locked in [false, true] {
        let attempts = Arc::new(AtomicU32::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..TASKS {
            let (executor, locks) = (executor.clone(), locks.clone());
            let action = CountedDeposit { attempts: attempts.clone() };
            tasks.spawn(async move {
                let call = executor
                    .execute(&action, Deposit { wallet, amount: Decimal::ONE })
                    .retry(RetryPolicy::default().with(ErrorKind::Stale, Budget::new(1_000)));
                match locked {
                    false => call.await.map_err(|error| error.to_string()),
                    true => call
                        .with_lock(&locks, &lock_key!("wallet", wallet), LockOptions::default())
                        .await
                        .map_err(|error| error.to_string()),
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        let way = if locked { "under a lock" } else { "with retries" };
        println!("   {way}: {} attempts", attempts.load(Ordering::Relaxed));
    }

    println!("\nA holder that is too slow:");
    let options = LockOptions::default().hold(Duration::from_millis(200));
    let late = locks
        .with_lock(&lock_key!("wallet", wallet), options, async |lease: Lease| {
            println!("   it holds the lock by token {}", lease.token());
            println!("   its lease is over: {}", lease.lost().await);
            let action = CountedDeposit { attempts: Arc::default() };
            let deposit = Deposit { wallet, amount: Decimal::ONE };
            executor.execute(&action, deposit).fenced_by(&lease).await
        })
        .await;
    match late {
        Err(WithLockError::Work(error @ ExecuteError::FenceLost { .. })) => println!("   {error}"),
        other => return Err(format!("it should have been refused, but: {other:?}").into()),
    }

    let balance = databases.repository::<Wallet>().get(wallet).await?.balance;
    println!("\nThe wallet holds {balance}.");
    match balance == Decimal::from(2 * TASKS) {
        true => Ok(()),
        false => Err(format!("{} were paid in", 2 * TASKS).into()),
    }
}
