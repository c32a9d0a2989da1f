//! Handlers that fail: retried, parked, dead letters.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::events::{AfterLastAttempt, HandlerOptions};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::{Dialect, Recorder, TestClock, instant, until};

use crate::backlog::closings;
use crate::scene::{Ledger, Scene, executor, node, open_wallet, post};

on_every_database! {
    a_failed_event_is_tried_again_and_not_overtaken,
    a_panic_and_a_timeout_fail_their_own_event_only,
    a_parked_event_stops_its_own_model_only,
    a_parked_event_that_is_skipped_lets_its_model_go_on,
    a_dead_letter_lets_its_model_go_on_and_can_be_replayed,
    an_event_that_is_too_old_is_given_up_without_a_run,
    an_event_that_grows_too_old_between_two_runs_is_given_up_without_the_second,
}

on_every_database! {
    on_sqlite_only:
    a_panic_makes_only_its_own_event_run_again,
    a_new_handler_tries_its_old_history_ten_times,
}

fn quick() -> HandlerOptions {
    HandlerOptions::default().retry(Duration::from_millis(1), Duration::from_millis(5))
}

/// A ledger that fails at a version of every wallet, up to so many times.
fn failing(version: i64, times: u32) -> Ledger {
    Ledger::new(move |ctx, event| {
        if event.model_version == Some(version) && event.attempt <= times {
            return async { Err("the ledger is closed".into()) }.boxed();
        }
        post(ctx, event)
    })
}

async fn a_failed_event_is_tried_again_and_not_overtaken(scene: &Scene) {
    let ledger = failing(2, 2);
    let seen = ledger.seen();
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 3).await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4]);
    let runs: Vec<(i64, u32)> =
        seen.lock().unwrap().iter().map(|seen| (seen.version, seen.attempt)).collect();
    assert_eq!(runs, [(1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1)]);
}

async fn a_panic_and_a_timeout_fail_their_own_event_only(scene: &Scene) {
    let ledger = Ledger::new(|ctx, event| match (event.model_version, event.attempt) {
        (Some(2), 1) => async { panic!("a handler that panics") }.boxed(),
        (Some(3), 1) => async {
            std::future::pending::<()>().await;
            Ok(())
        }
        .boxed(),
        _ => post(ctx, event),
    });
    let options = quick().timeout(Duration::from_millis(500));
    let node = scene.node().handler_with(ledger, options).start().await.unwrap();
    let wallets = [scene.open_wallet().await, scene.open_wallet().await];
    for wallet in wallets {
        scene.deposit(wallet, 3).await;
    }
    scene.until_handled("ledger.post").await;
    for wallet in wallets {
        assert_eq!(scene.posted(wallet).await, [1, 2, 3, 4]);
    }
    // One that was late as well, after its commit was sent, counts as neither.
    assert!(node.handlers()[0].failed >= 4);
}

/// Nothing is late, so each run tells whether its event failed.
async fn a_panic_makes_only_its_own_event_run_again(scene: &Scene) {
    let ledger = Ledger::new(|ctx, event| match (event.model_version, event.attempt) {
        (Some(2), 1) => async { panic!("a handler that panics") }.boxed(),
        _ => post(ctx, event),
    });
    let seen = ledger.seen();
    let options = quick().timeout(Duration::from_secs(600));
    let node = scene.node().handler_with(ledger, options).start().await.unwrap();
    let wallets = [scene.open_wallet().await, scene.open_wallet().await];
    for wallet in wallets {
        scene.deposit(wallet, 3).await;
    }
    scene.until_handled("ledger.post").await;
    for wallet in wallets {
        let seen = seen.lock().unwrap();
        let of_wallet = seen.iter().filter(|seen| seen.wallet == wallet.to_string());
        let runs: Vec<_> = of_wallet.map(|seen| (seen.version, seen.attempt)).collect();
        assert_eq!(runs, [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1)]);
    }
    assert_eq!(node.handlers()[0].failed, 2);
}

async fn a_parked_event_stops_its_own_model_only(scene: &Scene) {
    let ledger = failing(2, 1);
    let options = quick().max_attempts(1);
    let _node = scene.node().handler_with(ledger, options).start().await.unwrap();
    let (poisoned, other) = (scene.open_wallet().await, scene.open_wallet().await);
    scene.deposit(poisoned, 30).await;
    until("the event is parked", async || !scene.operations().parked(10).await.unwrap().is_empty())
        .await;
    // The other wallet has no poisoned version: its second one was tried before.
    let parked = scene.operations().parked(10).await.unwrap();
    assert_eq!((parked.len(), parked[0].model_version, parked[0].attempts), (1, 2, 1));
    assert_eq!(parked[0].last_error.as_deref(), Some("the ledger is closed"));
    scene.until_posted(2).await;
    assert_eq!(scene.posted(other).await, [1]);
    assert_eq!(scene.posted(poisoned).await, [1]);

    // With all of its attempts again it would fail: version 2 fails at its first one.
    let operations = scene.operations();
    operations.retry(parked[0].id, "alice", "try again").await.unwrap();
    until("it is parked once more", async || {
        operations.parked(10).await.unwrap().iter().any(|row| row.attempts == 1)
    })
    .await;
    assert_eq!(scene.posted(poisoned).await, [1]);
}

async fn a_parked_event_that_is_skipped_lets_its_model_go_on(scene: &Scene) {
    let options = quick().max_attempts(1);
    let _node = scene.node().handler_with(failing(2, 9), options).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 20).await;
    let operations = scene.operations();
    until("the event is parked", async || !operations.parked(10).await.unwrap().is_empty()).await;
    let id = operations.parked(10).await.unwrap()[0].id;
    operations.skip(id, "alice", "posted by hand").await.unwrap();
    // Also those that come now.
    scene.deposit(wallet, 5).await;
    scene.until_handled("ledger.post").await;
    let all_but_the_second: Vec<i64> = (1..=26).filter(|version| *version != 2).collect();
    assert_eq!(scene.posted(wallet).await, all_but_the_second);
    assert!(operations.dead_letters(10).await.unwrap().is_empty(), "it is settled");
    let letters = scene.scratch.eventlog("dead_letters");
    let from = format!("FROM {letters}");
    let rows = scene.scratch.select(&["settled_by", "settled_why", "error"], &from).await;
    let expected =
        ["alice", "posted by hand", "the ledger is closed"].map(|text| Some(text.to_owned()));
    assert_eq!(rows[0][..], expected);
    let again = operations.skip(id, "bob", "twice").await.unwrap_err().to_string();
    assert_eq!(again, format!("there is no delivery {id} on shard 0/0 that is parked"));
}

async fn a_dead_letter_lets_its_model_go_on_and_can_be_replayed(scene: &Scene) {
    let options = quick().max_attempts(2).dead_letters();
    assert_eq!(options.after_last_attempt, AfterLastAttempt::DeadLetter);
    let node = scene.node().handler_with(failing(2, 2), options.clone()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 3).await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1, 3, 4]);
    let operations = scene.operations();
    let letters = operations.dead_letters(10).await.unwrap();
    assert_eq!((letters.len(), letters[0].attempts, letters[0].model_version), (1, 2, 2));
    node.drain(Duration::from_secs(60)).await;

    let _node = scene.node().handler_with(Ledger::posting(), options).start().await.unwrap();
    operations.replay(&letters[0], "alice", "the ledger is open again").await.unwrap();
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1, 3, 4, 2]);
    assert!(operations.dead_letters(10).await.unwrap().is_empty());
    let twice = operations.replay(&letters[0], "alice", "again").await.unwrap_err().to_string();
    assert!(twice.contains("there is no dead letter"), "{twice}");
}

async fn an_event_that_is_too_old_is_given_up_without_a_run(scene: &Scene) {
    let wallet = scene.open_wallet().await;
    let ledger = Ledger::posting();
    let seen = ledger.seen();
    let options = quick().max_age(Duration::ZERO).dead_letters();
    let _node = scene.node().handler_with(ledger, options).start().await.unwrap();
    until("the event is a dead letter", async || {
        !scene.operations().dead_letters(10).await.unwrap().is_empty()
    })
    .await;
    assert!(seen.lock().unwrap().is_empty());
    assert!(scene.posted(wallet).await.is_empty());
    let letters = scene.operations().dead_letters(10).await.unwrap();
    assert!(letters[0].error.contains("older than 0ns"), "{}", letters[0].error);
}

async fn an_event_that_grows_too_old_between_two_runs_is_given_up_without_the_second(
    scene: &Scene,
) {
    let clock = Arc::new(TestClock::default());
    let executor = executor(&scene.databases.clone().with_clock(clock.clone())).await;
    let ledger = failing(1, u32::MAX);
    let seen = ledger.seen();
    let hour = Duration::from_secs(60 * 60);
    // Half an hour at least, and so no second run until the clock is set.
    let options = quick().retry(hour, hour).max_age(hour).dead_letters();
    let _node = node(&executor).handler_with(ledger, options).start().await.unwrap();
    open_wallet(&executor).await;
    let deliveries = scene.scratch.eventlog("deliveries");
    let failed = format!("FROM {deliveries} WHERE state = 'WAITING' AND attempts = 1");
    until("the first run has failed", async || {
        scene.scratch.select(&["id"], &failed).await.len() == 1
    })
    .await;
    clock.set(instant(60 * 60 + 1));
    until("the event is a dead letter", async || {
        !scene.operations().dead_letters(10).await.unwrap().is_empty()
    })
    .await;
    assert_eq!(seen.lock().unwrap().len(), 1);
    let letters = scene.operations().dead_letters(10).await.unwrap();
    assert!(letters[0].error.contains("older than 3600s"), "{}", letters[0].error);
    assert!(letters[0].error.ends_with("the ledger is closed"), "{}", letters[0].error);
}

/// Its events are much older than a week, the age at which events are given up.
async fn a_new_handler_tries_its_old_history_ten_times(scene: &Scene) {
    let (mended, broken) = (Uuid::now_v7(), Uuid::now_v7());
    let ledger = Ledger::new(move |ctx, event| {
        if event.model_id == broken.to_string() || event.attempt < 3 {
            return async { Err("the ledger is closed".into()) }.boxed();
        }
        post(ctx, event)
    });
    scene.insert_events(&closings(mended, 1..=2)).await;
    scene.insert_events(&closings(broken, 1..=1)).await;
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    until("the history is posted", async || scene.posted(Id::from_uuid(mended)).await == [1, 2])
        .await;
    let operations = scene.operations();
    until("the other one is given up", async || !operations.parked(10).await.unwrap().is_empty())
        .await;
    assert_eq!(operations.parked(10).await.unwrap()[0].attempts, 10);
}

/// What is logged is recorded on one thread only.
#[tokio::test]
async fn the_log_tells_a_parked_event_from_a_dead_letter() {
    for (options, ends) in [
        (
            quick().max_attempts(1),
            "later events of its model wait until an operator retries or skips it",
        ),
        (
            HandlerOptions::unordered().max_attempts(1),
            "an event is given up and parked until an operator retries or skips it",
        ),
        (quick().max_attempts(1).dead_letters(), "later events of its model are handled"),
    ] {
        let scene = Scene::start(Dialect::Sqlite).await;
        let (recorder, _guard) = Recorder::start();
        let _node = scene.node().handler_with(failing(1, 9), options).start().await.unwrap();
        let wallet = scene.open_wallet().await;
        let logged = || {
            let all = recorder.all().into_iter();
            let mut messages = all.filter_map(|of| Some((of.field("message")?.to_owned(), of)));
            messages.find(|(message, _)| message.starts_with("an event is given up"))
        };
        until("it is logged", async || logged().is_some()).await;
        let (message, event) = logged().unwrap();
        assert!(message.ends_with(ends), "{message}");
        assert_eq!(event.field("model"), Some(&*wallet.to_string()));
        assert_eq!(
            (event.field("handler"), event.field("attempts")),
            (Some("ledger.post"), Some("1"))
        );
    }
}
