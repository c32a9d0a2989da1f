//! A call that does not use its turn, or uses it for too long, loses it. Nobody is harmed by that:
//! the calls behind it go on, its group commits, and the late call itself has a right answer.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::action::{Coalesced, ErrorKind, Outcome};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use support::TestDatabase;
use support::things::{Thing, quiet, thing};

use crate::acts::{Act, Call, Gate, Groups, Refused, a_thing, act, enqueued, event_versions};
use crate::acts::{hold, in_queue, poll_once, together, touch, touch_after_reading};

on_every_database! {
    a_call_that_nobody_polls_passes_its_turn_on,
    a_call_that_stops_in_the_middle_loses_its_turn,
    a_group_commits_although_its_last_call_is_not_polled,
    a_late_call_that_read_uncommitted_rows_runs_again,
    a_call_may_await_a_spawned_call_on_its_key,
    a_turn_that_nobody_waits_for_has_no_bound,
    a_call_in_an_open_transaction_waits_for_no_turn,
}

/// Groups that are bounded by the turns of their calls only.
fn impatient() -> Coalesced {
    together().turn(Duration::from_millis(20))
}

fn impatiently<'a, O: Send>(
    executor: &'a ActionExecutor,
    act: &'a Act<O>,
) -> ekbatan::action::Execution<'a, Act<O>> {
    in_queue(executor, act).contention(impatient())
}

/// Waits for something that must not depend on a future that the test does not poll.
async fn bounded<T>(what: &str, waiting: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    waited.unwrap_or_else(|_| panic!("{what} waits for a call that nobody polls"))
}

/// Polls the call until it passes the gate, and no further.
async fn until_passed<'a, O>(call: Call<'a, O>, gate: &Gate) -> Call<'a, O> {
    let passed = std::pin::pin!(gate.pass());
    match select(passed, call).await {
        Either::Left(((), call)) => call,
        Either::Right(_) => panic!("the call returned before it opened the gate"),
    }
}

async fn a_call_that_nobody_polls_passes_its_turn_on(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let (holds, first, second) = (hold(&gate), touch(id), touch(id));
    let holding = enqueued(impatiently(&executor, &holds)).await;
    let first = enqueued(impatiently(&executor, &first)).await;
    gate.open();
    holding.await.unwrap(); // which grants the turn to the first call
    let second = bounded("the second call", impatiently(&executor, &second).into_future()).await;
    assert_eq!(second.unwrap().version(), 2);
    assert_eq!(first.await.unwrap().version(), 3);
    assert_eq!(event_versions(db, id).await, [2, 3]);
}

async fn a_call_that_stops_in_the_middle_loses_its_turn(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let (slow, read, gate) = touch_after_reading(id);
    let second = touch(id);
    let first = until_passed(impatiently(&executor, &slow).into_future(), &read).await;
    let second = bounded("the second call", impatiently(&executor, &second).into_future()).await;
    assert_eq!(second.unwrap().version(), 2);
    gate.open();
    // What it read is stale, so it runs again.
    assert_eq!(first.await.unwrap().version(), 3);
    assert_eq!(slow.runs(), 2);
}

async fn a_group_commits_although_its_last_call_is_not_polled(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let (holds, first, second, last) = (hold(&gate), touch(id), touch(id), touch(id));
    let holding = enqueued(impatiently(&executor, &holds)).await;
    let mut first = enqueued(impatiently(&executor, &first)).await;
    let dropped = impatiently(&executor, &second);
    let action = dropped.action_id();
    let mut dropped = enqueued(dropped).await;
    let last = enqueued(impatiently(&executor, &last)).await;
    gate.open();
    holding.await.unwrap();
    // The second call runs on the rows of the first one, and passes the turn to the last one.
    while second.runs() == 0 {
        assert!(poll_once(&mut first).await.is_pending());
        assert!(poll_once(&mut dropped).await.is_pending());
        tokio::task::yield_now().await;
    }
    drop(dropped);
    assert_eq!(bounded("the first call", first).await.unwrap().version(), 2);
    let outcome = bounded("the outcome", executor.outcome(action)).await.unwrap();
    // It is not committed if it was dropped before it joined the group.
    let versions = 3 + i64::from(outcome == Outcome::Committed);
    assert_eq!(last.await.unwrap().version(), versions);
}

async fn a_late_call_that_read_uncommitted_rows_runs_again(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    for _ in 0..100 {
        let before = db.things().get(id).await.unwrap().small;
        let (read, answer, runs) = late_in_a_refused_group(&executor, id).await;
        // On a busy machine the first call may lose its turn before it has changed the row.
        if read == UNCOMMITTED {
            assert_eq!((answer, runs), (format!("refused: at {}", before + 1), 2));
            return;
        }
    }
    panic!("no late call has read what its group had not committed");
}

/// What the first call of a group writes before the group is refused.
const UNCOMMITTED: i32 = 100;

/// A call that reads in a group that is refused, and goes on when another call has committed.
/// Returns what it read at first, its answer, and how often it ran.
async fn late_in_a_refused_group(executor: &ActionExecutor, id: Id<Thing>) -> (i32, String, u32) {
    let start = Gate::closed();
    // Its label is taken: its group is refused.
    let adds = act(move |ctx| {
        async move {
            let read = ctx.get(id).await.unwrap();
            ctx.plan().add(quiet(thing("the thing")));
            Ok(ctx.plan().update(read.apply(|thing| thing.small = UNCOMMITTED)))
        }
        .boxed()
    });
    let (read, gate, reads) = (Gate::closed(), Gate::closed(), Arc::new(Mutex::new(Vec::new())));
    let (has_read, may_go_on, noted) = (read.clone(), gate.clone(), reads.clone());
    let late = act::<()>(move |ctx| {
        let (read, gate, noted) = (has_read.clone(), may_go_on.clone(), noted.clone());
        async move {
            let small = ctx.get(id).await.unwrap().small;
            noted.lock().unwrap().push(small);
            read.open();
            gate.pass().await;
            Err(Refused(format!("at {small}")))
        }
        .boxed()
    });
    let (holds, third) = (hold(&start), touch(id));
    let holding = enqueued(impatiently(executor, &holds)).await;
    let adds = enqueued(impatiently(executor, &adds)).await;
    let late_call = enqueued(impatiently(executor, &late)).await;
    start.open();
    holding.await.unwrap();
    let adding = tokio::join!(until_passed(late_call, &read), async {
        bounded("the first call", adds).await
    });
    let (late_call, added) = adding;
    added.unwrap_err();
    bounded("the third call", impatiently(executor, &third).into_future()).await.unwrap();
    gate.open();
    let answer = late_call.await.unwrap_err().to_string();
    let first = reads.lock().unwrap()[0];
    (first, answer, late.runs())
}

async fn a_call_may_await_a_spawned_call_on_its_key(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let other = db.things().add(quiet(thing("other"))).await.unwrap().id;
    let executor = db.executor().await;
    let inner = executor.clone();
    let outer = act(move |ctx| {
        let executor = inner.clone();
        async move {
            let spawned = tokio::spawn(async move {
                impatiently(&executor, &touch(other)).await.map(drop).unwrap();
            });
            spawned.await.unwrap();
            let thing = ctx.get(id).await.unwrap();
            Ok(ctx.plan().update(thing.apply(|thing| thing.small += 1)))
        }
        .boxed()
    });
    let call = impatiently(&executor, &outer).into_future();
    assert_eq!(bounded("the spawned call", call).await.unwrap().version(), 2);
    assert_eq!(db.things().get(other).await.unwrap().version(), 2);
    assert_eq!(outer.runs(), 1);
}

/// The call keeps its turn, so it is the first of the group that waits for the gate.
async fn a_turn_that_nobody_waits_for_has_no_bound(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let (slow, read, gate) = touch_after_reading(id);
    let eager = together().turn(Duration::ZERO);
    let call = in_queue(&executor, &slow).contention(eager).into_future();
    let call = until_passed(call, &read).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    gate.open();
    assert_eq!(call.await.unwrap().version(), 2);
    assert_eq!(slow.runs(), 1);
}

/// Its group would be committed by another task, beside the transaction, and might wait for it.
async fn a_call_in_an_open_transaction_waits_for_no_turn(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let (holds, touches) = (hold(&gate), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let transactions = db.databases.transactions();
    let answer = transactions.in_transaction(async |_| {
        let call = in_queue(&executor, &touches).into_future();
        Ok::<_, Refused>(bounded("a call in a transaction", call).await)
    });
    let refused = answer.await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
    gate.open();
    holding.await.unwrap();
    assert_eq!(db.things().get(id).await.unwrap().version(), 1);
}

mod put_back {
    use super::*;

    on_every_database! { only postgres: a_call_that_runs_again_waits_for_none_that_nobody_polls }

    async fn a_call_that_runs_again_waits_for_none_that_nobody_polls(db: &TestDatabase) {
        let (groups, _counting) = Groups::count();
        let id = a_thing(db).await.id;
        let executor = db.executor().await;
        let (start, never) = (Gate::closed(), Gate::closed());
        let (holds, first, second, third) = (hold(&start), touch(id), hold(&never), hold(&never));
        let holding = enqueued(in_queue(&executor, &holds)).await;
        // The time of its group ends in the turn of the second call.
        let soon = together().time(Duration::from_millis(1));
        let mut first = enqueued(in_queue(&executor, &first).contention(soon)).await;
        let mut second = enqueued(in_queue(&executor, &second)).await;
        let mut other = db.connect().await;
        let overtakes = format!("UPDATE things SET version = 2 WHERE id = '{id}'");
        other.execute(&format!("BEGIN; {overtakes}")).await;
        start.open();
        holding.await.unwrap();
        while groups.sizes().is_empty() {
            assert!(poll_once(&mut first).await.is_pending());
            assert!(poll_once(&mut second).await.is_pending());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Its commit waits for the other transaction, and no call holds the key.
        drop(second);
        tokio::time::sleep(Duration::from_millis(200)).await;
        let _third = enqueued(impatiently(&executor, &third)).await;
        other.execute("COMMIT").await;
        assert_eq!(bounded("the first call", first).await.unwrap().version(), 3);
    }
}
