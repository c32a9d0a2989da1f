//! The inbox: a message from outside has one effect, however often it is delivered.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ekbatan::action::{Coalesced, ErrorKind, Once, PlanError};
use ekbatan::lock::LockKey;
use ekbatan::prelude::*;
use futures_util::future::join_all;
use support::things::{THINGS, Thing, quiet, thing};
use support::{TestDatabase, instant};
use tokio::sync::Barrier;

use crate::actions::{Nothing, Number, Refused, Stage};

on_every_database! {
    a_duplicate_does_not_run,
    a_duplicate_is_recognized_by_every_process_also_a_day_later,
    each_consumer_and_each_namespace_handles_a_message,
    duplicates_at_once_from_two_processes_have_one_effect,
    calls_that_run_at_once_in_two_processes_commit_once,
    a_duplicate_that_would_refuse_is_a_duplicate,
    a_message_whose_action_failed_can_be_tried_again,
    an_action_that_changes_nothing_handles_its_message,
    messages_of_one_group_are_handled_once_each,
    a_message_and_an_idempotency_key_of_one_text_are_two,
    a_call_has_an_idempotency_key_or_a_message,
    a_consumer_and_an_id_have_1_to_255_bytes,
}

type AddNumbered = fn(&mut ActionContext<'_>, &Number) -> Result<i64, Refused>;

/// Adds a thing whose label is the number, which may be there once.
fn add_numbered(ctx: &mut ActionContext<'_>, params: &Number) -> Result<i64, Refused> {
    ctx.plan().add(quiet(thing(&params.number.to_string())));
    Ok(params.number)
}

fn adding() -> Stage<AddNumbered, i64, Number> {
    Stage::with_params(add_numbered as AddNumbered)
}

async fn handled(db: &TestDatabase) -> usize {
    db.count(&db.eventlog("inbox")).await
}

async fn a_duplicate_does_not_run(db: &TestDatabase) {
    let (executor, action) = (db.executor().await, adding());
    let call = |number| executor.execute(&action, Number { number }).once("payments", "m1");
    let (first, committed) = call(1).with_commit().await.unwrap();
    assert_eq!((first, committed.is_some()), (Once::Done(1), true));
    assert_eq!(call(1).await.unwrap(), Once::Duplicate);
    // Whatever the call says: only the message counts.
    let (second, committed) = call(2).principal("alice").with_commit().await.unwrap();
    assert_eq!((second, committed.is_some()), (Once::Duplicate, false));
    let other = Stage::with_params(|_: &mut ActionContext<'_>, _: &Nothing| Ok(()));
    let other_call = executor.execute(&other, Nothing {}).once("payments", "m1");
    assert_eq!(other_call.await.unwrap(), Once::Duplicate);
    assert_eq!((action.runs(), other.runs()), (1, 0));
    assert_eq!((db.count("things").await, db.count_events().await, handled(db).await), (1, 1, 1));
}

async fn a_duplicate_is_recognized_by_every_process_also_a_day_later(db: &TestDatabase) {
    let action = adding();
    let call = |executor: &ActionExecutor| {
        let executor = executor.clone();
        let action = &action;
        async move { executor.execute(action, Number { number: 1 }).once("payments", "m1").await }
    };
    assert_eq!(call(&db.executor().await).await.unwrap(), Once::Done(1));
    db.clock.set(instant(24 * 60 * 60));
    let elsewhere = THINGS.executor_on(&db.open_again().await).await;
    assert_eq!(call(&elsewhere).await.unwrap(), Once::Duplicate);
    assert_eq!((action.runs(), db.count("things").await), (1, 1));
}

async fn each_consumer_and_each_namespace_handles_a_message(db: &TestDatabase) {
    let action = adding();
    let mut number = 0;
    for namespace in ["a", "b"] {
        let executor = ActionExecutor::builder(&db.databases, namespace).build().await.unwrap();
        // Texts that are equal without their border are two pairs.
        for (consumer, id) in [("payments", "m1"), ("mails", "m1"), ("mailsm", "1")] {
            number += 1;
            let call = || executor.execute(&action, Number { number }).once(consumer, id);
            assert_eq!(call().await.unwrap(), Once::Done(number));
            assert_eq!(call().await.unwrap(), Once::Duplicate);
        }
    }
    assert_eq!((action.runs(), db.count("things").await, handled(db).await), (6, 6, 6));
}

async fn duplicates_at_once_from_two_processes_have_one_effect(db: &TestDatabase) {
    let executors = [db.executor().await, THINGS.executor_on(&db.open_again().await).await];
    let action = adding();
    for number in 0..10 {
        let message = format!("m{number}");
        let calls = (0..16).map(|n| {
            let call = executors[n % 2].execute(&action, Number { number });
            call.once("payments", &*message).into_future()
        });
        let answers: Vec<_> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
        let done = answers.iter().filter(|answer| **answer == Once::Done(number));
        assert_eq!(done.count(), 1, "{answers:?}");
    }
    assert_eq!((db.count("things").await, handled(db).await), (10, 10));
}

/// Adds a thing after all callers of the barrier have started.
struct MeetAndAdd {
    barrier: Barrier,
    runs: AtomicU32,
}

impl Action for MeetAndAdd {
    const NAME: &'static str = "conformance.meet_and_add";
    type Params = Nothing;
    type Output = ();
    type Error = Refused;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Nothing) -> Result<(), Refused> {
        let run = self.runs.fetch_add(1, Ordering::SeqCst);
        self.barrier.wait().await;
        // No two labels are equal: only the message keeps the two commits apart.
        ctx.plan().add(quiet(thing(&format!("run {run}"))));
        Ok(())
    }
}

async fn calls_that_run_at_once_in_two_processes_commit_once(db: &TestDatabase) {
    let here = db.executor().await;
    let there = THINGS.executor_on(&db.open_again().await).await;
    let action = MeetAndAdd { barrier: Barrier::new(2), runs: AtomicU32::new(0) };
    let call = |executor: &ActionExecutor| {
        let (executor, action) = (executor.clone(), &action);
        async move { executor.execute(action, Nothing {}).once("payments", "m1").await.unwrap() }
    };
    let (one, other) = tokio::join!(call(&here), call(&there));
    assert!(matches!(
        (one, other),
        (Once::Done(()), Once::Duplicate) | (Once::Duplicate, Once::Done(()))
    ));
    assert_eq!(action.runs.load(Ordering::SeqCst), 2, "both calls ran");
    assert_eq!((db.count("things").await, db.count_events().await, handled(db).await), (1, 1, 1));
}

/// Adds a thing if there is none, and refuses otherwise.
struct AddTheOnlyOne {
    overtaken_by: Option<ActionExecutor>,
}

impl Action for AddTheOnlyOne {
    const NAME: &'static str = "conformance.add_the_only_one";
    type Params = Nothing;
    type Output = ();
    type Error = Refused;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Nothing) -> Result<(), Refused> {
        if let Some(quicker) = self.overtaken_by.clone() {
            let quicker = tokio::spawn(async move {
                let action = AddTheOnlyOne { overtaken_by: None };
                quicker.execute(&action, Nothing {}).once("payments", "m1").await
            });
            let answer = quicker.await.expect("it does not panic").map_err(|_| Refused)?;
            assert_eq!(answer, Once::Done(()));
        }
        if ctx.repository::<Thing>().count().await.map_err(|_| Refused)? > 0 {
            return Err(Refused);
        }
        ctx.plan().add(quiet(thing("the only one")));
        Ok(())
    }
}

async fn a_duplicate_that_would_refuse_is_a_duplicate(db: &TestDatabase) {
    let elsewhere = THINGS.executor_on(&db.open_again().await).await;
    let action = AddTheOnlyOne { overtaken_by: Some(elsewhere) };
    let executor = db.executor().await;
    let answer = executor.execute(&action, Nothing {}).once("payments", "m1").await;
    assert_eq!(answer.unwrap(), Once::Duplicate);
    assert_eq!((db.count("things").await, handled(db).await), (1, 1));
}

async fn a_message_whose_action_failed_can_be_tried_again(db: &TestDatabase) {
    let executor = db.executor().await;
    let refusing = Stage::with_params(|ctx: &mut ActionContext<'_>, _: &Nothing| {
        ctx.plan().add(quiet(thing("never")));
        Err::<(), _>(Refused)
    });
    let refused = executor.execute(&refusing, Nothing {}).once("payments", "m1").await;
    assert!(matches!(refused, Err(ExecuteError::Domain(Refused))));
    let taken = db.things().add(quiet(thing("1"))).await.unwrap();
    let action = adding();
    let call = || executor.execute(&action, Number { number: 1 }).once("payments", "m1");
    assert_eq!(call().await.unwrap_err().kind(), ErrorKind::Unique);
    assert_eq!((handled(db).await, db.count_events().await), (0, 0));
    db.things().update(taken.apply(|thing| thing.label = "free".to_owned())).await.unwrap();
    assert_eq!(call().await.unwrap(), Once::Done(1));
    assert_eq!(call().await.unwrap(), Once::Duplicate);
}

async fn an_action_that_changes_nothing_handles_its_message(db: &TestDatabase) {
    let executor = db.executor().await;
    let action = Stage::with_params(|_: &mut ActionContext<'_>, params: &Number| Ok(params.number));
    let call = || executor.execute(&action, Number { number: 42 }).once("payments", "m1");
    assert_eq!(call().await.unwrap(), Once::Done(42));
    assert_eq!(call().await.unwrap(), Once::Duplicate);
    assert_eq!((action.runs(), handled(db).await), (1, 1));
}

/// Calls of one contention key commit together. Each message is delivered four times.
async fn messages_of_one_group_are_handled_once_each(db: &TestDatabase) {
    let executors = [db.executor().await, THINGS.executor_on(&db.open_again().await).await];
    let action = adding();
    let calls = (0..48).map(|n: i64| {
        let number = n % 12;
        let call = executors[(n / 12 % 2) as usize].execute(&action, Number { number });
        let call = call.contention(Coalesced::default());
        let call = call.contention_keys([LockKey::named("things")]);
        let answer = call.once("payments", format!("m{number}")).into_future();
        tokio::time::timeout(Duration::from_secs(60), answer)
    });
    let answers = join_all(calls).await.into_iter().map(|answer| answer.unwrap().unwrap());
    assert_eq!(answers.filter(|answer| *answer != Once::Duplicate).count(), 12);
    assert_eq!((db.count("things").await, handled(db).await), (12, 12));
}

async fn a_message_and_an_idempotency_key_of_one_text_are_two(db: &TestDatabase) {
    let (executor, action) = (db.executor().await, adding());
    let keyed = executor.execute(&action, Number { number: 1 }).principal("payments");
    assert_eq!(keyed.idempotency_key("m1").await.unwrap(), 1);
    let message = executor.execute(&action, Number { number: 2 }).once("payments", "m1");
    assert_eq!(message.await.unwrap(), Once::Done(2));
    assert_eq!((action.runs(), db.count("things").await), (2, 2));
}

async fn a_call_has_an_idempotency_key_or_a_message(db: &TestDatabase) {
    let (executor, action) = (db.executor().await, adding());
    let call = executor.execute(&action, Number { number: 1 }).idempotency_key("k");
    let error = call.once("payments", "m1").await.unwrap_err();
    assert!(matches!(error, ExecuteError::Plan(PlanError::KeyAndMessage)), "{error:?}");
    assert_eq!((action.runs(), handled(db).await), (0, 0));
}

async fn a_consumer_and_an_id_have_1_to_255_bytes(db: &TestDatabase) {
    let (executor, action) = (db.executor().await, adding());
    let call = |consumer: &str, id: &str| {
        executor.execute(&action, Number { number: 1 }).once(consumer, id).into_future()
    };
    let (longest, longer) = ("ü".repeat(127) + "k", "ü".repeat(128));
    for (consumer, id, expected) in [
        ("", "m1", ("consumer", "", 0)),
        ("payments", "", ("id", "", 0)),
        (&longer, "m1", ("consumer", &*longer, 256)),
        ("payments", &longer, ("id", &*longer, 256)),
    ] {
        match call(consumer, id).await.unwrap_err() {
            ExecuteError::Plan(PlanError::Message { what, value, bytes, .. }) => {
                assert_eq!((what, &*value, bytes), expected);
            }
            other => panic!("{other:?}"),
        }
    }
    let error = call("payments", "a\0b").await.unwrap_err().to_string();
    assert_eq!(
        error,
        r#"the id "a\0b" of the message holds the character 0, which not every database stores; remove it"#
    );
    call("a\0b", "m1").await.unwrap_err();
    assert_eq!(action.runs(), 0);
    assert_eq!(call(&longest, &longest).await.unwrap(), Once::Done(1));
    assert_eq!(call(&longest, &longest).await.unwrap(), Once::Duplicate);
}
