//! Calls that wait for one key commit as a group.

use std::time::Duration;

use ekbatan::action::{Coalesced, Outcome};
use ekbatan::domain::New;
use ekbatan::lock::LockKey;
use futures_util::FutureExt;
use futures_util::future::join_all;
use support::TestDatabase;
use support::things::{Thing, ThingEvent, quiet, thing, zone};

use crate::acts::{Gate, Groups, a_thing, act, enqueued, event_versions, hold, in_queue, together};
use crate::acts::{touch, touch_at};

on_every_database! {
    waiting_calls_run_in_order_and_commit_together,
    a_call_without_waiters_commits_alone,
    a_group_is_bounded_in_members_and_in_bytes,
    a_group_is_bounded_in_time,
    a_call_changes_a_row_that_an_earlier_call_added,
    every_row_ends_as_its_last_call_left_it,
    keys_do_not_wait_for_each_other,
}

async fn waiting_calls_run_in_order_and_commit_together(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let first = touch_at(&gate, id);
    let others: Vec<_> = (0..7).map(|_| touch(id)).collect();
    let mut calls = vec![enqueued(in_queue(&executor, &first).principal("first")).await];
    let mut ids = Vec::new();
    for (n, other) in others.iter().enumerate() {
        let call = in_queue(&executor, other).principal(format!("other {n}"));
        ids.push(call.action_id());
        calls.push(enqueued(call).await);
    }
    gate.open();
    let answers = join_all(calls).await;
    for (n, answer) in answers.iter().enumerate() {
        let answer = answer.as_ref().unwrap();
        assert_eq!((answer.version(), answer.small), (n as i64 + 2, n as i32 - 6));
    }
    assert_eq!(groups.sizes(), [8]);
    assert_eq!(db.things().get(id).await.unwrap(), *answers[7].as_ref().unwrap());
    assert_eq!(event_versions(db, id).await, (2..10).collect::<Vec<i64>>());
    let of = |n: usize| format!("FROM {} WHERE action_id = '{}'", db.eventlog("events"), ids[n].0);
    let row = db.select(&["principal", "model_version", "event_index"], &of(3)).await;
    let expected = ["other 3", "6", "0"].map(|text| Some(text.to_owned()));
    assert_eq!(row, [expected]);
    for id in ids {
        assert_eq!(executor.outcome(id).await.unwrap(), Outcome::Committed);
    }
}

async fn a_call_without_waiters_commits_alone(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let act = touch(id);
    for version in 2..5 {
        assert_eq!(in_queue(&executor, &act).await.unwrap().version(), version);
    }
    assert_eq!(groups.sizes(), [0; 0]);
}

async fn a_group_is_bounded_in_members_and_in_bytes(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let bounds = [(together().members(3), vec![3, 3]), (together().bytes(1), vec![1; 6])];
    for (bound, expected) in bounds {
        let (groups, _counting) = Groups::count();
        let gate = Gate::closed();
        let (holds, acts) = (hold(&gate), [0; 7].map(|_| touch(id)));
        let holding = enqueued(in_queue(&executor, &holds)).await;
        let mut calls = Vec::new();
        for act in &acts {
            calls.push(enqueued(in_queue(&executor, act).contention(bound)).await);
        }
        gate.open();
        let (held, answers) = tokio::join!(holding, join_all(calls));
        held.unwrap();
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        // The last call has no waiter behind it, and commits alone.
        assert_eq!(groups.sizes(), expected);
    }
    assert_eq!(db.things().get(id).await.unwrap().version(), 15);
    assert_eq!(event_versions(db, id).await, (2..16).collect::<Vec<i64>>());
}

/// The first call is answered although the second one has not finished.
async fn a_group_is_bounded_in_time(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let (start, slow_gate) = (Gate::closed(), Gate::closed());
    let (holds, quick, slow) = (hold(&start), touch(id), touch_at(&slow_gate, id));
    let bound = Coalesced::default().time(Duration::from_millis(5));
    let holding = enqueued(in_queue(&executor, &holds).contention(bound)).await;
    let quick = enqueued(in_queue(&executor, &quick).contention(bound)).await;
    let slow = enqueued(in_queue(&executor, &slow).contention(bound)).await;
    start.open();
    let mut slow = Box::pin(slow);
    let quick = async { tokio::join!(holding, quick).1 };
    let quick = tokio::select! {
        answer = quick => answer.unwrap(),
        answer = &mut slow => panic!("answered behind a closed gate: {answer:?}"),
    };
    assert_eq!(quick.version(), 2);
    slow_gate.open();
    assert_eq!(slow.await.unwrap().version(), 3);
}

async fn a_call_changes_a_row_that_an_earlier_call_added(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let executor = db.executor().await;
    let gate = Gate::closed();
    let value = thing("added and changed");
    let id = value.id;
    let add = act(move |ctx| {
        let value = value.clone();
        let made = ThingEvent::Made { label: value.label.clone() };
        async move { Ok(ctx.plan().add(New::new(value, made))) }.boxed()
    });
    let (holds, change, change_again) = (hold(&gate), touch(id), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let calls = vec![
        enqueued(in_queue(&executor, &add)).await,
        enqueued(in_queue(&executor, &change)).await,
        enqueued(in_queue(&executor, &change_again)).await,
    ];
    gate.open();
    let (_, answers) = tokio::join!(holding, join_all(calls));
    let last = answers.into_iter().map(Result::unwrap).last().unwrap();
    assert_eq!((last.version(), last.small), (3, -5));
    assert_eq!(groups.sizes(), [3]);
    assert_eq!(db.things().get(id).await.unwrap(), last);
    assert_eq!(event_versions(db, id).await, [1, 2, 3]);
}

async fn every_row_ends_as_its_last_call_left_it(db: &TestDatabase) {
    let (one, two) = (a_thing(db).await.id, thing("another"));
    let two = db.things().add(quiet(two)).await.unwrap().id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let both = || {
        act(move |ctx| {
            async move {
                let read = ctx.repository::<Thing>().find_by_ids(&[one, two, one]).await.unwrap();
                assert_eq!(read.len(), 2);
                for thing in read {
                    ctx.plan().update(thing.apply(|thing| {
                        thing.small += 10;
                        ThingEvent::Touched
                    }));
                }
                let zone = zone(&format!("zone of {}", ctx.action_id()));
                ctx.plan().add(New::new(zone, ()));
                Ok(())
            }
            .boxed()
        })
    };
    let (holds, first, second, third) = (hold(&gate), both(), touch(two), both());
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let first = enqueued(in_queue(&executor, &first)).await;
    let second = enqueued(in_queue(&executor, &second)).await;
    let third = enqueued(in_queue(&executor, &third)).await;
    gate.open();
    let (held, first, second, third) = tokio::join!(holding, first, second, third);
    held.and(first).and(third).unwrap();
    assert_eq!(second.unwrap().version(), 3);
    let (one, two) = (db.things().get(one).await.unwrap(), db.things().get(two).await.unwrap());
    assert_eq!((one.version(), one.small, two.version(), two.small), (3, 13, 4, 14));
    assert_eq!(event_versions(db, two.id).await, [2, 3, 4]);
    assert_eq!(db.count("zones").await, 2);
}

async fn keys_do_not_wait_for_each_other(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let (holds, other) = (hold(&gate), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let key = LockKey::of("thing", id);
    in_queue(&executor, &other).contention_keys([key]).await.unwrap();
    gate.open();
    holding.await.unwrap();
}
