//! Commits on a server that is far away.

use std::time::Duration;

use ekbatan::action::ErrorKind;
use ekbatan::prelude::*;
use support::wallet::{Deposit, DepositMoney, Wallet};
use support::{Dialect, PlainConnection, ScratchDatabase};

use crate::bounded;
use crate::ledger::{Ledger, proxied};
use crate::other_sessions::lock_wallet;

on_every_database!(only postgres and mysql and mariadb:
    a_third_commit_waits_for_no_other_if_the_server_is_far,
    a_server_that_has_moved_away_is_far,
);

/// Returns once a lane has taken a deposit into a wallet whose row is locked. Only then the call's
/// result is unknown at its deadline.
async fn occupy_a_lane(ledger: &Ledger, wallet: Id<Wallet>) {
    loop {
        let deposit = Deposit { wallet, amount: Decimal::ONE };
        let call = ledger.executor.execute(&DepositMoney, deposit);
        let error = call.deadline(Duration::from_secs(1)).await.unwrap_err();
        match error.kind() {
            ErrorKind::CommitUnknown => return,
            kind => assert_eq!(kind, ErrorKind::Deadline, "{error}"),
        }
    }
}

/// Two deposits that wait for a locked row, and others meanwhile. Where the server is near, two lanes
/// commit, and a third commit would wait for one of them. Returns the number of deposits.
async fn deposit_while_two_wait(ledger: &Ledger, url: &str, others: usize) -> usize {
    let ids = ledger.open_wallets(2 + others).await;
    let (locked, unlocked) = ids.split_at(2);
    let mut holder = PlainConnection::connect(url).await;
    holder.execute("BEGIN").await;
    for wallet in locked {
        lock_wallet(&mut holder, *wallet).await;
        bounded("a lane takes a commit", occupy_a_lane(ledger, *wallet)).await;
    }
    for wallet in unlocked {
        bounded("the third commit", ledger.deposit(*wallet)).await.unwrap();
    }
    holder.execute("COMMIT").await;
    for wallet in locked {
        bounded("a lane is free", ledger.deposit(*wallet)).await.unwrap();
    }
    2 + others + 2
}

async fn patient(url: &str) -> Ledger {
    let config = ScratchDatabase::config_of(url)
        .connection_timeout(Duration::from_secs(300))
        .commit_timeout(Duration::from_secs(600));
    Ledger::with_config(config).await
}

async fn a_third_commit_waits_for_no_other_if_the_server_is_far(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let (far, proxy) = proxied(&scratch.url).await;
    proxy.set_delay(Duration::from_millis(10));
    let ledger = patient(&far).await;
    let deposits = deposit_while_two_wait(&ledger, &scratch.url, 1).await;
    ledger.assert_sound(deposits).await;
}

async fn a_server_that_has_moved_away_is_far(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let (url, proxy) = proxied(&scratch.url).await;
    let ledger = patient(&url).await;
    let near = deposit_while_two_wait(&ledger, &scratch.url, 0).await;
    proxy.set_delay(Duration::from_millis(10));
    proxy.cut();
    proxy.restore();
    let far = deposit_while_two_wait(&ledger, &scratch.url, 1).await;
    ledger.assert_sound(near + far).await;
}
