//! Processes of several releases, whose handlers have other names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan::events::{HandlerOptions, Retention};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::{Dialect, until};

use crate::scene::{Ledger, PostEntry, Posting, Renamed, Scene, Scripted};

on_every_database! {
    the_steps_of_an_event_that_is_not_handled_outlive_the_retention,
}

mod on_sqlite {
    use super::*;

    on_every_database! {
        on_sqlite_only: a_renamed_handler_repeats_no_step,
    }
}

const LEDGER: &str = "ledger.post";

/// Posts an event in a step, and is done if it is open.
fn stepping<const N: u8>(is_open: &Arc<AtomicBool>) -> Scripted<N> {
    let is_open = is_open.clone();
    Scripted::new(move |ctx, event| {
        let is_open = is_open.load(Ordering::SeqCst);
        async move {
            ctx.step("post", &PostEntry, Posting::of(event)).await?;
            if is_open { Ok(()) } else { Err("the books are closed".into()) }
        }
        .boxed()
    })
}

async fn a_renamed_handler_repeats_no_step(scene: &Scene) {
    let is_open = Arc::new(AtomicBool::new(false));
    let pause = Duration::from_millis(1);
    let quick = || HandlerOptions::default().retry(pause, pause);
    let ledger: Ledger = stepping(&is_open);
    let node_of_old = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    until("the ledger has failed", async || node_of_old.handlers()[0].failed > 0).await;
    node_of_old.drain(Duration::from_secs(30)).await;
    is_open.store(true, Ordering::SeqCst);
    let renamed: Renamed = stepping(&is_open);
    let renamed = scene.node().handler_with(renamed, quick().alias(LEDGER));
    let _renamed = renamed.start().await.unwrap();
    scene.deposit(wallet, 1).await;
    scene.until_handled(LEDGER).await;
    scene.until_handled("ledger.post_again").await;
    assert_eq!(scene.posted(wallet).await, [1, 2]);
}

async fn the_steps_of_an_event_that_is_not_handled_outlive_the_retention(scene: &Scene) {
    let is_open = Arc::new(AtomicBool::new(false));
    let ledger: Ledger = stepping(&is_open);
    let once = HandlerOptions::default().max_attempts(1);
    let _node = scene.node().handler_with(ledger, once).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    let operations = scene.operations();
    until("it is parked", async || !operations.parked(1).await.unwrap().is_empty()).await;
    // A key of the application, which looks alike.
    let other = Posting { event: Uuid::nil(), wallet: "none".to_owned(), wallet_version: 1 };
    let call = scene.executor.execute(&PostEntry, other).idempotency_key("event-step:1:post");
    call.await.unwrap();
    let keys = scene.scratch.eventlog("idempotency_keys");
    let long_ago = match scene.scratch.dialect {
        Dialect::Sqlite => "2020-01-01T00:00:00.000000Z",
        _ => "2020-01-01 00:00:00",
    };
    let age = format!("UPDATE {keys} SET created_date = '{long_ago}'");
    scene.scratch.execute(&age).await;
    let retention = Retention::new().keys(Retention::LEAST).rows_at_once(1);
    assert_eq!(retention.run(&scene.databases).await.unwrap().keys, 1);
    is_open.store(true, Ordering::SeqCst);
    let parked = operations.parked(1).await.unwrap().remove(0);
    operations.retry(parked.id, "alice", "the books are open").await.unwrap();
    scene.until_handled(LEDGER).await;
    assert_eq!(scene.posted(wallet).await, [1]);
    assert_eq!(retention.run(&scene.databases).await.unwrap().keys, 1);
    assert_eq!(scene.scratch.count(&keys).await, 0);
}
