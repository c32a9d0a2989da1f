//! Fences that no lease needs are deleted, and what they refused stays refused.

use std::time::{Duration, SystemTime};

use ekbatan::action::Fence;
use ekbatan::prelude::*;
use support::wallet::{Deposit, DepositMoney, Wallet, WalletError};
use support::{Dialect, InterruptedDeposit, PlainConnection};

use crate::ledger::Ledger;

on_every_database!(
    a_stale_lease_raises_no_fence_that_was_deleted,
    only_fences_that_no_lease_can_need_are_deleted,
    a_stale_lease_commits_nothing_while_its_fence_is_deleted,
    a_lease_that_is_held_for_long_keeps_its_fence,
    a_lease_that_was_held_for_long_can_be_fenced_off,
    fences_are_deleted_page_by_page,
);

mod of_others {
    use super::*;

    on_every_database! {
        only postgres and mysql and mariadb:
        a_fence_that_is_locked_is_not_waited_for,
        a_fence_that_is_deleted_while_it_is_raised_stays_deleted,
    }

    async fn a_fence_that_is_locked_is_not_waited_for(dialect: Dialect) {
        let ledger = Ledger::new(dialect).await;
        for key in ["a", "b", "c"] {
            store(&ledger, key, age(40), LONG_AGO).await;
        }
        let mut other = PlainConnection::connect(ledger.url()).await;
        other.execute("BEGIN").await;
        let fences = ledger.eventlog("lock_fences");
        other.execute(&format!("UPDATE {fences} SET token = token WHERE lock_key = 'b'")).await;
        let pruning = ledger.databases.prune_fences();
        let deleted = crate::bounded("the deletion beside a locked row", pruning).await.unwrap();
        assert_eq!(deleted, 2);
        other.execute("ROLLBACK").await;
        other.close().await;
        assert_eq!(ledger.databases.prune_fences().await.unwrap(), 1);
    }

    /// By the read by id, and by the round trip that comes before other reads.
    async fn a_fence_that_is_deleted_while_it_is_raised_stays_deleted(dialect: Dialect) {
        let ledger = Ledger::new(dialect).await;
        let id = ledger.open_wallets(1).await[0];
        let table = ledger.eventlog("lock_fences");
        for key in ["by the read", "by a call of its own"] {
            store(&ledger, key, age(40), LONG_AGO).await;
            let mut other = PlainConnection::connect(ledger.url()).await;
            other.execute("BEGIN").await;
            other.execute(&format!("DELETE FROM {table} WHERE lock_key = '{key}'")).await;
            let stale = lease(key, age(39));
            let late = async {
                if key == "by the read" {
                    let call = ledger.executor.execute(&DepositMoney, deposit(id));
                    assert_lost(call.fenced_by(&stale).await);
                } else {
                    ledger.databases.fence_off(key, stale.token).await.unwrap();
                }
            };
            let deleted = async {
                // A raise that has not begun by then finds no row, and must be refused as well.
                tokio::time::sleep(Duration::from_millis(300)).await;
                other.execute("COMMIT").await;
            };
            crate::bounded("a raise beside a deletion", async { tokio::join!(late, deleted) })
                .await;
            other.close().await;
        }
        assert!(fences(&ledger).await.is_empty());
        ledger.assert_sound(0).await;
    }
}

const LONG: Duration = Duration::from_secs(600);
const LONG_AGO: &str = "2000-01-01 00:00:00";
const FAR_OFF: &str = "2100-01-01 00:00:00";

/// The token of a lease that was granted so many days ago.
fn age(days: u64) -> i64 {
    let granted = SystemTime::now() - Duration::from_secs(days * 86_400);
    let millis = granted.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    i64::try_from(millis << 16).unwrap()
}

/// A lease whose holder believes in it.
fn lease(key: &str, token: i64) -> Fence {
    Fence { key: key.to_owned(), token, remaining: LONG }
}

fn deposit(wallet: Id<Wallet>) -> Deposit {
    Deposit { wallet, amount: Decimal::ONE }
}

/// Stores a fence as a lease raised it at its time.
async fn store(ledger: &Ledger, key: &str, token: i64, until: &str) {
    let fences = ledger.eventlog("lock_fences");
    let mut plain = PlainConnection::connect(ledger.url()).await;
    plain.execute(&format!("DELETE FROM {fences} WHERE lock_key = '{key}'")).await;
    let row = format!("('{key}', {token}, '{until}')");
    plain.execute(&format!("INSERT INTO {fences} (lock_key, token, until) VALUES {row}")).await;
    plain.close().await;
}

/// The keys that have a fence.
async fn fences(ledger: &Ledger) -> Vec<String> {
    let mut plain = PlainConnection::connect(ledger.url()).await;
    let of_fences = format!("FROM {} ORDER BY lock_key", ledger.eventlog("lock_fences"));
    let rows = plain.select(&["lock_key"], &of_fences).await;
    plain.close().await;
    rows.into_iter().map(|mut row| row.remove(0).unwrap()).collect()
}

fn assert_lost<T: std::fmt::Debug>(answer: Result<T, ExecuteError<WalletError>>) {
    assert!(matches!(answer, Err(ExecuteError::FenceLost { .. })), "{answer:?}");
}

async fn a_stale_lease_raises_no_fence_that_was_deleted(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let successor = age(32);
    store(&ledger, "k", successor, LONG_AGO).await;
    let stale = lease("k", successor - 1);
    let call = || ledger.executor.execute(&DepositMoney, deposit(id)).fenced_by(&stale);
    assert_lost(call().await);
    assert_eq!(ledger.databases.prune_fences().await.unwrap(), 1);
    assert!(fences(&ledger).await.is_empty());

    // The read by id raises the fence, and so does a round trip of its own before other reads.
    assert_lost(call().await);
    ledger.databases.fence_off("k", successor - 2).await.unwrap();
    assert!(fences(&ledger).await.is_empty(), "an old token leaves nothing behind");
    let next = lease("k", age(0));
    ledger.executor.execute(&DepositMoney, deposit(id)).fenced_by(&next).await.unwrap();
    assert_lost(call().await);
    ledger.assert_sound(1).await;
}

async fn only_fences_that_no_lease_can_need_are_deleted(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    for (key, token, until) in [
        ("old", age(32), LONG_AGO),
        ("held", age(32), FAR_OFF),
        ("young", age(30), LONG_AGO),
        ("counts", 7, LONG_AGO),
    ] {
        store(&ledger, key, token, until).await;
    }
    // The lease is over, and a statement that began before its end may still be on its way.
    let over = lease("over", age(0));
    ledger.executor.execute(&DepositMoney, deposit(id)).fenced_by(&over).await.unwrap();
    ledger.databases.fence_off("over", age(0) + 1).await.unwrap();
    let mut plain = PlainConnection::connect(ledger.url()).await;
    let table = ledger.eventlog("lock_fences");
    plain.execute(&format!("UPDATE {table} SET token = {} WHERE lock_key = 'over'", age(32))).await;
    plain.close().await;
    assert_eq!(ledger.databases.prune_fences().await.unwrap(), 1);
    assert_eq!(fences(&ledger).await, ["counts", "held", "over", "young"]);
    ledger.assert_sound(1).await;
}

async fn a_stale_lease_commits_nothing_while_its_fence_is_deleted(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let mut deleted = 0;
    for round in 0..20 {
        let key = format!("k{round}");
        store(&ledger, &key, age(40), LONG_AGO).await;
        let stale = lease(&key, age(41));
        let late = ledger.executor.execute(&DepositMoney, deposit(id)).fenced_by(&stale);
        let (late, pruned) = tokio::join!(late.into_future(), ledger.databases.prune_fences());
        assert_lost(late);
        deleted += pruned.unwrap();
    }
    deleted += ledger.databases.prune_fences().await.unwrap();
    assert_eq!((deleted, fences(&ledger).await.len()), (20, 0));
    ledger.assert_sound(0).await;
}

async fn a_lease_that_is_held_for_long_keeps_its_fence(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let leader = lease("leader", age(40));
    store(&ledger, "leader", leader.token - 1, FAR_OFF).await;
    for _ in 0..2 {
        ledger.executor.execute(&DepositMoney, deposit(id)).fenced_by(&leader).await.unwrap();
        assert_eq!(ledger.databases.prune_fences().await.unwrap(), 0);
    }
    ledger.assert_sound(2).await;
}

/// The fence has the token of the lease, or there is none.
async fn a_lease_that_was_held_for_long_can_be_fenced_off(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    for (key, has_fence) in [("raised", true), ("nowhere", false)] {
        let leader = lease(key, age(40));
        if has_fence {
            store(&ledger, key, leader.token, FAR_OFF).await;
        }
        ledger.databases.fence_off(key, leader.token + 1).await.unwrap();
        assert_lost(ledger.executor.execute(&DepositMoney, deposit(id)).fenced_by(&leader).await);
    }
    // The holder has read and has not committed.
    let leader = lease("reads", age(40));
    let later = leader.token + 1;
    store(&ledger, "reads", leader.token, FAR_OFF).await;
    let databases = ledger.databases.clone();
    let paused = InterruptedDeposit(move |_| {
        let databases = databases.clone();
        async move { databases.fence_off("reads", later).await.unwrap() }
    });
    assert_lost(ledger.executor.execute(&paused, deposit(id)).fenced_by(&leader).await);
    ledger.assert_sound(0).await;
}

async fn fences_are_deleted_page_by_page(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    for n in 0..7 {
        store(&ledger, &format!("k{n}"), age(40), [LONG_AGO, FAR_OFF][n % 2]).await;
    }
    let shard = ledger.databases.shards().next().unwrap();
    assert_eq!(shard.prune_fences(2).await.unwrap(), 4);
    assert_eq!(fences(&ledger).await, ["k1", "k3", "k5"]);
}
