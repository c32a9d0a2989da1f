//! Many concurrent tasks on few rows and on many rows.

use std::sync::Arc;

use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use support::Dialect;
use support::soak::rounds;
use support::wallet::{Wallet, WalletError};
use tokio::task::JoinSet;

use crate::ledger::Ledger;

on_every_database!(
    deposits_on_one_wallet_add_up,
    deposits_on_500_wallets_add_up,
    overlapping_transfers_do_not_deadlock
);

const TASKS: usize = 64;

async fn deposits_on_one_wallet_add_up(dialect: Dialect) {
    deposits_add_up(dialect, 1).await;
}

async fn deposits_on_500_wallets_add_up(dialect: Dialect) {
    deposits_add_up(dialect, 500).await;
}

async fn deposits_add_up(dialect: Dialect, wallets: usize) {
    let ledger = Arc::new(Ledger::new(dialect).await);
    let ids = Arc::new(ledger.open_wallets(wallets).await);
    let deposits = rounds(15, 100);
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (ledger, ids) = (ledger.clone(), ids.clone());
        tasks.spawn(async move {
            let mut random = fastrand::Rng::with_seed(task as u64);
            for _ in 0..deposits {
                ledger.deposit(ids[random.usize(..ids.len())]).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    ledger.assert_sound(TASKS * deposits).await;
    ledger.assert_nothing_held();
}

/// Adds one unit to each of several wallets, in the given order.
pub struct Rotate;

#[derive(Serialize, Deserialize)]
pub struct Rotation {
    pub wallets: Vec<Id<Wallet>>,
}

impl Action for Rotate {
    const NAME: &'static str = "wallet.rotate";
    type Params = Rotation;
    type Output = ();
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Rotation,
    ) -> Result<(), WalletError> {
        for id in &params.wallets {
            let wallet = ctx.get(*id).await?.change(|wallet| wallet.deposit(Decimal::ONE))?;
            ctx.plan().update(wallet);
        }
        Ok(())
    }
}

async fn overlapping_transfers_do_not_deadlock(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    // Two sets of lanes: only the database serializes the commits of different processes.
    let other_process = ledger.open_again().await;
    let ids = ledger.open_wallets(6).await;
    let mut tasks = JoinSet::new();
    for task in 0..16_u64 {
        let executor =
            if task % 2 == 0 { ledger.executor.clone() } else { other_process.executor.clone() };
        let mut wallets = ids.clone();
        tasks.spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            for _ in 0..20 {
                random.shuffle(&mut wallets);
                // The policy retries only stale rows: a deadlock fails the test.
                executor
                    .execute(&Rotate, Rotation { wallets: wallets[..4].to_vec() })
                    .await
                    .unwrap();
            }
        });
    }
    tasks.join_all().await;
    let wallets = ledger.databases.repository::<Wallet>().find_all().await.unwrap();
    let total: Decimal = wallets.iter().map(|wallet| wallet.balance).sum();
    assert_eq!(total, Decimal::from(16 * 20 * 4));
    assert!(wallets.iter().all(|wallet| wallet.balance == Decimal::from(wallet.version() - 1)));
}
