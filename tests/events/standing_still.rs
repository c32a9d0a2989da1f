//! Deliveries that nothing moved, although nothing was in their way any more.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::events::HandlerOptions;
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::{Dialect, Recorder, until};
use tokio::sync::Semaphore;

use crate::backlog::closings;
use crate::calls::{Step, Steps, enqueue, run};
use crate::scene::{Ledger, Mail, PostEntry, Scene, post};

on_every_database! {
    a_model_with_the_nil_id_is_handled_beside_a_busy_one,
    a_blocked_event_without_a_parked_one_is_handled_with_the_next,
    all_that_a_lost_node_held_is_taken_over_at_once,
    a_call_does_not_wait_for_the_history_of_a_new_handler,
    a_node_that_knows_an_action_by_many_names_runs_its_calls,
}

mod on_sqlite {
    use super::*;

    on_every_database! { on_sqlite_only:
        a_check_releases_what_is_blocked_behind_nothing,
        an_event_whose_write_fails_leaves_no_other_one_blocked,
    }
}

fn quick() -> HandlerOptions {
    // The events of other programs have an old date.
    HandlerOptions::default()
        .retry(Duration::from_millis(1), Duration::from_millis(5))
        .max_age(None)
}

fn one_call(number: i64) -> Steps {
    Steps { enqueued: vec![Step { number, ..Step::default() }], ..Steps::default() }
}

/// Once a node holds enough deliveries of a model, its rounds leave that model out.
async fn a_model_with_the_nil_id_is_handled_beside_a_busy_one(scene: &Scene) {
    let busy = Uuid::now_v7();
    let gate = Arc::new(Semaphore::new(0));
    let closed = gate.clone();
    let ledger = Ledger::new(move |ctx, event| {
        let gate = closed.clone();
        async move {
            if event.model_id == busy.to_string() {
                let _open = gate.acquire().await?;
            }
            post(ctx, event).await
        }
        .boxed()
    });
    scene.insert_events(&closings(busy, 1..=200)).await;
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let node = scene.node().handler_with(ledger, quick().timeout(Duration::from_secs(600)));
    let _node = node.handler_with(mail, quick()).start().await.unwrap();
    let claimed = format!(
        "FROM {} WHERE handler = 'ledger.post' AND state = 'CLAIMED'",
        scene.scratch.eventlog("deliveries")
    );
    until("the node holds enough of the busy model, and the other handler is done", async || {
        scene.scratch.select(&["id"], &claimed).await.len() >= 8
            && scene.operations().pending("mail.send").await.unwrap() == 0
    })
    .await;
    scene.insert_events(&closings(Uuid::nil(), 1..=3)).await;
    until("the other handler has those of the nil id", async || {
        scene.posted(Id::from_uuid(Uuid::nil())).await.len() == 3
            && scene.operations().pending("mail.send").await.unwrap() == 0
    })
    .await;
    gate.add_permits(1_000);
    scene.until_handled("ledger.post").await;
}

/// The process that skipped the parked event died before it released those behind it.
async fn a_blocked_event_without_a_parked_one_is_handled_with_the_next(scene: &Scene) {
    let wallet = Uuid::now_v7();
    let ledger = Ledger::new(|ctx, event| match event.model_version {
        Some(1) => async { Err("broken".into()) }.boxed(),
        _ => post(ctx, event),
    });
    scene.insert_events(&closings(wallet, 1..=3)).await;
    let node = scene.node().handler_with(ledger, quick().max_attempts(1));
    let _node = node.start().await.unwrap();
    let deliveries = scene.scratch.eventlog("deliveries");
    until("two are blocked", async || {
        let blocked = format!("FROM {deliveries} WHERE state = 'BLOCKED'");
        scene.scratch.select(&["id"], &blocked).await.len() == 2
    })
    .await;
    scene.scratch.execute(&format!("DELETE FROM {deliveries} WHERE state = 'PARKED'")).await;
    scene.insert_events(&closings(wallet, 4..=4)).await;
    scene.until_posted(3).await;
    assert_eq!(scene.posted(Id::from_uuid(wallet)).await, [2, 3, 4]);
}

/// The same, and no event follows. A check looks at what is blocked, and once at each model.
async fn a_check_releases_what_is_blocked_behind_nothing(scene: &Scene) {
    let [freed, stuck] = [(); 2].map(|()| Uuid::now_v7());
    let start = async || {
        let ledger = Ledger::new(|ctx, event| match event.model_version {
            Some(1) => async { Err("broken".into()) }.boxed(),
            _ => post(ctx, event),
        });
        let node = scene.node().handler_with(ledger, quick().max_attempts(1));
        node.start().await.unwrap()
    };
    for wallet in [freed, stuck] {
        scene.insert_events(&closings(wallet, 1..=3)).await;
    }
    let deliveries = scene.scratch.eventlog("deliveries");
    let blocked = async |condition: &str| {
        let blocked = format!("FROM {deliveries} WHERE state = 'BLOCKED'{condition}");
        scene.scratch.select(&["id"], &blocked).await.len()
    };
    let node = start().await;
    until("those behind are blocked", async || blocked("").await == 4).await;
    node.drain(Duration::from_secs(60)).await;
    let freeing = format!("DELETE FROM {deliveries} WHERE state = 'PARKED' AND stream = '{freed}'");
    scene.scratch.execute(&freeing).await;
    let past = "2026-01-31T12:00:00.000000Z";
    let due = format!("UPDATE {deliveries} SET due = '{past}' WHERE state = 'BLOCKED'");
    scene.scratch.execute(&due).await;
    let _node = start().await;
    until("those of one model go on", async || scene.posted(Id::from_uuid(freed)).await == [2, 3])
        .await;
    let later = format!(" AND stream = '{stuck}' AND due > '{past}'");
    until("the others are looked at later", async || blocked(&later).await == 2).await;
    assert!(scene.posted(Id::from_uuid(stuck)).await.is_empty());
}

/// Each round puts off the second event of one model, which fails, and those of the other model with it.
async fn an_event_whose_write_fails_leaves_no_other_one_blocked(scene: &Scene) {
    let [freed, refused] = [(); 2].map(|()| Uuid::now_v7());
    let ledger = Ledger::new(|ctx, event| match event.model_version {
        Some(1) => async { Err("broken".into()) }.boxed(),
        _ => post(ctx, event),
    });
    scene.insert_events(&closings(freed, 1..=2)).await;
    scene.insert_events(&closings(refused, 1..=1)).await;
    let node = scene.node().handler_with(ledger, quick().max_attempts(1));
    let _node = node.start().await.unwrap();
    let deliveries = scene.scratch.eventlog("deliveries");
    until("two are parked, and one is blocked", async || {
        let states = scene.scratch.select(&["state"], &format!("FROM {deliveries}")).await;
        let of = |state| states.iter().filter(|row| row[0].as_deref() == Some(state)).count();
        of("PARKED") == 2 && of("BLOCKED") == 1
    })
    .await;
    let refusing = format!(
        "CREATE TRIGGER refused BEFORE UPDATE ON {deliveries} \
         WHEN NEW.stream = '{refused}' AND NEW.state = 'BLOCKED' \
         BEGIN SELECT RAISE(ABORT, 'refused'); END"
    );
    scene.scratch.execute(&refusing).await;
    scene.insert_events(&closings(refused, 2..=2)).await;
    let freeing = format!("DELETE FROM {deliveries} WHERE state = 'PARKED' AND stream = '{freed}'");
    scene.scratch.execute(&freeing).await;
    scene.insert_events(&closings(freed, 3..=3)).await;
    until("those behind nothing are handled", async || {
        scene.posted(Id::from_uuid(freed)).await == [2, 3]
    })
    .await;
}

/// What is logged is recorded on one thread only.
#[tokio::test]
async fn what_was_not_given_back_is_released_soon_although_the_node_does_not_look() {
    let scene = Scene::start(Dialect::Sqlite).await;
    let (recorder, _guard) = Recorder::start();
    let gate = Arc::new(Semaphore::new(0));
    let closed = gate.clone();
    let ledger = Ledger::new(move |ctx, event| {
        let gate = closed.clone();
        async move {
            if event.model_version == Some(1) && event.attempt == 1 {
                let _open = gate.acquire().await?;
                return Err("not yet".into());
            }
            post(ctx, event).await
        }
        .boxed()
    });
    let hour = Duration::from_secs(60 * 60);
    let node = scene.node().poll(hour, hour).doorbell(false);
    let node = node.handler_with(ledger, quick().timeout(hour));
    let _node = node.start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 1).await;
    let deliveries = scene.scratch.eventlog("deliveries");
    let keeping = format!(
        "CREATE TRIGGER kept BEFORE UPDATE ON {deliveries} \
         WHEN OLD.model_version = 2 BEGIN SELECT RAISE(ABORT, 'kept'); END"
    );
    scene.scratch.execute(&keeping).await;
    gate.add_permits(1);
    until("the second event is not given back", async || {
        let of_release = |message: &str| message.starts_with("a delivery was not given back");
        recorder.all().iter().any(|event| event.field("message").is_some_and(of_release))
    })
    .await;
    scene.scratch.execute("DROP TRIGGER kept").await;
    until("both are handled", async || scene.posted(wallet).await == [1, 2]).await;
}

async fn all_that_a_lost_node_held_is_taken_over_at_once(scene: &Scene) {
    // More than are released together twice, and few enough for one look of ten seconds.
    const EVENTS: i64 = 600;
    let wallet = Uuid::now_v7();
    let failing = Ledger::new(|_, _| async { Err("not yet".into()) }.boxed());
    let hour = Duration::from_secs(60 * 60);
    scene.insert_events(&closings(wallet, 1..=EVENTS)).await;
    let node = scene.node().handler_with(failing, quick().retry(hour, hour)).start().await.unwrap();
    until("all have their deliveries", async || {
        scene.operations().pending("ledger.post").await.unwrap() == EVENTS as u64
    })
    .await;
    node.drain(Duration::from_secs(60)).await;
    let lost = Uuid::now_v7();
    let deliveries = scene.scratch.eventlog("deliveries");
    let claimed = format!("UPDATE {deliveries} SET state = 'CLAIMED', node = '{lost}'");
    scene.scratch.execute(&claimed).await;
    // It raises its version with each beat of its heart, every four seconds.
    let node = scene.node().lease(Duration::from_secs(20));
    let _node = node.handler_with(Ledger::posting(), quick()).start().await.unwrap();
    let columns = [
        format!("(SELECT count(*) FROM {deliveries} WHERE node = '{lost}')"),
        format!("(SELECT max(version) FROM {})", scene.scratch.eventlog("nodes")),
    ];
    let mut beat = None;
    until("all are taken over", async || {
        let rows = scene.scratch.select(&[&columns[0], &columns[1]], "").await;
        let number = |at: usize| rows[0][at].as_deref().unwrap().parse::<i64>().unwrap();
        let (left, version) = (number(0), number(1));
        if (1..EVENTS).contains(&left) {
            assert_eq!(*beat.get_or_insert(version), version, "{left} are left for the next beat");
        }
        left == 0
    })
    .await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(Id::from_uuid(wallet)).await, (1..=EVENTS).collect::<Vec<i64>>());
}

async fn a_call_does_not_wait_for_the_history_of_a_new_handler(scene: &Scene) {
    scene.insert_events(&closings(Uuid::now_v7(), 1..=2_000)).await;
    let other = scene.open_again().await;
    // Each round gives one event its delivery.
    let node = scene.node().swept_at_once(1).handler_with(Ledger::posting(), quick());
    let _node = node.action_with(PostEntry, quick()).start().await.unwrap();
    // By a process without a node.
    enqueue(&other, one_call(1)).await;
    until("the call has run", async || run(scene).await == [1]).await;
    let events = scene.scratch.eventlog("events");
    let lacking = format!("FROM {events} WHERE event_type IS NOT NULL AND fanned_out IS NULL");
    let left = scene.scratch.select(&["count(*)"], &lacking).await;
    assert_ne!(left[0][0].as_deref(), Some("0"), "the call ran after the history");
}

/// A look asks for each name, priority and state by itself.
async fn a_node_that_knows_an_action_by_many_names_runs_its_calls(scene: &Scene) {
    let options = (0..100).fold(quick(), |options, n| options.alias(format!("earlier.name-{n}")));
    let other = scene.open_again().await;
    let node = scene.node().handler_with(Ledger::posting(), quick());
    let _node = node.action_with(PostEntry, options).start().await.unwrap();
    enqueue(&other, one_call(1)).await;
    scene.insert_events(&closings(Uuid::now_v7(), 1..=1)).await;
    until("both have run", async || scene.entries().count().await.unwrap() == 2).await;
    assert_eq!(run(scene).await, [1]);
}
