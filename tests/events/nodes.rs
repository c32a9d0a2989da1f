//! Nodes that end, in order and not in order.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::events::HandlerOptions;
use futures_util::FutureExt;
use support::until;
use tokio::sync::Semaphore;

use crate::scene::{Ledger, Scene, node, post};

on_every_database! {
    others_take_over_what_a_node_had_claimed_that_died,
    a_drained_node_hands_back_what_it_has_not_handled,
    a_drained_node_waits_for_its_handlers,
    a_node_without_handlers_lets_commits_deliver_to_others,
}

/// A ledger that does not end before it is opened.
fn stuck(opened: &Arc<Semaphore>) -> Ledger {
    let opened = opened.clone();
    Ledger::new(move |ctx, event| {
        let opened = opened.clone();
        async move {
            let _opened = opened.acquire().await?;
            post(ctx, event).await
        }
        .boxed()
    })
}

async fn others_take_over_what_a_node_had_claimed_that_died(scene: &Scene) {
    let closed = Arc::new(Semaphore::new(0));
    let ledger = stuck(&closed);
    let seen = ledger.seen();
    let lease = Duration::from_secs(1);
    let dying = scene.node().lease(lease).handler(ledger).start().await.unwrap();
    let wallets = [scene.open_wallet().await, scene.open_wallet().await];
    for wallet in wallets {
        scene.deposit(wallet, 5).await;
    }
    until("both wallets are being handled", async || seen.lock().unwrap().len() == 2).await;
    // As if its process was killed: nothing is given back.
    drop(dying);
    let other = scene.open_again().await;
    let _other = node(&other).lease(lease).handler(Ledger::posting()).start().await.unwrap();
    scene.until_handled("ledger.post").await;
    for wallet in wallets {
        assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5, 6]);
    }
}

async fn a_drained_node_hands_back_what_it_has_not_handled(scene: &Scene) {
    let closed = Arc::new(Semaphore::new(0));
    let ledger = stuck(&closed);
    let seen = ledger.seen();
    let draining = scene.node().handler(ledger).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 5).await;
    until("the first event is being handled", async || !seen.lock().unwrap().is_empty()).await;
    draining.drain(Duration::from_millis(10)).await;
    let deliveries = scene.scratch.eventlog("deliveries");
    let claimed = format!("FROM {deliveries} WHERE state = 'CLAIMED' OR attempts > 0");
    let rows = scene.scratch.select(&["id"], &claimed).await;
    assert!(rows.is_empty(), "nothing is claimed, and no attempt was counted");
    assert_eq!(scene.operations().pending("ledger.post").await.unwrap(), 6);
    assert_eq!(scene.scratch.count(&scene.scratch.eventlog("nodes")).await, 0);
    let _node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5, 6]);
}

async fn a_drained_node_waits_for_its_handlers(scene: &Scene) {
    let opened = Arc::new(Semaphore::new(0));
    let ledger = stuck(&opened);
    let seen = ledger.seen();
    let options = HandlerOptions::default().timeout(Duration::MAX);
    let draining = scene.node().handler_with(ledger, options).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    until("the event is being handled", async || !seen.lock().unwrap().is_empty()).await;
    let drained = tokio::spawn(draining.drain(Duration::MAX));
    opened.add_permits(1);
    drained.await.unwrap();
    assert_eq!(scene.posted(wallet).await, [1]);
}

async fn a_node_without_handlers_lets_commits_deliver_to_others(scene: &Scene) {
    let handling = scene.open_again().await;
    let node_with = node(&handling).handler(Ledger::posting()).start().await.unwrap();
    node_with.drain(Duration::from_secs(60)).await;
    let without = scene.node().start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 2).await;
    // The deliveries are there although no node that handles them runs.
    assert_eq!(scene.operations().pending("ledger.post").await.unwrap(), 3);
    assert!(without.handlers().is_empty());
}
