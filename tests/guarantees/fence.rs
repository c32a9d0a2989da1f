//! A commit under a lease goes through only while the lease holds.

use std::time::Duration;

use ekbatan::action::Fence;
use ekbatan::prelude::*;
use tokio::time::Instant;

use crate::harness::{Kind, Ledger, on_every_database};
use crate::wallet::{Deposit, DepositMoney, Wallet, WalletError};

on_every_database!(
    a_lease_that_holds_commits,
    a_later_lease_shuts_out_an_earlier_one,
    a_successor_that_begins_during_perform_shuts_out_the_commit,
    a_lease_that_ends_during_perform_cannot_commit,
    a_lease_is_not_lengthened_by_waiting,
);

fn lease(token: i64, lasts: Duration) -> Fence {
    Fence { key: "wallet:1".into(), token, remaining: lasts }
}

const LONG: Duration = Duration::from_secs(600);

fn deposit(wallet: Id<Wallet>) -> Deposit {
    Deposit { wallet, amount: Decimal::ONE }
}

fn assert_lost<T: std::fmt::Debug>(answer: Result<T, ExecuteError<WalletError>>) {
    match answer {
        Err(ExecuteError::FenceLost { key }) => assert_eq!(key, "wallet:1"),
        other => panic!("{other:?}"),
    }
}

async fn a_lease_that_holds_commits(kind: Kind) {
    let ledger = Ledger::new(kind).await;
    let id = ledger.open_wallets(1).await[0];
    for token in [1, 1, 2, 7] {
        ledger
            .executor
            .execute(&DepositMoney, deposit(id))
            .fenced_by(&lease(token, LONG))
            .await
            .unwrap();
    }
    ledger.assert_sound(4).await;
}

async fn a_later_lease_shuts_out_an_earlier_one(kind: Kind) {
    let ledger = Ledger::new(kind).await;
    let id = ledger.open_wallets(1).await[0];
    ledger.executor.execute(&DepositMoney, deposit(id)).fenced_by(&lease(2, LONG)).await.unwrap();
    assert_lost(
        ledger.executor.execute(&DepositMoney, deposit(id)).fenced_by(&lease(1, LONG)).await,
    );
    ledger.assert_sound(1).await;
}

/// A deposit that lets something happen between its read and its commit.
struct Interrupted<F>(F);

impl<F, Fut> Action for Interrupted<F>
where
    F: Fn() -> Fut + Send + Sync,
    Fut: Future<Output = ()> + Send,
{
    const NAME: &'static str = "wallet.interrupted_deposit";
    type Params = Deposit;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<Stored<Wallet>, WalletError> {
        let wallet = ctx.get(params.wallet).await?;
        (self.0)().await;
        let wallet = wallet.change(|wallet| wallet.deposit(params.amount))?;
        Ok(ctx.plan().update(wallet))
    }
}

async fn a_successor_that_begins_during_perform_shuts_out_the_commit(kind: Kind) {
    let ledger = Ledger::new(kind).await;
    let ids = ledger.open_wallets(2).await;
    // The successor writes another row: no version would have shown the conflict.
    let (executor, other) = (ledger.executor.clone(), ids[1]);
    let paused = Interrupted(move || {
        let executor = executor.clone();
        async move {
            executor
                .execute(&DepositMoney, deposit(other))
                .fenced_by(&lease(2, LONG))
                .await
                .unwrap();
        }
    });
    assert_lost(ledger.executor.execute(&paused, deposit(ids[0])).fenced_by(&lease(1, LONG)).await);
    ledger.assert_sound(1).await;
}

async fn a_lease_that_ends_during_perform_cannot_commit(kind: Kind) {
    let ledger = Ledger::new(kind).await;
    let id = ledger.open_wallets(1).await[0];
    let lasts = Duration::from_millis(300);
    let paused = Interrupted(move || tokio::time::sleep(lasts * 2));
    assert_lost(ledger.executor.execute(&paused, deposit(id)).fenced_by(&lease(1, lasts)).await);
    ledger.assert_sound(0).await;
}

async fn a_lease_is_not_lengthened_by_waiting(kind: Kind) {
    let ledger = Ledger::new(kind).await;
    let id = ledger.open_wallets(1).await[0];
    let lasts = Duration::from_millis(100);
    let call = ledger.executor.execute(&DepositMoney, deposit(id)).fenced_by(&lease(1, lasts));
    tokio::time::sleep_until(Instant::now() + lasts * 2).await;
    assert_lost(call.await);
    ledger.assert_sound(0).await;
}
