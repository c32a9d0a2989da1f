//! What an action reads of the earlier calls in its group.

use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::{Condition, PageRequest};
use futures_util::{FutureExt, TryStreamExt};
use support::things::{Thing, ThingState, quiet, thing, zone};
use support::{PlainConnection, TestDatabase};

use crate::acts::touch_after_reading;
use crate::acts::{Act, Gate, Groups, Nothing, a_thing, act, enqueued, hold, in_queue, touch};

on_every_database! {
    reads_by_id_see_the_changes_of_earlier_calls,
    a_row_that_an_earlier_call_deleted_is_not_found,
    a_condition_waits_until_earlier_calls_are_committed,
    a_condition_on_an_unchanged_table_does_not_wait,
    an_action_does_not_see_its_own_plan,
    a_call_that_read_the_changes_of_a_failed_group_runs_again,
}

// The test locks one row.
support::test_matrix! {
    #[tokio::test]
    |dialect| &support::TestDatabase::start(&support::things::THINGS, dialect).await;
    [postgres_rows = support::Dialect::Postgres]
    [a_call_waits_for_what_a_task_of_its_action_has_sealed]
}

/// An action that returns the result of `ask` and changes nothing.
fn asks<O: Send + 'static>(
    ask: impl for<'c, 'x> Fn(&'c mut ActionContext<'x>) -> futures_util::future::BoxFuture<'c, O>
    + Send
    + Sync
    + 'static,
) -> Act<O> {
    let ask = std::sync::Arc::new(ask);
    act(move |ctx| {
        let ask = ask.clone();
        async move { Ok(ask(ctx).await) }.boxed()
    })
}

async fn reads_by_id_see_the_changes_of_earlier_calls(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let new = thing("new");
    let new_id = new.id;
    let add = act(move |ctx| {
        let new = new.clone();
        async move { Ok(ctx.plan().add(quiet(new))) }.boxed()
    });
    let see = asks(move |ctx| {
        async move {
            let things = ctx.repository::<Thing>();
            assert!(things.exists(new_id).await.unwrap());
            assert_eq!(things.find(new_id).await.unwrap().unwrap().version(), 1);
            assert_eq!(things.find(Id::new()).await.unwrap(), None);
            let mut both = things.find_by_ids(&[id, new_id, id, Id::new()]).await.unwrap();
            both.sort_by_key(|thing| thing.version());
            let replica = ctx.replica::<Thing>();
            assert_eq!(replica.get(id).await.unwrap().version(), 1);
            assert!(!replica.exists(new_id).await.unwrap());
            both.iter().map(|thing| thing.version()).collect::<Vec<i64>>()
        }
        .boxed()
    });
    let (holds, change) = (hold(&gate), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let add = enqueued(in_queue(&executor, &add)).await;
    let change = enqueued(in_queue(&executor, &change)).await;
    let see = enqueued(in_queue(&executor, &see)).await;
    gate.open();
    let (_, add, change, seen) = tokio::join!(holding, add, change, see);
    add.and(change).unwrap();
    assert_eq!(seen.unwrap(), [1, 2]);
    assert_eq!(groups.sizes(), [3], "a call that read pending rows is a member of the group");
}

async fn a_row_that_an_earlier_call_deleted_is_not_found(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let delete = act(move |ctx| {
        async move {
            let thing = ctx.get(id).await.unwrap();
            Ok(ctx.plan().delete(thing))
        }
        .boxed()
    });
    let look = asks(move |ctx| {
        async move {
            let things = ctx.repository::<Thing>();
            let missing = ctx.get(id).await.unwrap_err();
            assert!(matches!(missing, ReadError::NotFound { .. }), "{missing}");
            assert_eq!(things.find_by_ids(&[id]).await.unwrap(), []);
            (things.exists(id).await.unwrap(), ctx.find(id).await.unwrap())
        }
        .boxed()
    });
    let holds = hold(&gate);
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let delete = enqueued(in_queue(&executor, &delete)).await;
    let look = enqueued(in_queue(&executor, &look)).await;
    gate.open();
    let (_, deleted, looked) = tokio::join!(holding, delete, look);
    assert_eq!(deleted.unwrap().state, ThingState::Deleted);
    assert_eq!(looked.unwrap(), (false, None));
    assert!(!db.things().exists(id).await.unwrap());
}

async fn a_condition_waits_until_earlier_calls_are_committed(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let count = |which: usize| {
        act(move |ctx| {
            async move {
                let before = ctx.get(id).await.unwrap();
                let things = ctx.repository::<Thing>();
                let seen = match which {
                    0 => things.find_where(Condition::all()).await.unwrap().remove(0),
                    1 => {
                        assert_eq!(things.count().await.unwrap(), 1);
                        things.page(PageRequest::first(9)).await.unwrap().rows.remove(0)
                    }
                    2 => {
                        let mut rows = std::pin::pin!(things.stream(Condition::all()));
                        rows.try_next().await.unwrap().unwrap()
                    }
                    // A write outside the plan, which only another task may make, sees the rows of earlier
                    // calls.
                    _ => {
                        let changed = before.clone().apply(|_| ());
                        let writing = tokio::spawn(async move { things.update(changed).await });
                        writing.await.unwrap().unwrap()
                    }
                };
                assert_eq!(seen.version() - i64::from(which == 3), before.version());
                Ok(ctx.plan().update(seen.apply(|thing| thing.small += 1)))
            }
            .boxed()
        })
    };
    let acts = [count(0), count(1), count(2), count(3)];
    let (holds, first) = (hold(&gate), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let mut calls = vec![enqueued(in_queue(&executor, &first)).await];
    for act in &acts {
        calls.push(enqueued(in_queue(&executor, act)).await);
    }
    gate.open();
    let (_, answers) = tokio::join!(holding, futures_util::future::join_all(calls));
    let versions: Vec<_> = answers.into_iter().map(|it| it.unwrap().version()).collect();
    assert_eq!(versions, [2, 3, 4, 5, 7]);
    assert_eq!(groups.sizes(), [1, 1, 1, 1]);
    assert!(acts.iter().all(|act| act.runs() == 1));
}

async fn a_condition_on_an_unchanged_table_does_not_wait(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let add_zone = act(move |ctx| {
        async move {
            let zones = ctx.repository::<support::things::Zone>().count().await.unwrap();
            ctx.plan().add(New::new(zone("z"), ()));
            Ok(zones)
        }
        .boxed()
    });
    let (holds, first) = (hold(&gate), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let first = enqueued(in_queue(&executor, &first)).await;
    let zones = enqueued(in_queue(&executor, &add_zone)).await;
    gate.open();
    let (_, first, zones) = tokio::join!(holding, first, zones);
    first.unwrap();
    assert_eq!((zones.unwrap(), groups.sizes()), (0, vec![2]));
}

async fn an_action_does_not_see_its_own_plan(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let own = act(move |ctx| {
        async move {
            let thing = ctx.get(id).await.unwrap();
            let staged = ctx.plan().update(thing.clone().apply(|thing| thing.small += 1));
            assert_eq!(ctx.get(id).await.unwrap(), thing);
            Ok(staged)
        }
        .boxed()
    });
    assert_eq!(in_queue(&executor, &own).await.unwrap().version(), 2);
}

/// The second call reads the first call's pending row by id. Its read by condition then commits the
/// first call, which fails because an outsider changed the row.
async fn a_call_that_read_the_changes_of_a_failed_group_runs_again(db: &TestDatabase) {
    let old = a_thing(db).await;
    let id = old.id;
    let executor = db.executor().await;
    let (first, read, gate) = touch_after_reading(id);
    let second = act(move |ctx| {
        async move {
            let by_id = ctx.get(id).await.unwrap();
            let found = ctx.repository().find_where(Condition::all()).await.unwrap();
            let agree = by_id == found[0];
            Ok((agree, ctx.plan().update(by_id.apply(|thing| thing.small += 1))))
        }
        .boxed()
    });
    let first = enqueued(in_queue(&executor, &first)).await;
    let second_call = enqueued(in_queue(&executor, &second)).await;
    let outsider = async {
        read.pass().await;
        db.things().update(old.apply(|thing| thing.small = 100)).await.unwrap();
        gate.open();
    };
    let (first, answered, ()) = tokio::join!(first, second_call, outsider);
    assert_eq!(first.unwrap().small, 101);
    let (agree, last) = answered.unwrap();
    assert!(agree && last.small == 102 && last.version() == 4, "{last:?}");
    assert_eq!(second.runs(), 2);
}

/// The task reads while the call waits for its plan. An outsider has changed the row that the first
/// call changes.
async fn a_call_waits_for_what_a_task_of_its_action_has_sealed(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let target = db.things().add(quiet(thing("another"))).await.unwrap().id;
    let executor = db.executor().await;
    let (gate, sealing) = (Gate::closed(), Gate::closed());
    let counting = sealing.clone();
    let copy = act(move |ctx| {
        let counting = counting.clone();
        async move {
            let things = ctx.repository::<Thing>();
            let target = things.get(target).await.unwrap();
            let seen = things.get(id).await.unwrap().small;
            // One thread runs all tasks, so this one begins after the action has returned.
            tokio::spawn(async move {
                counting.open();
                things.count().await
            });
            ctx.plan().enqueue(&touch(id), Nothing {}).in_turn("x");
            Ok(ctx.plan().update(target.apply(|target| target.small = seen)))
        }
        .boxed()
    });
    let (holds, first) = (hold(&gate), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let first = enqueued(in_queue(&executor, &first)).await;
    let copying = enqueued(in_queue(&executor, &copy)).await;
    let mut outsider = PlainConnection::connect(&db.url).await;
    let change = format!("UPDATE things SET small = 100, version = 2 WHERE id = '{id}'");
    outsider.execute(&format!("BEGIN; {change}")).await;
    gate.open();
    let mut all = Box::pin(async { tokio::join!(holding, first, copying) });
    tokio::select! {
        biased;
        _ = &mut all => panic!("the row is locked"),
        () = sealing.pass() => {}
    }
    // The call has planned long before.
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), &mut all).await;
    assert!(early.is_err(), "the row is locked");
    outsider.execute("COMMIT").await;
    let (held, first, copied) = all.await;
    held.unwrap();
    assert_eq!((first.unwrap().small, copied.unwrap().small), (101, 101));
}
