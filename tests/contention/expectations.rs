//! Calls of a group that expect rows to be unchanged.

use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::TestDatabase;
use support::things::{Thing, ThingEvent, quiet, thing};

use crate::acts::{Act, Gate, Groups, a_thing, act, enqueued, hold, in_queue, touch};

on_every_database! {
    a_call_may_expect_what_an_earlier_call_of_its_group_changed,
    a_later_call_of_the_group_may_change_what_a_call_expects,
    a_group_is_refused_where_a_member_expects_a_changed_row,
}

/// Expects one thing to be unchanged, and touches another.
fn touch_expecting(id: Id<Thing>, other: Id<Thing>) -> Act<Stored<Thing>> {
    act(move |ctx| {
        async move {
            let other = ctx.get(other).await.unwrap();
            ctx.plan().expect(&other);
            let thing = ctx.get(id).await.unwrap();
            Ok(ctx.plan().update(thing.apply(|thing| {
                thing.small += 1;
                ThingEvent::Touched
            })))
        }
        .boxed()
    })
}

async fn another_thing(db: &TestDatabase) -> Id<Thing> {
    db.things().add(quiet(thing("another"))).await.unwrap().id
}

async fn versions(db: &TestDatabase, ids: [Id<Thing>; 2]) -> [i64; 2] {
    let [one, other] = ids;
    let version = async |id| db.things().get(id).await.unwrap().version();
    [version(one).await, version(other).await]
}

async fn a_call_may_expect_what_an_earlier_call_of_its_group_changed(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let (one, other) = (a_thing(db).await.id, another_thing(db).await);
    let executor = db.executor().await;
    let gate = Gate::closed();
    let (holds, change, expect) = (hold(&gate), touch(other), touch_expecting(one, other));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let changing = enqueued(in_queue(&executor, &change)).await;
    let expecting = enqueued(in_queue(&executor, &expect)).await;
    gate.open();
    let (_, changed, expected) = tokio::join!(holding, changing, expecting);
    assert_eq!((changed.unwrap().version(), expected.unwrap().version()), (2, 2));
    assert_eq!(versions(db, [one, other]).await, [2, 2]);
    assert_eq!(groups.sizes(), [2]);
}

async fn a_later_call_of_the_group_may_change_what_a_call_expects(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let (one, other) = (a_thing(db).await.id, another_thing(db).await);
    let executor = db.executor().await;
    let gate = Gate::closed();
    let (holds, expect, change) = (hold(&gate), touch_expecting(one, other), touch(other));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let expecting = enqueued(in_queue(&executor, &expect)).await;
    let changing = enqueued(in_queue(&executor, &change)).await;
    gate.open();
    let (_, expected, changed) = tokio::join!(holding, expecting, changing);
    assert_eq!((expected.unwrap().version(), changed.unwrap().version()), (2, 2));
    assert_eq!(versions(db, [one, other]).await, [2, 2]);
    assert_eq!(groups.sizes(), [2]);
}

/// Somebody else changes the expected row before the group commits. The group runs again.
async fn a_group_is_refused_where_a_member_expects_a_changed_row(db: &TestDatabase) {
    let (one, other) = (a_thing(db).await.id, another_thing(db).await);
    let executor = db.executor().await;
    let gate = Gate::closed();
    let things = db.things();
    let expect = touch_expecting(one, other);
    let overtake = act(move |ctx| {
        let things = things.clone();
        async move {
            let thing = ctx.get(one).await.unwrap();
            let seen = things.get(other).await.unwrap();
            if ctx.attempt() == 1 {
                // A task of its own may write inside `perform`.
                let writing = async move { things.update(seen.apply(|_| ())).await };
                tokio::spawn(writing).await.unwrap().unwrap();
            }
            Ok(ctx.plan().update(thing.apply(|thing| thing.small += 1)))
        }
        .boxed()
    });
    let holds = hold(&gate);
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let expecting = enqueued(in_queue(&executor, &expect)).await;
    let overtaking = enqueued(in_queue(&executor, &overtake)).await;
    gate.open();
    let (_, expected, overtaken) = tokio::join!(holding, expecting, overtaking);
    expected.and(overtaken).unwrap();
    assert_eq!(versions(db, [one, other]).await, [3, 2]);
    assert_eq!(expect.runs(), 2);
}
