//! Commits lock rows in one order, and no row more than they need. A test holds a row, lets a
//! commit wait for it, and looks at which rows the waiting commit has locked.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use ekbatan::prelude::*;
use support::wallet::Wallet;
use support::{Dialect, PlainConnection, ScratchDatabase};
use tokio::task::JoinSet;

use crate::ledger::Ledger;
use crate::orders::{Order, Orders};
use crate::other_sessions::{Observer, lock_wallet};

on_every_database!(updates_of_parents_and_new_children_do_not_deadlock);

mod with_sessions_that_hold_rows {
    use super::*;

    on_every_database! {
        only postgres and mysql and mariadb:
        a_fold_locks_rows_in_the_order_of_their_keys,
        parents_and_updated_rows_are_locked_in_the_order_of_their_keys,
    }
}

mod with_an_uncommitted_child {
    use super::*;

    on_every_database! { only postgres: an_uncommitted_child_does_not_block_an_update }
}

/// Whether a row can be locked now.
async fn is_free(connection: &mut PlainConnection, table: &str, id: Uuid) -> bool {
    let tail = format!("FROM {table} WHERE id = '{id}' FOR UPDATE SKIP LOCKED");
    !connection.select(&["id"], &tail).await.is_empty()
}

async fn hold(connection: &mut PlainConnection, table: &str, id: Uuid) {
    connection.execute(&format!("BEGIN; SELECT 1 FROM {table} WHERE id = '{id}' FOR UPDATE")).await;
}

/// The later key is queued first.
async fn a_fold_locks_rows_in_the_order_of_their_keys(dialect: Dialect) {
    let url = ScratchDatabase::create(dialect).await.url;
    let ledger = Ledger::with_config(ScratchDatabase::config_of(&url).lanes(1)).await;
    let repository = ledger.databases.repository::<Wallet>();
    ledger.open_wallets(3).await;
    let mut wallets = repository.find_all().await.unwrap();
    wallets.sort_by_key(|wallet| wallet.id.uuid());
    let mut observer = Observer::connect(&url).await;
    let (mut first, mut second) =
        (PlainConnection::connect(&url).await, PlainConnection::connect(&url).await);

    // While the lane waits for this row, further commits are queued.
    first.execute("BEGIN").await;
    lock_wallet(&mut first, wallets[0].id).await;
    let ahead = {
        let (repository, wallet) = (ledger.databases.repository::<Wallet>(), wallets[0].clone());
        tokio::spawn(async move { repository.update(wallet.apply(|_| ())).await.unwrap() })
    };
    observer.wait_for_blocked().await;
    let mut later = Box::pin(repository.update(wallets[2].clone().apply(|_| ())));
    let mut earlier = Box::pin(repository.update(wallets[1].clone().apply(|_| ())));
    for queued in [&mut later, &mut earlier] {
        let is_waiting = poll_fn(|cx| Poll::Ready(queued.as_mut().poll(cx).is_pending())).await;
        assert!(is_waiting, "the only lane waits for a row");
    }

    second.execute("BEGIN").await;
    lock_wallet(&mut second, wallets[1].id).await;
    first.execute("ROLLBACK").await;
    ahead.await.unwrap();
    observer.wait_for_blocked().await;
    assert!(is_free(&mut first, "wallets", wallets[2].id.uuid()).await, "2 was locked before 1");
    second.execute("ROLLBACK").await;
    let (later, earlier) = tokio::join!(later, earlier);
    assert_eq!((later.unwrap().version(), earlier.unwrap().version()), (2, 2));
}

/// The commit updates the first order and adds a line to the second. An insert locks its parent.
async fn parents_and_updated_rows_are_locked_in_the_order_of_their_keys(dialect: Dialect) {
    let orders = Arc::new(Orders::new(dialect).await);
    let ids: Vec<Id<Order>> = orders.add(2).await.iter().map(|order| order.id).collect();
    let url = orders.scratch.url.clone();
    let mut observer = Observer::connect(&url).await;
    let (mut holder, mut other) =
        (PlainConnection::connect(&url).await, PlainConnection::connect(&url).await);
    hold(&mut holder, "orders", ids[0].uuid()).await;
    let changing = {
        let (orders, ids) = (orders.clone(), ids.clone());
        tokio::spawn(async move { orders.change(&ids[..1], &ids[1..]).await })
    };
    observer.wait_for_blocked().await;
    assert!(is_free(&mut other, "orders", ids[1].uuid()).await, "2 was locked before 1");
    holder.execute("ROLLBACK").await;
    changing.await.unwrap().unwrap();
}

async fn updates_of_parents_and_new_children_do_not_deadlock(dialect: Dialect) {
    let orders = Arc::new(Orders::new(dialect).await);
    // Two sets of lanes: only the database serializes the commits of different processes.
    let other_process = Arc::new(orders.open_again().await);
    let ids: Vec<Id<Order>> = orders.add(3).await.iter().map(|order| order.id).collect();
    let mut tasks = JoinSet::new();
    for task in 0..16_u64 {
        let orders = if task % 2 == 0 { orders.clone() } else { other_process.clone() };
        let ids = ids.clone();
        tasks.spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            for _ in 0..20 {
                let mut one = || ids[random.usize(..ids.len())];
                orders.change(&[one()], &[one(), one()]).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let stored = orders.databases.repository::<Order>().find_all().await.unwrap();
    assert_eq!(stored.iter().map(|order| order.total).sum::<i64>(), 16 * 20);
    assert_eq!(orders.scratch.count("order_lines").await, 2 * 16 * 20);
}

async fn an_uncommitted_child_does_not_block_an_update(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let ids: Vec<Id<Order>> = orders.add(2).await.iter().map(|order| order.id).collect();
    let mut other = orders.scratch.connect().await;
    let line = Uuid::now_v7();
    other
        .execute(&format!(
            "BEGIN; INSERT INTO order_lines VALUES ('{line}', '{}', 'OPEN', 1)",
            ids[0]
        ))
        .await;
    orders.change(&ids, &[]).await.unwrap();
    other.execute("COMMIT").await;
}
