//! Processes of several releases, whose handlers want other events or have other names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan::events::{DeliveryFilter, EventsError, HandlerOptions, NodeBuilder, Retention};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::wallet::Wallet;
use support::{Dialect, until};

use crate::scene::{
    Ledger, Mail, PostEntry, Posting, Renamed, Scene, Scripted, Seen, deposit, node, open_wallet,
    post,
};

on_every_database! {
    a_handler_that_comes_back_gets_no_event_again_that_it_has,
    the_steps_of_an_event_that_is_not_handled_outlive_the_retention,
    a_handler_that_is_retired_and_comes_back_loses_no_event_of_a_process_without_a_node,
}

mod on_sqlite {
    use super::*;

    on_every_database! {
        on_sqlite_only:
        an_event_that_only_a_later_release_wants_is_left_to_it,
        an_event_that_is_not_wanted_any_more_is_done_without_the_handler,
        a_handler_that_comes_back_gets_no_event_again_that_it_has_handled,
        a_handler_that_is_renamed_gets_no_event_again_that_it_has_handled,
        a_delivery_that_is_there_stops_no_sweep,
        a_renamed_handler_repeats_no_step,
        a_handler_that_is_renamed_after_it_was_retired_goes_on_from_there,
        a_handler_that_takes_over_from_two_retired_ones_gets_no_event_again,
        a_handler_that_takes_over_from_two_present_ones_gets_each_event_once,
        what_waits_behind_a_parked_event_goes_on_when_its_handler_has_no_order_any_more,
        what_waits_behind_a_parked_event_of_a_retired_name_goes_on,
        a_pause_outlives_a_release_that_wants_other_events,
        what_has_another_name_or_is_retired_is_neither_paused_nor_resumed,
    }
}

mod on_postgres {
    use super::*;

    on_every_database! { only postgres: a_registration_beside_a_pause_loses_neither }
}

const LEDGER: &str = "ledger.post";
const RENAMED: &str = "ledger.post_again";

/// A release that wants the openings of wallets only.
fn openings() -> HandlerOptions {
    HandlerOptions::default().only(["WalletOpened"])
}

fn names(seen: &[Seen]) -> Vec<String> {
    seen.iter().map(|seen| seen.name.clone()).collect()
}

async fn an_event_that_only_a_later_release_wants_is_left_to_it(scene: &Scene) {
    let old = scene.open_again().await;
    let ledger = Ledger::posting();
    let of_old = ledger.seen();
    let old_node = node(&old).handler_with(ledger, openings()).start().await.unwrap();
    let wallet = open_wallet(&old).await;
    scene.until_handled(LEDGER).await;
    let new_node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    for _ in 0..5 {
        deposit(&old, wallet, 1).await;
        scene.deposit(wallet, 1).await;
    }
    scene.until_posted(11).await;
    scene.until_handled(LEDGER).await;
    assert_eq!(scene.posted(wallet).await, (1..=11).collect::<Vec<i64>>());
    // No process of the later release runs when one of the earlier release starts again.
    new_node.drain(Duration::from_secs(30)).await;
    old_node.drain(Duration::from_secs(30)).await;
    let ledger = Ledger::posting();
    let of_restarted = ledger.seen();
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let mails = mail.seen();
    let old_node = node(&old).handler_with(ledger, openings()).handler(mail);
    let _old_node = old_node.start().await.unwrap();
    deposit(&old, wallet, 2).await;
    until("its other handler has them", async || mails.lock().unwrap().len() >= 13).await;
    let _new_node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    scene.until_posted(13).await;
    scene.until_handled(LEDGER).await;
    assert_eq!(scene.posted(wallet).await, (1..=13).collect::<Vec<i64>>());
    assert_eq!(names(&of_old.lock().unwrap()), ["WalletOpened"]);
    assert!(of_restarted.lock().unwrap().is_empty());
}

async fn an_event_that_is_not_wanted_any_more_is_done_without_the_handler(scene: &Scene) {
    let node_of_all = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled(LEDGER).await;
    assert!(node_of_all.pause(LEDGER));
    scene.deposit(wallet, 2).await;
    node_of_all.drain(Duration::from_secs(30)).await;
    assert_eq!(scene.operations().pending(LEDGER).await.unwrap(), 2);
    // A later release wants less.
    let ledger = Ledger::posting();
    let seen = ledger.seen();
    let other = scene.open_again().await;
    let _node = node(&other).handler_with(ledger, openings()).start().await.unwrap();
    scene.until_handled(LEDGER).await;
    deposit(&other, wallet, 2).await;
    scene.deposit(wallet, 1).await;
    scene.until_handled(LEDGER).await;
    assert!(seen.lock().unwrap().is_empty());
    // The release after that wants all events again, while processes of the one before still run.
    let _node_of_all = scene.node().handler(Ledger::posting()).start().await.unwrap();
    deposit(&other, wallet, 2).await;
    scene.deposit(wallet, 2).await;
    scene.until_posted(5).await;
    scene.until_handled(LEDGER).await;
    assert_eq!(scene.posted(wallet).await, [1, 7, 8, 9, 10]);
    assert!(seen.lock().unwrap().is_empty());
}

/// Commits of a process that does not know that the ledger is retired insert deliveries for it.
async fn a_handler_that_comes_back_gets_no_event_again_that_it_has(scene: &Scene) {
    let mail = || Mail::new(|_, _| async { Ok(()) }.boxed());
    let node_of_both = scene.node().handler(Ledger::posting()).handler(mail());
    let node_of_both = node_of_both.start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_posted(1).await;
    scene.until_handled("mail.send").await;
    // What it knows stays as it is: its node runs no more.
    node_of_both.drain(Duration::from_secs(60)).await;
    let operations = scene.operations();
    operations.retire(LEDGER, "alice", "no ledger any more").await.unwrap();
    scene.deposit(wallet, 2).await;
    let other = scene.open_again().await;
    let quiet = node(&other).start().await.unwrap();
    deposit(&other, wallet, 2).await;
    scene.deposit(wallet, 1).await;
    assert_eq!(operations.pending(LEDGER).await.unwrap(), 3);
    quiet.drain(Duration::from_secs(60)).await;
    let returned = node(&other).handler(Ledger::posting()).handler(mail());
    let _returned = returned.start().await.unwrap();
    scene.until_posted(6).await;
    scene.until_handled("mail.send").await;
    scene.until_handled(LEDGER).await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5, 6]);
    assert!(!operations.status().await.unwrap()[0].is_retired);
}

async fn a_handler_that_comes_back_gets_no_event_again_that_it_has_handled(scene: &Scene) {
    comes_back(scene, |node| node.handler(Ledger::posting()), LEDGER).await;
}

async fn a_handler_that_is_renamed_gets_no_event_again_that_it_has_handled(scene: &Scene) {
    let renamed = HandlerOptions::default().alias(LEDGER);
    comes_back(scene, |node| node.handler_with(Renamed::posting(), renamed), RENAMED).await;
}

/// A process that does not know of the retirement commits two events, and a node that still runs handles
/// them. Then the handler comes back under a name.
async fn comes_back(scene: &Scene, with: impl FnOnce(NodeBuilder) -> NodeBuilder, name: &str) {
    let other = scene.open_again().await;
    let unordered = HandlerOptions::unordered();
    let last = node(&other).handler_with(Ledger::posting(), unordered).start().await.unwrap();
    let unknowing = scene.node().start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_posted(1).await;
    unknowing.drain(Duration::from_secs(60)).await;
    scene.operations().retire(LEDGER, "alice", "no ledger any more").await.unwrap();
    scene.deposit(wallet, 2).await;
    scene.until_posted(3).await;
    scene.until_handled(LEDGER).await;
    last.drain(Duration::from_secs(60)).await;
    let returned = with(node(&other)).start().await.unwrap();
    deposit(&other, wallet, 1).await;
    scene.until_posted(4).await;
    scene.until_handled(name).await;
    let mut posted = scene.posted(wallet).await;
    posted.sort_unstable();
    assert_eq!(posted, [1, 2, 3, 4]);
    returned.drain(Duration::from_secs(60)).await;
}

/// As if a process had inserted the delivery without a generation.
async fn a_delivery_that_is_there_stops_no_sweep(scene: &Scene) {
    let node_of_ledger = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_posted(1).await;
    node_of_ledger.drain(Duration::from_secs(60)).await;
    scene.operations().retire(LEDGER, "alice", "no ledger any more").await.unwrap();
    scene.deposit(wallet, 1).await;
    let [events, deliveries] = ["events", "deliveries"].map(|table| scene.scratch.eventlog(table));
    let forget = format!(
        "UPDATE {events} SET fanned_out = NULL WHERE id IN (SELECT event_id FROM {deliveries})"
    );
    scene.scratch.execute(&forget).await;
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let mails = mail.seen();
    let returned = scene.node().handler(Ledger::posting()).handler(mail);
    let _returned = returned.start().await.unwrap();
    until("the other handler has both", async || mails.lock().unwrap().len() >= 2).await;
    scene.until_handled(LEDGER).await;
    assert_eq!(scene.posted(wallet).await, [1, 2]);
}

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
    scene.until_handled(RENAMED).await;
    assert_eq!(scene.posted(wallet).await, [1, 2]);
}

async fn a_handler_that_is_renamed_after_it_was_retired_goes_on_from_there(scene: &Scene) {
    let first = scene.node().handler(Ledger::posting()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_posted(1).await;
    first.drain(Duration::from_secs(60)).await;
    let operations = scene.operations();
    operations.retire(LEDGER, "alice", "no ledger any more").await.unwrap();
    let other = scene.open_again().await;
    deposit(&other, wallet, 1).await;
    let renamed = HandlerOptions::default().alias(LEDGER);
    let second = node(&other).handler_with(Renamed::posting(), renamed).start().await.unwrap();
    deposit(&other, wallet, 1).await;
    scene.until_posted(3).await;
    scene.until_handled(RENAMED).await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3]);
    let stored = DeliveryFilter::stored_events(RENAMED);
    assert_eq!(operations.count(&stored).await.unwrap(), 3, "it has had all of them");
    second.drain(Duration::from_secs(60)).await;
    // And back, after it was retired once more.
    operations.retire(RENAMED, "alice", "no ledger any more").await.unwrap();
    let last = scene.open_again().await;
    deposit(&last, wallet, 1).await;
    let back = HandlerOptions::default().alias(RENAMED);
    let _third = node(&last).handler_with(Ledger::posting(), back).start().await.unwrap();
    deposit(&last, wallet, 1).await;
    scene.until_posted(5).await;
    scene.until_handled(LEDGER).await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4, 5]);
}

/// Each of the two was retired at a time of its own, and a process that does not know of that commits events.
async fn a_handler_that_takes_over_from_two_retired_ones_gets_no_event_again(scene: &Scene) {
    let only = |event: &str| HandlerOptions::unordered().only([event]);
    let other = scene.open_again().await;
    let last = node(&other).handler_with(Ledger::posting(), only("WalletOpened"));
    let last = last.handler_with(Mail::posting(), only("WalletMoneyDeposited"));
    let last = last.start().await.unwrap();
    let unknowing = scene.node().start().await.unwrap();
    scene.open_wallet().await;
    scene.until_posted(1).await;
    unknowing.drain(Duration::from_secs(60)).await;
    let operations = scene.operations();
    operations.retire(LEDGER, "alice", "no ledger any more").await.unwrap();
    operations.retire("mail.send", "alice", "no mails any more").await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 1).await;
    scene.until_posted(3).await;
    scene.until_handled(LEDGER).await;
    scene.until_handled("mail.send").await;
    last.drain(Duration::from_secs(60)).await;
    let both = HandlerOptions::default().only(["WalletOpened", "WalletMoneyDeposited"]);
    let both = both.alias(LEDGER).alias("mail.send");
    let returned = node(&other).handler_with(Renamed::posting(), both).start().await.unwrap();
    deposit(&other, wallet, 1).await;
    scene.until_posted(4).await;
    scene.until_handled(RENAMED).await;
    let mut posted = scene.posted(wallet).await;
    posted.sort_unstable();
    assert_eq!(posted, [1, 2, 3]);
    returned.drain(Duration::from_secs(60)).await;
}

/// A later release wants more events. Its registration and the pause have both read when one of them writes.
async fn a_registration_beside_a_pause_loses_neither(scene: &Scene) {
    let first = scene.node().handler_with(Ledger::posting(), openings()).start().await.unwrap();
    first.drain(Duration::from_secs(60)).await;
    let other = scene.open_again().await;
    let operations = scene.operations();
    let registry = scene.scratch.eventlog("subscription_registry");
    // Afterwards both rows of the registry are there.
    operations.pause(LEDGER, "alice", "a mistake").await.unwrap();
    operations.resume(LEDGER, "alice", "a mistake").await.unwrap();
    let mut holder = scene.scratch.connect().await;
    holder.execute("BEGIN").await;
    holder.execute(&format!("SELECT 1 FROM {registry} FOR UPDATE")).await;
    let pausing = operations.pause(LEDGER, "alice", "the ledger is audited");
    let registering = node(&other).handler(Ledger::posting()).start();
    let releasing = async {
        until("both wait", async || scene.scratch.waiting_for_locks().await == 2).await;
        holder.execute("ROLLBACK").await;
    };
    let (paused, node, ()) = tokio::join!(pausing, registering, releasing);
    paused.unwrap();
    node.unwrap().drain(Duration::from_secs(60)).await;
    let subscriptions = format!("FROM {}", scene.scratch.eventlog("subscriptions"));
    let states = scene.scratch.select(&["state"], &subscriptions).await;
    assert!(states.len() > 1, "nothing was registered");
    assert!(states.iter().all(|row| row[0].as_deref() == Some("PAUSED")), "{states:?}");
}

/// A release that wants none of the events of the one before, and then one that also has another name.
async fn a_pause_outlives_a_release_that_wants_other_events(scene: &Scene) {
    let first = scene.node().handler_with(Ledger::posting(), openings()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled(LEDGER).await;
    first.drain(Duration::from_secs(60)).await;
    let operations = scene.operations();
    operations.pause(LEDGER, "alice", "the ledger is audited").await.unwrap();
    let is_paused = async |handler: &str| {
        let status = operations.status().await.unwrap();
        status.iter().any(|of| of.handler == handler && of.is_paused && !of.is_retired)
    };
    let closings = HandlerOptions::default().only(["WalletClosed"]);
    let second = scene.node().handler_with(Ledger::posting(), closings).start().await.unwrap();
    assert!(is_paused(LEDGER).await);
    second.drain(Duration::from_secs(60)).await;
    let deposits = HandlerOptions::default().only(["WalletMoneyDeposited"]).alias(LEDGER);
    let third = scene.node().lease(Duration::from_secs(1));
    let _third = third.handler_with(Renamed::posting(), deposits).start().await.unwrap();
    assert!(is_paused(RENAMED).await);
    scene.deposit(wallet, 1).await;
    until("the deposit waits", async || operations.pending(RENAMED).await.unwrap() == 1).await;
    operations.resume(RENAMED, "alice", "the audit is over").await.unwrap();
    scene.until_handled(RENAMED).await;
    assert_eq!(scene.posted(wallet).await, [1, 2]);
}

async fn what_has_another_name_or_is_retired_is_neither_paused_nor_resumed(scene: &Scene) {
    let renamed = HandlerOptions::default().alias(LEDGER);
    let old = scene.node().handler(Ledger::posting()).start().await.unwrap();
    old.drain(Duration::from_secs(30)).await;
    let node = scene.node().handler_with(Renamed::posting(), renamed).start().await.unwrap();
    node.drain(Duration::from_secs(30)).await;
    let operations = scene.operations();
    let refused = async |handler: &str| {
        for refused in [
            operations.pause(handler, "alice", "a test").await,
            operations.resume(handler, "alice", "a test").await,
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, EventsError::FormerHandler { .. }), "{error}");
        }
    };
    refused(LEDGER).await;
    operations.pause(RENAMED, "alice", "a test").await.unwrap();
    operations.resume(RENAMED, "alice", "a test").await.unwrap();
    operations.retire(RENAMED, "alice", "a test").await.unwrap();
    refused(RENAMED).await;
    let log = scene.scratch.eventlog("interventions");
    assert_eq!(scene.scratch.count(&log).await, 3, "nothing is said to be done that was not");
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

/// The nodes are stopped, the handler is retired, and they are started again.
async fn a_handler_that_is_retired_and_comes_back_loses_no_event_of_a_process_without_a_node(
    scene: &Scene,
) {
    let options = || HandlerOptions::default().max_age(None);
    let start =
        async || scene.node().handler_with(Ledger::posting(), options()).start().await.unwrap();
    let node = start().await;
    let other = scene.open_again().await;
    let wallet = open_wallet(&other).await;
    scene.until_posted(1).await;
    node.drain(Duration::from_secs(60)).await;
    deposit(&other, wallet, 2).await;
    let operations = scene.operations();
    let moved = operations.retire(LEDGER, "alice", "the release was taken back").await.unwrap();
    deposit(&other, wallet, 1).await;
    let _node = start().await;
    until("the last one is posted", async || scene.posted(wallet).await == [1, 4]).await;
    let letters = operations.count(&DeliveryFilter::settled_letters(LEDGER)).await.unwrap();
    assert_eq!((moved, letters), (2, 2));
}

/// An application had two handlers, and has one in their place.
async fn a_handler_that_takes_over_from_two_present_ones_gets_each_event_once(scene: &Scene) {
    let node = scene.node().handler(Ledger::posting()).handler(Mail::posting());
    let node = node.start().await.unwrap();
    let earlier = scene.open_wallet().await;
    until("both have handled it", async || scene.posted(earlier).await == [1, 1]).await;
    node.drain(Duration::from_secs(60)).await;
    let options = HandlerOptions::default().alias(LEDGER).alias("mail.send");
    let _node = scene.node().handler_with(Renamed::posting(), options).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 3).await;
    for name in [LEDGER, "mail.send", RENAMED] {
        scene.until_handled(name).await;
    }
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4]);
    assert_eq!(scene.posted(earlier).await, [1, 1]);
}

/// What an operator does who lets the others go on.
async fn what_waits_behind_a_parked_event_goes_on_when_its_handler_has_no_order_any_more(
    scene: &Scene,
) {
    let node = scene.node().handler_with(closed_to_openings(), once()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    two_are_blocked(scene, wallet).await;
    node.drain(Duration::from_secs(60)).await;
    // A check finds them after ten minutes.
    let (deliveries, due) = (scene.scratch.eventlog("deliveries"), "2026-01-01T00:00:00.000000Z");
    let due = format!("UPDATE {deliveries} SET due = '{due}' WHERE state = 'BLOCKED'");
    scene.scratch.execute(&due).await;
    let options = HandlerOptions::unordered().max_attempts(1);
    let node = scene.node().handler_with(closed_to_openings(), options);
    let _node = node.start().await.unwrap();
    until("the others are posted", async || scene.posted(wallet).await.len() == 2).await;
}

async fn what_waits_behind_a_parked_event_of_a_retired_name_goes_on(scene: &Scene) {
    let node = scene.node().handler_with(closed_to_openings(), once()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    let operations = scene.operations();
    until("one is parked", async || !operations.parked(1).await.unwrap().is_empty()).await;
    node.drain(Duration::from_secs(60)).await;
    let node = scene.node().handler_with(Renamed::posting(), once().alias(LEDGER));
    let _node = node.start().await.unwrap();
    two_are_blocked(scene, wallet).await;
    assert_eq!(operations.retire(LEDGER, "alice", "it has another name").await.unwrap(), 1);
    until("the others are posted", async || scene.posted(wallet).await == [2, 3]).await;
}

fn once() -> HandlerOptions {
    HandlerOptions::default().max_attempts(1)
}

fn closed_to_openings() -> Ledger {
    Ledger::new(|ctx, event| match event.model_version {
        Some(1) => async { Err("the ledger is closed".into()) }.boxed(),
        _ => post(ctx, event),
    })
}

async fn two_are_blocked(scene: &Scene, wallet: Id<Wallet>) {
    scene.deposit(wallet, 2).await;
    until("two wait behind a parked one", async || {
        let all = scene.operations().status().await.unwrap();
        all.iter().map(|of| of.blocked).sum::<u64>() == 2
    })
    .await;
}
