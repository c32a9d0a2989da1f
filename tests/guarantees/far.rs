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

/// Where the server is near, two lanes commit, and the third commit would wait for one of them.
async fn a_third_commit_waits_for_no_other_if_the_server_is_far(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let (far, proxy) = proxied(&scratch.url).await;
    proxy.set_delay(Duration::from_millis(10));
    let patient = ScratchDatabase::config_of(&far)
        .connection_timeout(Duration::from_secs(300))
        .commit_timeout(Duration::from_secs(600));
    let ledger = Ledger::with_config(patient).await;
    let ids = ledger.open_wallets(3).await;
    let mut holder = PlainConnection::connect(&scratch.url).await;
    holder.execute("BEGIN").await;
    for locked in &ids[..2] {
        lock_wallet(&mut holder, *locked).await;
        bounded("a lane takes a commit", occupy_a_lane(&ledger, *locked)).await;
    }
    bounded("the third commit", ledger.deposit(ids[2])).await.unwrap();
    holder.execute("COMMIT").await;
    for unlocked in &ids[..2] {
        bounded("a lane is free", ledger.deposit(*unlocked)).await.unwrap();
    }
    ledger.assert_sound(2 + 1 + 2).await;
}
