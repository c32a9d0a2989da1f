//! Rows that another session keeps locked, and commits of other rows in the same lane.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::ErrorKind;
use ekbatan::prelude::*;
use support::wallet::{Deposit, DepositMoney, Wallet};
use support::{Dialect, PlainConnection, ScratchDatabase};
use tokio::sync::mpsc;

use crate::bounded;
use crate::ledger::Ledger;
use crate::other_sessions::{Observer, lock_wallet};
use crate::waiting::{filled, insist};

on_every_database! {
    only postgres and mysql and mariadb:
    locked_rows_delay_other_commits_by_one_lock_timeout,
}

const LOCKED: usize = 10;
const FREE: usize = 10;

fn deposit(wallet: Id<Wallet>) -> Deposit {
    Deposit { wallet, amount: Decimal::ONE }
}

/// One lane takes commits of locked rows and of others at once. It answers the others after it
/// waited once; the callers of the locked rows wait on, and each of them learns that its row is
/// locked.
async fn locked_rows_delay_other_commits_by_one_lock_timeout(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    // The lane stays busy until all commits wait for it: none of them may time out before.
    let config = scratch
        .config()
        .lanes(1)
        .queue_limit(LOCKED + FREE)
        .connection_timeout(Duration::from_secs(8))
        .commit_timeout(Duration::from_secs(20));
    let ledger = Arc::new(Ledger::with_config(config).await);
    let ids = ledger.open_wallets(1 + LOCKED + FREE).await;
    let mut observer = Observer::connect(&scratch.url).await;
    let mut first_holder = PlainConnection::connect(&scratch.url).await;
    first_holder.execute("BEGIN").await;
    lock_wallet(&mut first_holder, ids[0]).await;
    let mut holder = PlainConnection::connect(&scratch.url).await;
    holder.execute("BEGIN").await;
    for id in &ids[1..=LOCKED] {
        lock_wallet(&mut holder, *id).await;
    }
    let busy = tokio::spawn({
        let (ledger, id) = (ledger.clone(), ids[0]);
        async move { ledger.deposit(id).await }
    });
    bounded("the lane is busy", observer.wait_for_blocked()).await;
    let (answers, mut answered) = mpsc::unbounded_channel();
    for (n, id) in ids[1..].iter().copied().enumerate() {
        let (ledger, answers) = (ledger.clone(), answers.clone());
        tokio::spawn(async move {
            let call = ledger.executor.execute(&DepositMoney, deposit(id)).retry(insist());
            let answer = call.await;
            let _ = answers.send((n < LOCKED, answer));
        });
    }
    let one_more = async || {
        let call = ledger.executor.execute(&DepositMoney, deposit(ids[0]));
        call.deadline(Duration::from_millis(100)).await
    };
    bounded("all commits wait", filled(one_more)).await;
    first_holder.execute("COMMIT").await;
    bounded("the first commit", busy).await.unwrap().unwrap();
    for _ in 0..FREE {
        let (locked, answer) = bounded("a commit of a free row", answered.recv()).await.unwrap();
        assert!(!locked, "a commit of a locked row was answered first: {answer:?}");
        answer.unwrap();
    }
    // The lane is not occupied by those that still wait.
    bounded("a later commit", ledger.deposit(ids[0])).await.unwrap();
    for _ in 0..LOCKED {
        let (locked, answer) = bounded("a commit of a locked row", answered.recv()).await.unwrap();
        let error = answer.unwrap_err();
        assert!(locked && error.kind() == ErrorKind::Busy, "{error}");
    }
    holder.execute("ROLLBACK").await;
    bounded("a commit of a row that is free again", ledger.deposit(ids[1])).await.unwrap();
    ledger.assert_sound(1 + FREE + 2).await;
}
