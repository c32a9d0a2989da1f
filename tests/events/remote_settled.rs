//! Remote calls of deliveries that change hands, have other names, or are settled at a bad time.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::events::HandlerOptions;
use futures_util::FutureExt;
use support::until;
use tokio::sync::Semaphore;

use crate::remote_calls::{Bank, OF_BANK, charging};
use crate::scene::{Renamed, Scene, node, open_wallet};

on_every_database! {
    a_process_that_knows_an_earlier_name_makes_no_second_call,
}

/// During a deployment, the new process has renamed a handler that keeps no order.
async fn a_process_that_knows_an_earlier_name_makes_no_second_call(scene: &Scene) {
    let bank = Bank::default();
    let unordered = || HandlerOptions::unordered().retry(QUICK, QUICK);
    let old = scene.open_again().await;
    // Its heart finds the new name after an hour.
    let old_node = node(&old).lease(Duration::from_secs(5 * 60 * 60));
    let old_node = old_node.handler_with(charging(&bank), unordered()).start().await.unwrap();
    old_node.pause("ledger.post");
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
    renamed.pause("ledger.post_again");
    gate.add_permits(1);
    until("its run has failed", async || renamed.handlers()[0].failed == 1).await;
    old_node.resume("ledger.post");
    scene.until_posted(1).await;
    assert_eq!(scene.posted(wallet).await, [OF_BANK]);
    assert_eq!(bank.requests(), [scene.remote_call().await.id.uuid()]);
}

const QUICK: Duration = Duration::from_millis(1);
