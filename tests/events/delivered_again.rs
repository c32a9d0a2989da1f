//! Events that operators have delivered again while an earlier delivery is still there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan::events::{DeliveryFilter, HandlerOptions};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::until;

use crate::scene::{Ledger, Scene, post};

on_every_database! {
    on_sqlite_only:
    a_second_delivery_behind_a_parked_one_hides_no_other_event,
    a_replay_of_settled_letters_leaves_out_what_is_still_to_be_handled,
}

const LEDGER: &str = "ledger.post";

/// A ledger that fails until it is open, and the switch that opens it.
fn closed() -> (Ledger, Arc<AtomicBool>) {
    let is_open = Arc::new(AtomicBool::new(false));
    let switch = is_open.clone();
    let ledger = Ledger::new(move |ctx, event| {
        if is_open.load(Ordering::SeqCst) {
            post(ctx, event)
        } else {
            async { Err("the ledger is closed".into()) }.boxed()
        }
    });
    (ledger, switch)
}

fn once() -> HandlerOptions {
    HandlerOptions::default().max_attempts(1)
}

async fn a_second_delivery_behind_a_parked_one_hides_no_other_event(scene: &Scene) {
    /// How many deliveries a look finds.
    const LOOK: usize = 16;
    let (ledger, _) = closed();
    let node = scene.node().handler_with(ledger, once()).start().await.unwrap();
    for _ in 0..LOOK {
        scene.open_wallet().await;
    }
    let operations = scene.operations();
    let parked = async || operations.parked(LOOK).await.unwrap();
    until("all are parked", async || parked().await.len() == LOOK).await;
    node.drain(Duration::from_secs(60)).await;
    // As two replays of the same letters leave them. The ids of replays are random; here they come later.
    let deliveries = scene.scratch.eventlog("deliveries");
    for first in parked().await {
        let second = Uuid::from_u128(first.id.as_u128() + 1);
        let insert = format!(
            "INSERT INTO {deliveries} (id, handler, stream, model_version, event_index, event_id, \
             due, attempts, node, state, version) \
             SELECT '{second}', handler, stream, model_version, event_index, event_id, \
             due, 0, node, 'NEW', 1 FROM {deliveries} WHERE id = '{}'",
            first.id
        );
        scene.scratch.execute(&insert).await;
    }
    let wallet = scene.open_wallet().await;
    let node = scene.node().claimed_at_once(LOOK).handler_with(Ledger::posting(), once());
    let _node = node.start().await.unwrap();
    until("the event of another model is posted", async || scene.posted(wallet).await == [1]).await;
    // The order holds for them: nobody has settled the parked ones.
    assert_eq!(scene.entries().count().await.unwrap(), 1);
    for parked in parked().await {
        operations.skip(parked.id, "alice", "the second one is enough").await.unwrap();
    }
    scene.until_handled(LEDGER).await;
    assert_eq!(scene.entries().count().await.unwrap(), LOOK as u64 + 1);
}

async fn a_replay_of_settled_letters_leaves_out_what_is_still_to_be_handled(scene: &Scene) {
    let (ledger, is_open) = closed();
    let node = scene.node().handler_with(ledger, once().dead_letters()).start().await.unwrap();
    let wallets = [scene.open_wallet().await, scene.open_wallet().await];
    let operations = scene.operations();
    until("both are dead letters", async || {
        operations.dead_letters(10).await.unwrap().len() == wallets.len()
    })
    .await;
    is_open.store(true, Ordering::SeqCst);
    assert!(node.pause(LEDGER));
    let dead = DeliveryFilter::dead_letters(LEDGER);
    let settled = DeliveryFilter::settled_letters(LEDGER);
    let replay = async |filter: &DeliveryFilter| {
        operations.replay_all(filter, 2, "alice", "again").await.unwrap()
    };
    assert_eq!(replay(&dead).await, 2);
    // What was counted are letters, and what is done is less.
    assert_eq!(operations.count(&settled).await.unwrap(), 2);
    assert_eq!(replay(&settled).await, 0);
    assert_eq!(operations.pending(LEDGER).await.unwrap(), 2);
    assert!(node.resume(LEDGER));
    scene.until_handled(LEDGER).await;
    assert_eq!(scene.entries().count().await.unwrap(), 2);
    // Once they are handled, they are replayed as often as somebody wants.
    assert_eq!(replay(&settled).await, 2);
    scene.until_handled(LEDGER).await;
    for wallet in wallets {
        assert_eq!(scene.posted(wallet).await, [1, 1]);
    }
}
