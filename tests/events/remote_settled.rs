//! Remote calls of deliveries that change hands, have other names, or are settled at a bad time.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::events::{DeliveryFilter, EventsError, HandlerOptions, Reconciled, RemoteFailure};
use futures_util::FutureExt;
use serde_json::json;
use support::until;
use tokio::sync::Semaphore;

use crate::remote_calls::{Bank, OF_BANK, OF_OPERATOR, Receipt, charging, post_receipt, quick};
use crate::scene::{Ledger, Renamed, Scene, node, open_wallet};

on_every_database! {
    a_process_that_knows_an_earlier_name_makes_no_second_call,
    a_call_in_doubt_is_settled_once_its_run_has_ended,
    a_settled_call_of_a_replayed_event_lets_it_be_tried_again,
    a_call_that_nobody_can_ask_for_parks_its_event_although_another_one_can_be_asked_for,
}

mod with_a_wrong_outcome {
    use super::*;

    on_every_database! { on_sqlite_only: a_call_that_was_settled_with_it_is_settled_again }
}

/// During a deployment, the new process has renamed a handler that keeps no order.
async fn a_process_that_knows_an_earlier_name_makes_no_second_call(scene: &Scene) {
    let bank = Bank::default();
    let unordered = || HandlerOptions::unordered().retry(QUICK, QUICK);
    let old = scene.open_again().await;
    // Its heart finds the new name after an hour.
    let old_node = node(&old).lease(Duration::from_secs(5 * 60 * 60));
    let old_node = old_node.handler_with(charging(&bank), unordered()).start().await.unwrap();
    assert!(old_node.pause("ledger.post"));
    let wallet = open_wallet(&old).await;

    let (own, gate) = (bank.clone(), Arc::new(Semaphore::new(0)));
    let closed = gate.clone();
    let failing = Renamed::new(move |ctx, _| {
        let (bank, gate) = (own.clone(), closed.clone());
        async move {
            ctx.remote_call("charge", |key| async move { bank.charge(key).await }).await?;
            let _open = gate.acquire().await?;
            Err("after the call".into())
        }
        .boxed()
    });
    let renamed = scene.node().handler_with(failing, unordered().alias("ledger.post"));
    let renamed = renamed.start().await.unwrap();
    until("the new process has called", async || bank.requests().len() == 1).await;
    assert!(renamed.pause("ledger.post_again"));
    gate.add_permits(1);
    until("its run has failed", async || renamed.handlers()[0].failed == 1).await;
    assert!(old_node.resume("ledger.post"));
    scene.until_posted(1).await;
    assert_eq!(scene.posted(wallet).await, [OF_BANK]);
    assert_eq!(bank.requests(), [scene.remote_call().await.id.uuid()]);
}

const QUICK: Duration = Duration::from_millis(1);

async fn a_call_in_doubt_is_settled_once_its_run_has_ended(scene: &Scene) {
    let (in_doubt, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (doubted, closed) = (in_doubt.clone(), gate.clone());
    let ledger = Ledger::new(move |ctx, event| {
        let (in_doubt, gate) = (doubted.clone(), closed.clone());
        async move {
            let charge = ctx.remote_call("charge", |_| async {
                Err::<Receipt, RemoteFailure>(std::io::Error::other("the line is cut").into())
            });
            match charge.await {
                Ok(receipt) => post_receipt(ctx, event, receipt).await,
                Err(error) => {
                    in_doubt.add_permits(1);
                    let _open = gate.acquire().await?;
                    Err(error.into())
                }
            }
        }
        .boxed()
    });
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    in_doubt.acquire().await.unwrap().forget();
    let (operations, key) = (scene.operations(), scene.remote_call().await.id.uuid());
    let outcome = json!({ "number": OF_OPERATOR });
    let settle =
        async || operations.remote_call_happened(key, &outcome, "alice", "the bank says so").await;
    let refused = settle().await.unwrap_err();
    assert!(matches!(refused, EventsError::Unfit { what: "key", .. }), "{refused}");
    assert!(refused.to_string().contains("wait until its run has ended"), "{refused}");
    gate.add_permits(1);
    scene.until_parked().await;
    settle().await.unwrap();
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [OF_OPERATOR]);
}

async fn a_settled_call_of_a_replayed_event_lets_it_be_tried_again(scene: &Scene) {
    let bank = Bank::that_breaks();
    let _node = scene.node().handler_with(charging(&bank), quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_parked().await;
    let operations = scene.operations();
    let parked = operations.parked(1).await.unwrap().remove(0);
    operations.skip(parked.id, "alice", "by mistake").await.unwrap();
    let skipped = DeliveryFilter::settled_letters("ledger.post");
    operations.replay_all(&skipped, 1, "alice", "it was a mistake").await.unwrap();
    scene.until_parked().await;
    let (key, outcome) = (scene.remote_call().await.id.uuid(), json!({ "number": OF_OPERATOR }));
    operations.remote_call_happened(key, &outcome, "alice", "the bank says so").await.unwrap();
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [OF_OPERATOR]);
    assert_eq!(bank.requests(), [key]);
}

async fn a_call_that_nobody_can_ask_for_parks_its_event_although_another_one_can_be_asked_for(
    scene: &Scene,
) {
    let ledger = Ledger::new(|ctx, _| {
        async move {
            let cut = || Err::<(), RemoteFailure>(std::io::Error::other("the line is cut").into());
            let charge = ctx.remote_call("charge", |_| async move { cut() }).await;
            let told = ctx.remote_call("tell", |_| async move { cut() });
            told.reconcile(|_| async { Ok(Reconciled::Unknown) }).await?;
            Ok(charge?)
        }
        .boxed()
    });
    let node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    scene.open_wallet().await;
    scene.until_parked().await;
    assert_eq!(node.handlers()[0].failed, 1, "it is parked at once");
}

async fn a_call_that_was_settled_with_it_is_settled_again(scene: &Scene) {
    let bank = Bank::that_breaks();
    let node = scene.node().handler_with(charging(&bank), quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_parked().await;
    let (operations, key) = (scene.operations(), scene.remote_call().await.id.uuid());
    let settle = async |outcome| {
        operations.remote_call_happened(key, &outcome, "alice", "the bank says so").await
    };
    settle(json!({ "nr": OF_OPERATOR })).await.unwrap();
    let failed = node.handlers()[0].failed;
    until("the handler cannot read it", async || node.handlers()[0].failed > failed).await;
    let denied = operations.remote_call_did_not_happen(key, "alice", "a mistake").await;
    assert!(matches!(denied.unwrap_err(), EventsError::NotFound { .. }), "it may have happened");
    // Unless a run has the event at this moment.
    until("it is settled again", async || settle(json!({ "number": OF_OPERATOR })).await.is_ok())
        .await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [OF_OPERATOR]);
    assert_eq!(bank.requests(), [key]);
    let log = scene.scratch.eventlog("interventions");
    let log = format!("FROM {log} WHERE kind = 'SETTLE' ORDER BY started, id");
    let log = scene.scratch.select(&["subject"], &log).await;
    let subjects = [format!("{key} happened"), format!("{key} happened, with another outcome")];
    assert_eq!(log, subjects.map(|subject| vec![Some(subject)]));
    let late = settle(json!({ "number": 1 })).await.unwrap_err();
    assert!(matches!(late, EventsError::NotFound { .. }), "{late}");
}
