//! The spans of an execution: behaviours 29 to 33.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use ekbatan::action::{Budget, ErrorKind, RetryPolicy};
use ekbatan::domain::New;
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::things::{THINGS, Thing, ThingEvent, quiet, thing};
use support::{Recorded, Recorder, ScratchDatabase, TestDatabase};

use crate::actions::{Nothing, Refused, stage};

on_every_database! {
    perform_and_persist_are_children_of_execute,
    a_failure_is_recorded_in_its_span,
}

on_every_database! {
    on_sqlite_only:
    an_effect_runs_in_the_span_of_its_commit,
    each_retry_is_counted_and_has_an_event,
    a_call_without_retries_counts_none,
    a_panic_reaches_the_caller_and_leaves_its_span_without_an_outcome,
    the_principal_is_recorded_only_if_enabled,
    actions_run_without_a_subscriber,
}

const EXECUTE: &str = "ekbatan.action.execute";

async fn perform_and_persist_are_children_of_execute(db: &TestDatabase) {
    let executor = db.executor().await;
    let (recorder, _guard) = Recorder::start();
    let action = stage(|ctx| {
        tracing::info!(name: "inside", "performing");
        Ok(ctx.plan().add(New::new(thing("a"), [ThingEvent::Touched, ThingEvent::Touched])))
    });
    let call = executor.execute(&action, Nothing {});
    let id = call.action_id().to_string();
    call.await.unwrap();

    let execute = recorder.one(EXECUTE);
    assert_eq!(execute.parent, None);
    assert_eq!(execute.field("ekbatan.action.name"), Some("conformance.stage"));
    assert_eq!(execute.field("ekbatan.action.id"), Some(&*id));
    assert_eq!(execute.field("ekbatan.action.outcome"), Some("success"));
    assert_eq!(execute.field("ekbatan.action.error"), None);
    let perform = recorder.one("ekbatan.action.perform");
    assert_eq!(perform.parent.as_deref(), Some(EXECUTE));
    assert_eq!(recorder.one("inside").parent.as_deref(), Some("ekbatan.action.perform"));
    let persist = recorder.one("ekbatan.action.persist");
    assert_eq!(persist.parent.as_deref(), Some(EXECUTE));
    assert_eq!(persist.field("ekbatan.batch.size"), Some("1"));
    assert_eq!(persist.field("ekbatan.event.count"), Some("2"));
    assert_eq!(persist.field("ekbatan.commit.round_trips"), Some("1"));
}

async fn an_effect_runs_in_the_span_of_its_commit(db: &TestDatabase) {
    let executor = db.executor().await;
    let (recorder, _guard) = Recorder::start();
    let action = stage(|ctx| {
        ctx.plan().after_commit("mails", |_| async {
            tracing::info!(name: "inside", "mailing");
            Ok::<_, Refused>(())
        });
        Ok(ctx.plan().add(quiet(thing("a"))))
    });
    executor.execute(&action, Nothing {}).await.unwrap();
    let effect = recorder.one("inside");
    assert_eq!(effect.parent.as_deref(), Some("ekbatan.action.persist"));
}

async fn each_retry_is_counted_and_has_an_event(db: &TestDatabase) {
    let executor = db.executor().await;
    for (succeeds_at, retries, outcome) in [(3, 2, "success"), (9, 4, "error")] {
        let (recorder, _guard) = Recorder::start();
        let action = stage(|ctx| if ctx.attempt() < succeeds_at { Err(Refused) } else { Ok(()) });
        let budget = Budget::new(4).base(Duration::ZERO);
        let call = executor
            .execute(&action, Nothing {})
            .retry(RetryPolicy::none().with(ErrorKind::Domain, budget))
            .retry_if(|_| true);
        assert_eq!(call.await.is_ok(), outcome == "success");
        let execute = recorder.one(EXECUTE);
        assert_eq!(execute.field("ekbatan.action.retry.count"), Some(&*retries.to_string()));
        assert_eq!(execute.field("ekbatan.action.outcome"), Some(outcome));
        let events = recorder.of("retry");
        assert_eq!(events.len(), retries);
        assert!(events.iter().all(|event| event.parent.as_deref() == Some(EXECUTE)));
        assert_eq!(recorder.of("ekbatan.action.perform").len(), retries + 1);
    }
}

async fn a_call_without_retries_counts_none(db: &TestDatabase) {
    let executor = db.executor().await;
    let (recorder, _guard) = Recorder::start();
    executor.execute(&stage(|_| Ok(())), Nothing {}).await.unwrap();
    assert_eq!(recorder.one(EXECUTE).field("ekbatan.action.retry.count"), Some("0"));
    assert_eq!(recorder.of("retry").len(), 0);
}

async fn a_failure_is_recorded_in_its_span(db: &TestDatabase) {
    db.things().add(quiet(thing("taken"))).await.unwrap();
    let executor = db.executor().await;
    for (refuses, kind) in [(true, "Domain"), (false, "Unique")] {
        let (recorder, _guard) = Recorder::start();
        let action = stage(|ctx| {
            ctx.plan().add(quiet(thing("taken")));
            if refuses { Err(Refused) } else { Ok(()) }
        });
        executor.execute(&action, Nothing {}).await.unwrap_err();
        let execute = recorder.one(EXECUTE);
        assert_eq!(execute.field("ekbatan.action.outcome"), Some("error"));
        assert_eq!(execute.field("ekbatan.action.error"), Some(kind));
        let persisted = recorder.of("ekbatan.action.persist").len();
        assert_eq!(persisted, usize::from(!refuses), "a refusal persists nothing");
    }
}

async fn a_panic_reaches_the_caller_and_leaves_its_span_without_an_outcome(db: &TestDatabase) {
    let executor = db.executor().await;
    let (recorder, _guard) = Recorder::start();
    let action = stage(|_| -> Result<(), Refused> { panic!("this action panics") });
    let call = AssertUnwindSafe(async { executor.execute(&action, Nothing {}).await });
    let panicked = call.catch_unwind().await.unwrap_err();
    assert_eq!(panicked.downcast_ref::<&str>(), Some(&"this action panics"));
    assert_eq!(recorder.one(EXECUTE).field("ekbatan.action.outcome"), None);
    assert_eq!(recorder.of("ekbatan.action.perform").len(), 1, "it is not tried again");
}

async fn the_principal_is_recorded_only_if_enabled(db: &TestDatabase) {
    for (shown, expected) in [(false, None), (true, Some("alice"))] {
        let executor =
            ActionExecutor::builder(&db.databases, "a").log_principal(shown).build().await.unwrap();
        let (recorder, _guard) = Recorder::start();
        executor.execute(&stage(|_| Ok(())), Nothing {}).principal("alice").await.unwrap();
        assert_eq!(recorder.one(EXECUTE).field("ekbatan.action.principal"), expected);
        let everything = format!("{:?}", recorder.all());
        assert_eq!(everything.contains("alice"), shown);
    }
}

async fn actions_run_without_a_subscriber(db: &TestDatabase) {
    let executor = db.executor().await;
    let none = tracing::subscriber::NoSubscriber::default();
    let _guard = tracing::subscriber::set_default(none);
    let action = stage(|ctx| Ok(ctx.plan().add(quiet(thing("a")))));
    let stored = executor.execute(&action, Nothing {}).await.unwrap();
    assert_eq!(db.things().get(stored.id).await.unwrap(), stored);
}

mod replica {
    use super::*;

    on_every_database! { only postgres: a_replica_that_cannot_be_read_is_warned_of_once }

    /// The replica is a database without tables.
    async fn a_replica_that_cannot_be_read_is_warned_of_once(db: &TestDatabase) {
        let empty = ScratchDatabase::create(db.dialect).await;
        let config = EkbatanConfig::from(db.config()).replica(empty.config());
        let databases = Databases::connect(&config).await.unwrap();
        let executor = THINGS.executor_on(&databases).await;
        let action = stage(|ctx| Ok(ctx.plan().add(quiet(thing("a")))));
        let (_, committed) = executor.execute(&action, Nothing {}).with_commit().await.unwrap();
        let token = committed.unwrap().token.unwrap();
        let things = databases.repository::<Thing>().on_replica_after(&token, Duration::ZERO);
        let (recorder, _guard) = Recorder::start();
        for _ in 0..2 {
            assert_eq!(things.count().await.unwrap(), 1);
        }
        let all = recorder.all().into_iter();
        let warnings: Vec<Recorded> = all.filter(|of| of.level == tracing::Level::WARN).collect();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].field("error").unwrap().contains("things"), "{warnings:?}");
    }
}
