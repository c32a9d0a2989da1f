//! One call of a group fails, or the commit of the whole group does.

use std::time::Duration;

use ekbatan::action::{Budget, ErrorKind, RetryPolicy};
use ekbatan::db::DbError;
use ekbatan::prelude::*;
use futures_util::FutureExt;
use futures_util::future::join_all;
use support::things::{Thing, quiet, thing};
use support::{TestDatabase, connected};

use crate::acts::{Act, Gate, Groups, Nothing, Refused, a_thing, act, enqueued, event_versions};
use crate::acts::{hold, in_queue, touch, touch_after_reading};

on_every_database! {
    a_call_that_refuses_leaves_the_group_and_the_others_commit,
    a_refusal_based_on_uncommitted_changes_runs_again,
    a_group_made_stale_from_outside_runs_again,
    a_call_with_a_duplicate_value_fails_alone,
    a_call_that_reads_around_the_group_runs_again,
    a_refusal_is_retried_by_its_own_policy,
}

on_every_database! {
    on_sqlite_only:
    calls_that_enqueue_in_turn_refuse_no_group,
    every_call_of_a_group_hears_the_code_of_a_failure_that_they_share,
}

async fn a_call_that_refuses_leaves_the_group_and_the_others_commit(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let refuse = act::<Stored<Thing>>(move |ctx| {
        async move {
            let thing = ctx.get(id).await.unwrap();
            ctx.plan().after_commit("never", |_| async { Err(std::io::Error::other("it ran")) });
            Err(Refused(format!("at {}", thing.small)))
        }
        .boxed()
    });
    let (holds, first, last) = (hold(&gate), touch(id), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let first = enqueued(in_queue(&executor, &first)).await;
    let refused = enqueued(in_queue(&executor, &refuse)).await;
    let last = enqueued(in_queue(&executor, &last)).await;
    gate.open();
    let (_, first, refused, last) = tokio::join!(holding, first, refused, last);
    assert_eq!((first.unwrap().version(), last.unwrap().version()), (2, 3));
    match refused.unwrap_err() {
        ExecuteError::Domain(error) => assert_eq!(error, Refused("at -6".to_owned())),
        other => panic!("{other:?}"),
    }
    assert_eq!(event_versions(db, id).await, [2, 3]);
    assert_eq!(executor.effect_failures(), 0);
}

/// The refusal is based on a pending change whose commit fails because of an outsider.
async fn a_refusal_based_on_uncommitted_changes_runs_again(db: &TestDatabase) {
    let old = a_thing(db).await;
    let id = old.id;
    let executor = db.executor().await;
    let (first, read, gate) = touch_after_reading(id);
    let refuse = act::<()>(move |ctx| {
        async move { Err(Refused(format!("at {}", ctx.get(id).await.unwrap().small))) }.boxed()
    });
    let first = enqueued(in_queue(&executor, &first)).await;
    let refused = enqueued(in_queue(&executor, &refuse)).await;
    let outsider = async {
        read.pass().await;
        db.things().update(old.apply(|thing| thing.small = 100)).await.unwrap();
        gate.open();
    };
    let (first, refused, ()) = tokio::join!(first, refused, outsider);
    assert_eq!(first.unwrap().small, 101);
    assert_eq!(refused.unwrap_err().to_string(), "refused: at 101");
}

async fn a_group_made_stale_from_outside_runs_again(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let old = a_thing(db).await;
    let id = old.id;
    let executor = db.executor().await;
    let (first, read, gate) = touch_after_reading(id);
    let others = [touch(id), touch(id), touch(id)];
    let mut calls = vec![enqueued(in_queue(&executor, &first)).await];
    for other in &others {
        calls.push(enqueued(in_queue(&executor, other)).await);
    }
    let outsider = async {
        read.pass().await;
        db.things().update(old.apply(|thing| thing.small = 100)).await.unwrap();
        gate.open();
    };
    let (answers, ()) = tokio::join!(join_all(calls), outsider);
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    let found: Vec<_> = answers.iter().map(|thing| (thing.version(), thing.small)).collect();
    assert_eq!(found, [(3, 101), (4, 102), (5, 103), (6, 104)]);
    assert_eq!(groups.sizes(), [4, 4]);
    assert_eq!((first.runs(), others[2].runs()), (2, 2));
    assert_eq!(event_versions(db, id).await, [3, 4, 5, 6]);
}

async fn a_call_with_a_duplicate_value_fails_alone(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let add = |label: &'static str| {
        act(move |ctx| {
            async move {
                let read = ctx.get(id).await.unwrap();
                ctx.plan().update(read.apply(|thing| thing.small += 1));
                Ok(ctx.plan().add(quiet(thing(label))))
            }
            .boxed()
        })
    };
    let acts = [add("one"), add("the thing"), add("two"), add("one")];
    let holds = hold(&gate);
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let mut calls = Vec::new();
    for act in &acts {
        calls.push(enqueued(in_queue(&executor, act)).await);
    }
    gate.open();
    let (_, answers) = tokio::join!(holding, join_all(calls));
    let kinds: Vec<_> =
        answers.iter().map(|it| it.as_ref().err().map(ExecuteError::kind)).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::Unique), None, Some(ErrorKind::Unique)]);
    assert_eq!(db.things().get(id).await.unwrap().version(), 3);
    assert_eq!(db.things().count().await.unwrap(), 3);
}

async fn a_call_that_reads_around_the_group_runs_again(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let outside = db.things();
    let around = act(move |ctx| {
        let outside = outside.clone();
        async move {
            let read = outside.get(id).await.unwrap();
            Ok(ctx.plan().update(read.apply(|thing| thing.small += 50)))
        }
        .boxed()
    });
    let (holds, first, last) = (hold(&gate), touch(id), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let first = enqueued(in_queue(&executor, &first)).await;
    let around_it = enqueued(in_queue(&executor, &around)).await;
    let last_one = enqueued(in_queue(&executor, &last)).await;
    gate.open();
    let (_, first, around_it, last_one) = tokio::join!(holding, first, around_it, last_one);
    first.unwrap();
    // After the first call is committed, the read around the group sees the latest version.
    let around_it = around_it.unwrap();
    assert_eq!((around_it.small, last_one.unwrap().small), (44, 45));
    assert_eq!(db.things().get(id).await.unwrap().version(), 4);
    // What is known to be stale takes nobody down.
    assert_eq!((around.runs(), last.runs()), (2, 1));
}

async fn a_refusal_is_retried_by_its_own_policy(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let refuse_once = act(move |ctx| {
        async move {
            let attempt = ctx.attempt();
            let thing = ctx.get(id).await.unwrap();
            match attempt {
                1 => Err(Refused("not yet".to_owned())),
                _ => Ok(ctx.plan().update(thing.apply(|thing| thing.small += 1))),
            }
        }
        .boxed()
    });
    let policy = RetryPolicy::none().with(ErrorKind::Domain, Budget::new(1).base(Duration::ZERO));
    let call =
        in_queue(&executor, &refuse_once).retry(policy).retry_if(|error| error.0 == "not yet");
    assert_eq!(call.await.unwrap().version(), 2);
    assert_eq!(refuse_once.runs(), 2);
}

/// Each of them changes the row of one key, which it does not read through the group.
async fn calls_that_enqueue_in_turn_refuse_no_group(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let enqueues = || {
        act(move |ctx| {
            async move {
                ctx.plan().enqueue(&touch(id), Nothing {}).in_turn("x");
                Ok(())
            }
            .boxed()
        })
    };
    let (holds, acts) = (hold(&gate), [enqueues(), enqueues(), enqueues()]);
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let mut calls = Vec::new();
    for act in &acts {
        calls.push(enqueued(in_queue(&executor, act)).await);
    }
    gate.open();
    let (_, answers) = tokio::join!(holding, join_all(calls));
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    // The last one has no waiter behind it, and commits alone.
    assert_eq!(groups.sizes(), [1, 1]);
    assert_eq!(acts.each_ref().map(Act::runs), [1, 2, 2]);
}

async fn every_call_of_a_group_hears_the_code_of_a_failure_that_they_share(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let id = a_thing(db).await.id;
    let config = db.config().connection_timeout(Duration::from_secs(1));
    let databases = connected(&config.into()).await;
    let builder = ActionExecutor::builder(&databases, "tests").model::<Thing>();
    let (executor, gate) = (builder.build().await.unwrap(), Gate::closed());
    let (holds, touches) = (hold(&gate), [touch(id), touch(id)]);
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let mut calls = Vec::new();
    for touch in &touches {
        calls.push(enqueued(in_queue(&executor, touch)).await);
    }
    let mut other = db.connect().await;
    other.execute("BEGIN IMMEDIATE").await;
    gate.open();
    let (_, answers) = tokio::join!(holding, join_all(calls));
    for answer in answers {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        let code = error.database_error().and_then(DbError::code);
        assert_eq!(code, Some("5"), "{error:?}");
    }
    assert!(groups.sizes().contains(&2), "{:?}", groups.sizes());
    other.execute("ROLLBACK").await;
}
