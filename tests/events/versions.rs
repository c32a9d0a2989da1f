//! Two releases run side by side. The later release has raised the version of an event.

use std::sync::{Arc, Mutex};

use ekbatan::events::{Delivered, EventHandler, HandlerContext, HandlerOptions};
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use support::until;

use crate::scene::{Failure, Ledger, PostEntry, Posting, Scene, node};

on_every_database! {
    on_sqlite_only:
    an_event_of_a_later_version_is_left_to_processes_that_know_it,
}

const LEDGER: &str = "ledger.post";

/// Deposits as the later release knows them. A payload of the earlier version fits, too.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
enum LaterEvent {
    #[event(name = "WalletMoneyDeposited", version = 2)]
    MoneyDeposited { amount: Decimal },
}

/// The ledger of the later release. It notes the versions of what it handles and of what it upcasts.
#[derive(Default)]
struct LaterLedger {
    handled: Arc<Mutex<Vec<i32>>>,
    upcasts: Arc<Mutex<Vec<i32>>>,
}

impl EventHandler for LaterLedger {
    const NAME: &'static str = LEDGER;
    type Event = LaterEvent;
    type Error = Failure;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: &Delivered<LaterEvent>,
    ) -> Result<(), Failure> {
        self.handled.lock().unwrap().push(event.version);
        let posting = Posting {
            event: event.id,
            wallet: event.model_id.clone(),
            wallet_version: event.model_version.unwrap_or_default(),
        };
        Ok(ctx.finish(&PostEntry, posting).await?)
    }

    fn upcast(&self, _: &str, version: i32, payload: Json) -> Result<Json, Failure> {
        self.upcasts.lock().unwrap().push(version);
        Ok(payload)
    }
}

async fn an_event_of_a_later_version_is_left_to_processes_that_know_it(scene: &Scene) {
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 2).await;
    // As a process of the later release has committed the first deposit.
    let events = scene.scratch.eventlog("events");
    let raise = format!("UPDATE {events} SET event_version = 2 WHERE model_version = 2");
    scene.scratch.execute(&raise).await;
    let old = scene.open_again().await;
    let ledger = Ledger::posting();
    let of_old = ledger.seen();
    let deposits = HandlerOptions::default().only(["WalletMoneyDeposited"]);
    let _old = node(&old).handler_with(ledger, deposits).start().await.unwrap();
    let deliveries = scene.scratch.eventlog("deliveries");
    let left = format!("FROM {deliveries} WHERE state = 'WAITING' AND model_version = 2");
    until("the earlier release leaves or handles it", async || {
        let is_left = !scene.scratch.select(&["id"], &left).await.is_empty();
        is_left || !of_old.lock().unwrap().is_empty()
    })
    .await;
    assert!(of_old.lock().unwrap().is_empty(), "it was handled by code of the earlier version");
    assert!(scene.operations().failing(1).await.unwrap().is_empty(), "this is no attempt");
    let later = LaterLedger::default();
    let (handled, upcasts) = (later.handled.clone(), later.upcasts.clone());
    let _later = scene.node().handler(later).start().await.unwrap();
    scene.until_posted(2).await;
    scene.until_handled(LEDGER).await;
    // The order holds although both processes may handle the other deposit.
    assert_eq!(scene.posted(wallet).await, [2, 3]);
    assert_eq!(handled.lock().unwrap()[0], 2);
    assert!(upcasts.lock().unwrap().iter().all(|version| *version == 1));
    assert!(of_old.lock().unwrap().iter().all(|seen| seen.version == 3));
}
