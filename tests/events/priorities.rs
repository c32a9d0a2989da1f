//! Which of the enqueued calls that are due begin first.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ekbatan::action::Priority;
use ekbatan::events::{HandlerOptions, Node};
use ekbatan::prelude::*;
use support::{Dialect, until};

use crate::calls::{Gated, Step, Steps, enqueue, run, waiting};
use crate::scene::{PostEntry, Scene, node};

on_every_database! {
    calls_of_higher_priority_begin_first,
    a_node_that_is_full_of_low_calls_runs_a_high_one_next,
    a_high_call_waits_for_a_low_one_with_its_key_in_turn,
    a_retry_keeps_its_priority,
    delayed_calls_that_are_due_together_begin_by_their_priority,
    a_unique_call_that_waits_keeps_its_priority,
}

const HIGH: i64 = 1;
const LOW: i64 = -1;

/// How many calls of one priority a slow node holds.
const HELD: usize = 64;

fn step(number: i64, priority: i64) -> Step {
    Step { number, priority, ..Step::default() }
}

fn steps(numbers: impl IntoIterator<Item = i64>, priority: i64) -> Vec<Step> {
    numbers.into_iter().map(|number| step(number, priority)).collect()
}

fn all_of(enqueued: Vec<Step>) -> Steps {
    Steps { enqueued, ..Steps::default() }
}

/// A node that runs one call after another.
async fn one_at_a_time(executor: &ActionExecutor, action: impl Action + 'static) -> Node {
    let long = Duration::from_secs(600);
    let options = HandlerOptions::default().concurrency(1).timeout(long).retry(long, long);
    node(executor).action_with(action, options).start().await.unwrap()
}

/// How many calls of this priority the node has claimed.
async fn claimed(scene: &Scene, priority: i64) -> usize {
    let deliveries = scene.scratch.eventlog("deliveries");
    let claimed = format!("FROM {deliveries} WHERE state = 'CLAIMED' AND priority = {priority}");
    scene.scratch.select(&["id"], &claimed).await.len()
}

/// A node that has no room for more low calls, and whose first one waits for the gate. There are 200 of
/// them, from 1000 on.
async fn full_node(scene: &Scene) -> (Node, Gated) {
    enqueue(&scene.executor, all_of(steps(1_000..1_200, LOW))).await;
    let gated = Gated::new(0);
    let node = one_at_a_time(&scene.executor, gated.clone()).await;
    until("a call runs", async || gated.begun.load(Ordering::SeqCst) == 1).await;
    until("the node is full", async || claimed(scene, LOW).await == HELD).await;
    (node, gated)
}

async fn calls_of_higher_priority_begin_first(scene: &Scene) {
    for (first, priority) in [(2_000, LOW), (1_000, 0), (0, HIGH)] {
        enqueue(&scene.executor, all_of(steps(first..first + 80, priority))).await;
    }
    let _node = one_at_a_time(&scene.executor, PostEntry).await;
    scene.until_handled(PostEntry::NAME).await;
    let ranks: Vec<i64> = run(scene).await.into_iter().map(|number| number / 1_000).collect();
    assert_eq!(ranks.len(), 240);
    assert!(ranks.is_sorted(), "{ranks:?}");
}

async fn a_node_that_is_full_of_low_calls_runs_a_high_one_next(scene: &Scene) {
    let (_node, gated) = full_node(scene).await;
    // From a process without a node, so that the node has to look for it.
    let other = scene.open_again().await;
    enqueue(&other, all_of(vec![step(1, HIGH)])).await;
    until("the node has claimed the high call", async || claimed(scene, HIGH).await == 1).await;
    // By the process of the node, whose commit claims it.
    enqueue(&scene.executor, all_of(vec![step(2, HIGH)])).await;
    until("the node has claimed the other one", async || claimed(scene, HIGH).await == 2).await;
    // The node looks again once it has the answer to its look before.
    enqueue(&other, all_of(vec![step(3, HIGH)])).await;
    until("the node has looked again", async || claimed(scene, HIGH).await == 3).await;
    assert_eq!(gated.begun.load(Ordering::SeqCst), 1);
    gated.gate.add_permits(1);
    scene.until_handled(PostEntry::NAME).await;
    let numbers = run(scene).await;
    assert_eq!(numbers.len(), 203);
    assert!(soon(&numbers, 1) && soon(&numbers, 2), "{numbers:?}");
}

/// Whether a call has run before most of those that the node held. A claim is in the database a moment before
/// the node has it, and others may begin in between.
fn soon(numbers: &[i64], wanted: i64) -> bool {
    numbers.iter().take(HELD / 2).any(|number| *number == wanted)
}

async fn a_high_call_waits_for_a_low_one_with_its_key_in_turn(scene: &Scene) {
    let (_node, gated) = full_node(scene).await;
    let other = scene.open_again().await;
    for (number, priority) in [(1, LOW), (2, HIGH)] {
        let turn = Step { in_turn: Some("a".to_owned()), ..step(number, priority) };
        enqueue(&other, all_of(vec![turn])).await;
    }
    enqueue(&other, all_of(vec![step(3, 0)])).await;
    // The node claims the low one for the high one behind it, although it is full of low calls.
    until("the node has claimed the high call", async || claimed(scene, HIGH).await == 1).await;
    until("the node has claimed the normal one", async || claimed(scene, 0).await == 1).await;
    // The node looks again once it has the answer to its look before.
    enqueue(&other, all_of(vec![step(4, 0)])).await;
    until("the node has looked again", async || claimed(scene, 0).await == 2).await;
    gated.gate.add_permits(1);
    scene.until_handled(PostEntry::NAME).await;
    let numbers = run(scene).await;
    let at = |wanted| numbers.iter().position(|number| *number == wanted).unwrap();
    assert!(soon(&numbers, 3), "{numbers:?}");
    assert!(at(1) < at(2), "{numbers:?}");
}

async fn a_retry_keeps_its_priority(scene: &Scene) {
    // The high call is the last of its action, and begins first.
    let mut enqueued = steps(1..6, 0);
    enqueued.push(step(100, HIGH));
    enqueue(&scene.executor, all_of(enqueued)).await;
    let first = one_at_a_time(&scene.executor, Gated::failing(1)).await;
    until("the others have run", async || run(scene).await.len() == 5).await;
    until("they are marked", async || waiting(scene).await == 1).await;
    first.drain(Duration::from_secs(60)).await;
    let failing = scene.operations().failing(10).await.unwrap();
    assert_eq!((failing.len(), failing[0].priority), (1, Priority::High));
    enqueue(&scene.executor, all_of(steps(1_000..1_100, 0))).await;
    let long_ago = match scene.scratch.dialect {
        Dialect::Sqlite => "2020-01-01T00:00:00.000000Z",
        _ => "2020-01-01 00:00:00",
    };
    let deliveries = scene.scratch.eventlog("deliveries");
    let failed = "state = 'WAITING' AND attempts = 1";
    let is_due = format!("UPDATE {deliveries} SET due = '{long_ago}' WHERE {failed}");
    scene.scratch.execute(&is_due).await;
    let _node = one_at_a_time(&scene.executor, PostEntry).await;
    scene.until_handled(PostEntry::NAME).await;
    let numbers = run(scene).await;
    assert_eq!((numbers.len(), numbers[5]), (106, 100), "{numbers:?}");
}

async fn delayed_calls_that_are_due_together_begin_by_their_priority(scene: &Scene) {
    let _node = one_at_a_time(&scene.executor, PostEntry).await;
    let mut enqueued = Vec::new();
    for (first, priority) in [(200, LOW), (100, 0), (0, HIGH)] {
        enqueued.extend(steps(first..first + 5, priority));
    }
    enqueued.iter_mut().for_each(|step| step.after = Some(Duration::from_millis(300)));
    enqueue(&scene.executor, all_of(enqueued)).await;
    scene.until_handled(PostEntry::NAME).await;
    let numbers = run(scene).await;
    assert_eq!(numbers, (0..5).chain(100..105).chain(200..205).collect::<Vec<_>>());
}

async fn a_unique_call_that_waits_keeps_its_priority(scene: &Scene) {
    for (number, priority) in [(1, LOW), (2, HIGH)] {
        let unique = Step { unique: Some("a".to_owned()), ..step(number, priority) };
        enqueue(&scene.executor, all_of(vec![unique])).await;
    }
    enqueue(&scene.executor, all_of(vec![step(3, 0)])).await;
    let _node = one_at_a_time(&scene.executor, PostEntry).await;
    scene.until_handled(PostEntry::NAME).await;
    assert_eq!(run(scene).await, [3, 1]);
}
