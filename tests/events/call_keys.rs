//! Calls with a unique key and a key in turn, and keys whose last call was cancelled.

use std::time::Duration;

use ekbatan::events::{HandlerOptions, Retention};
use ekbatan::prelude::*;
use support::{Dialect, until};

use crate::calls::{Gated, Step, Steps, enqueue, run, waiting};
use crate::scene::{PostEntry, Scene};

on_every_database! {
    a_call_with_both_keys_is_enqueued_once_and_cancelled,
    a_call_in_turn_does_not_wait_for_the_time_of_a_cancelled_one,
    a_key_stays_while_an_earlier_call_in_turn_waits,
    a_call_in_turn_behind_a_cancelled_one_that_was_given_up_waits_for_a_minute_at_most,
}

/// The keys are hashed, so that the database returns those of some pairs in one order and those of
/// others in the other.
const PAIRS: i64 = 12;

const MONTH: Duration = Duration::from_secs(30 * 24 * 60 * 60);

fn with_both_keys(number: i64, pair: i64) -> Step {
    let unique = Some(format!("unique {pair}"));
    Step { unique, ..in_turn(number, pair) }
}

fn in_turn(number: i64, pair: i64) -> Step {
    Step { number, in_turn: Some(format!("turn {pair}")), ..Step::default() }
}

fn all_of(enqueued: Vec<Step>) -> Steps {
    Steps { enqueued, ..Steps::default() }
}

async fn a_call_with_both_keys_is_enqueued_once_and_cancelled(scene: &Scene) {
    for number in [0, 100] {
        for pair in 0..PAIRS {
            enqueue(&scene.executor, all_of(vec![with_both_keys(number + pair, pair)])).await;
        }
    }
    assert_eq!(waiting(scene).await, PAIRS as u64, "of each pair one waits");
    for pair in 0..PAIRS {
        let cancelled = Some(format!("unique {pair}"));
        let later = Steps { cancelled, ..all_of(vec![in_turn(200 + pair, pair)]) };
        enqueue(&scene.executor, later).await;
    }
    assert_eq!(waiting(scene).await, PAIRS as u64, "the first ones are cancelled");
    let _node = scene.node().action(PostEntry).start().await.unwrap();
    scene.until_handled(PostEntry::NAME).await;
    let mut numbers = run(scene).await;
    numbers.sort_unstable();
    assert_eq!(numbers, (200..200 + PAIRS).collect::<Vec<i64>>());
}

async fn a_call_in_turn_does_not_wait_for_the_time_of_a_cancelled_one(scene: &Scene) {
    let in_a_month = Step { after: Some(MONTH), ..with_both_keys(1, 0) };
    enqueue(&scene.executor, all_of(vec![in_a_month])).await;
    enqueue(&scene.executor, all_of(vec![in_turn(2, 0)])).await;
    let _node = scene.node().action(PostEntry).start().await.unwrap();
    let deliveries = scene.scratch.eventlog("deliveries");
    let count = async |condition: &str| {
        let from = format!("FROM {deliveries} WHERE {condition}");
        scene.scratch.select(&["id"], &from).await.len()
    };
    until("both wait", async || count("state = 'WAITING'").await == 2).await;
    let later = date(&scene.scratch.dialect, Utc::now() + Duration::from_secs(60 * 60));
    assert_eq!(count(&format!("due > '{later}'")).await, 1, "only the first one waits for long");

    let cancelled = Some("unique 0".to_owned());
    enqueue(&scene.executor, Steps { cancelled, ..Steps::default() }).await;
    let now = date(&scene.scratch.dialect, Utc::now());
    scene.scratch.execute(&format!("UPDATE {deliveries} SET due = '{now}'")).await;
    scene.until_handled(PostEntry::NAME).await;
    assert_eq!(run(scene).await, [2]);
}

async fn a_key_stays_while_an_earlier_call_in_turn_waits(scene: &Scene) {
    enqueue(&scene.executor, all_of(vec![in_turn(1, 0)])).await;
    enqueue(&scene.executor, all_of(vec![with_both_keys(2, 0)])).await;
    let cancelled = Some("unique 0".to_owned());
    enqueue(&scene.executor, Steps { cancelled, ..Steps::default() }).await;
    let keys = scene.scratch.eventlog("enqueued_keys");
    let long_ago = date(&scene.scratch.dialect, Utc::now() - MONTH);
    scene.scratch.execute(&format!("UPDATE {keys} SET changed = '{long_ago}'")).await;
    let retention = Retention::new().keys(Retention::LEAST);
    assert_eq!(retention.run(&scene.databases).await.unwrap().keys, 1, "the unique key");
    enqueue(&scene.executor, all_of(vec![in_turn(3, 0)])).await;
    let _node = scene.node().action(PostEntry).start().await.unwrap();
    scene.until_handled(PostEntry::NAME).await;
    assert_eq!(run(scene).await, [1, 3]);
}

async fn a_call_in_turn_behind_a_cancelled_one_that_was_given_up_waits_for_a_minute_at_most(
    scene: &Scene,
) {
    enqueue(&scene.executor, all_of(vec![with_both_keys(1, 0)])).await;
    enqueue(&scene.executor, all_of(vec![in_turn(2, 0)])).await;
    let options = HandlerOptions::default().max_attempts(1);
    let node = scene.node().action_with(Gated::failing(1), options).start().await.unwrap();
    let deliveries = scene.scratch.eventlog("deliveries");
    let blocked = async |condition: &str| {
        let from = format!("FROM {deliveries} WHERE state = 'BLOCKED'{condition}");
        scene.scratch.select(&["id"], &from).await.len()
    };
    until("the second one is blocked", async || blocked("").await == 1).await;
    let later = date(&scene.scratch.dialect, Utc::now() + Duration::from_secs(2 * 60));
    assert_eq!(blocked(&format!(" AND due > '{later}'")).await, 0, "it is looked at soon");
    let cancelled = Some("unique 0".to_owned());
    enqueue(&scene.executor, Steps { cancelled, ..Steps::default() }).await;
    // The check finds it as it finds it after the minute.
    let now = date(&scene.scratch.dialect, Utc::now());
    scene.scratch.execute(&format!("UPDATE {deliveries} SET due = '{now}'")).await;
    scene.until_handled(PostEntry::NAME).await;
    assert_eq!(run(scene).await, [2]);
    node.drain(Duration::from_secs(10)).await;
}

/// As the framework stores dates.
fn date(dialect: &Dialect, at: DateTime<Utc>) -> String {
    let format = match dialect {
        Dialect::Sqlite => "%Y-%m-%dT%H:%M:%S.%6fZ",
        _ => "%Y-%m-%d %H:%M:%S",
    };
    at.format(format).to_string()
}
