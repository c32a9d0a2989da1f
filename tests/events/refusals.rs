//! Nodes that cannot start, and events that cannot be read.

use std::time::Duration;

use ekbatan::events::HandlerOptions;
use support::until;

use crate::scene::{Ledger, PostEntry, Renamed, Scene};

on_every_database! { on_sqlite_only: a_node_that_cannot_work_says_why, options_that_cannot_work_are_refused }
on_every_database! { an_event_that_no_code_can_read_fails_by_itself }

async fn refused(scene: &Scene, options: HandlerOptions) -> String {
    let starting = scene.node().handler_with(Ledger::posting(), options).start();
    starting.await.expect_err("the node is refused").to_string()
}

async fn options_that_cannot_work_are_refused(scene: &Scene) {
    let options = HandlerOptions::default;
    for (options, expected) in [
        (options().concurrency(0), "a wrong `concurrency`: 0 events at a time handle none"),
        (options().rate(0, Duration::from_secs(1)), "a wrong `rate`: 0 runs in 1s; use at least 1"),
        (options().rate(5, Duration::ZERO), "a wrong `rate`: 5 runs in 0ns; use at least 1"),
        (options().rate(5, Duration::MAX), "in up to 86400s"),
        (options().timeout(Duration::ZERO), "a wrong `timeout`: 0 s leave no time"),
        (options().max_attempts(0), "a wrong `max_attempts`: 0 gives events up"),
        (
            options().retry(Duration::from_secs(2), Duration::from_secs(1)),
            "a wrong `retry`: the longest pause, 1s, is shorter than the first, 2s",
        ),
        (
            options().alias(" "),
            "a wrong `alias`: ` ` of the handler `events::scene::Scripted<0>` is blank; use at least one letter",
        ),
        (options().alias("a".repeat(256)), "a` has 256 bytes; use at most 255"),
        (
            options().only(["WalletSold"]),
            "wants the event `WalletSold`, which its type does not have; it has `WalletOpened`, \
             `WalletMoneyDeposited`, `WalletClosed`",
        ),
    ] {
        let error = refused(scene, options).await;
        assert!(error.starts_with("the handler `ledger.post` "), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

async fn a_node_that_cannot_work_says_why(scene: &Scene) {
    let twice = scene.node().handler(Ledger::posting()).handler(Ledger::posting()).start().await;
    let error = twice.expect_err("a name is there twice").to_string();
    let said = "the name `ledger.post` belongs to the handler `events::scene::Scripted<0>` and to \
                the handler `events::scene::Scripted<0>`;";
    assert!(error.starts_with(said), "{error}");
    let alias = HandlerOptions::default().alias("ledger.post_entry");
    let node = scene.node().action(PostEntry).handler_with(Renamed::posting(), alias);
    let error = node.start().await.expect_err("an alias is a name").to_string();
    let said = "the name `ledger.post_entry` belongs to the action `events::scene::PostEntry` and \
                to the handler `events::scene::Scripted<2>`;";
    assert!(error.starts_with(said), "{error}");
    let short = scene.node().lease(Duration::from_millis(10)).start().await;
    let error = short.expect_err("the lease is too short").to_string();
    assert!(error.contains("10ms is too short to be renewed in time; use at least 1 s"), "{error}");
    for node in [scene.node().lease(Duration::MAX), scene.node().poll(Duration::MAX, Duration::MAX)]
    {
        let error = node.start().await.expect_err("the time is too long").to_string();
        assert!(error.ends_with("s is too long; use at most 86400s"), "{error}");
    }
    for (node, words) in [
        (scene.node().claimed_at_once(15), "a wrong `claimed_at_once`: 15 is not from 16 to 1000"),
        (scene.node().swept_at_once(0), "a wrong `swept_at_once`: 0 is not from 1 to 10000"),
    ] {
        let error = node.start().await.expect_err("the size is wrong").to_string();
        assert!(error.contains(words), "{error}");
    }
    let pauses = scene.node().poll(Duration::ZERO, Duration::ZERO).start().await;
    assert!(pauses.expect_err("no pause").to_string().contains("a wrong `poll`"));
}

async fn an_event_that_no_code_can_read_fails_by_itself(scene: &Scene) {
    let (poisoned, other) = (scene.open_wallet().await, scene.open_wallet().await);
    let events = scene.scratch.eventlog("events");
    let broken =
        format!("UPDATE {events} SET payload = '{{\"owner\":5}}' WHERE model_id = '{poisoned}'");
    scene.scratch.execute(&broken).await;
    let options = HandlerOptions::default().max_attempts(1);
    let _node = scene.node().handler_with(Ledger::posting(), options).start().await.unwrap();
    scene.until_posted(1).await;
    until("it is parked", async || !scene.operations().parked(5).await.unwrap().is_empty()).await;
    assert_eq!(scene.posted(other).await, [1]);
    let parked = scene.operations().parked(5).await.unwrap();
    let error = parked[0].last_error.clone().unwrap();
    assert!(error.starts_with("the payload of `WalletOpened` does not fit the code"), "{error}");
}
