//! A commit that takes longer than a commit may take, and those that were sent with it.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::ErrorKind;
use ekbatan::prelude::*;
use support::wallet::{Deposit, DepositMoney, Wallet};
use support::{Dialect, ScratchDatabase};

use crate::bounded;
use crate::ledger::Ledger;
use crate::other_sessions::{Gate, Observer};
use crate::waiting::{filled, insist};

on_every_database! {
    only postgres and mysql and mariadb:
    a_slow_commit_is_refused_without_those_that_were_sent_with_it,
}

const OTHERS: usize = 5;

/// The only lane sends all of them together, and no wait for a row tells the slow one from the
/// others.
async fn a_slow_commit_is_refused_without_those_that_were_sent_with_it(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let config = scratch.config().lanes(1).queue_limit(1 + OTHERS);
    let ledger = Ledger::with_config(config.commit_timeout(Duration::from_secs(12))).await;
    let ledger = Arc::new(ledger);
    let ids = ledger.open_wallets(2 + OTHERS).await;
    let (busy, slow) = (ids[0], ids[1]);
    let (busy_gate, slow_gate) =
        (Gate::closed(&scratch.url, busy).await, Gate::closed(&scratch.url, slow).await);
    let deposit = |wallet: Id<Wallet>| {
        let ledger = ledger.clone();
        let deposit = Deposit { wallet, amount: Decimal::ONE };
        async move { ledger.executor.execute(&DepositMoney, deposit).retry(insist()).await }
    };
    let first = tokio::spawn(deposit(busy));
    let mut observer = Observer::connect(&scratch.url).await;
    bounded("the lane is busy", observer.wait_for_blocked()).await;
    let slow = tokio::spawn(deposit(slow));
    let others: Vec<_> = ids[2..].iter().map(|id| tokio::spawn(deposit(*id))).collect();
    let one_more = async || {
        let deposit = Deposit { wallet: busy, amount: Decimal::ONE };
        let call = ledger.executor.execute(&DepositMoney, deposit);
        call.deadline(Duration::from_millis(100)).await
    };
    bounded("all commits wait", filled(one_more)).await;
    busy_gate.open().await;
    bounded("the first commit", first).await.unwrap().unwrap();
    for other in others {
        bounded("a commit that is not slow", other).await.unwrap().unwrap();
    }
    let error = bounded("the slow commit", slow).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    slow_gate.open().await;
    ledger.assert_sound(1 + OTHERS).await;
}
