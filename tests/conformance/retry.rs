//! Retry policies: behaviours 15 to 22.

use std::time::Duration;

use ekbatan::action::{Budget, ErrorKind, RetryPolicy};
use ekbatan::prelude::*;
use support::TestDatabase;
use support::things::{NAMESPACE, Thing, quiet, thing};

use crate::actions::{Nothing, Refused, stage};

on_every_database! {
    stale_rows_are_retried_three_times_by_default,
    a_retry_that_reads_again_commits,
    a_failure_of_a_kind_without_budget_is_not_retried,
}

on_every_database! {
    on_sqlite_only:
    without_retries_there_is_one_attempt,
    retries_add_to_the_first_attempt,
    each_kind_has_a_budget_of_its_own,
    removing_a_budget_keeps_the_others,
    a_domain_error_is_retried_only_if_the_caller_allows_it,
    a_deadline_before_the_next_attempt_returns_the_last_error,
    attempts_are_counted_and_keep_the_action_id,
}

/// A thing as it was before another writer changed it.
async fn overtaken(db: &TestDatabase) -> Stored<Thing> {
    let read = db.things().add(quiet(thing("overtaken"))).await.unwrap();
    db.things().update(read.clone().apply(|thing| thing.big = 1)).await.unwrap();
    read
}

fn at_once(retries: u32) -> Budget {
    Budget::new(retries).base(Duration::ZERO)
}

async fn stale_rows_are_retried_three_times_by_default(db: &TestDatabase) {
    let old = overtaken(db).await;
    let action = stage(|ctx| Ok(ctx.plan().update(old.clone().apply(|thing| thing.big = 2))));
    let error = db.executor().await.execute(&action, Nothing {}).await.unwrap_err();
    match error {
        ExecuteError::Stale { rows, attempts: 4, .. } => {
            assert_eq!(rows.len(), 1);
            assert_eq!(
                (rows[0].model, rows[0].id, rows[0].expected_version),
                ("Thing", old.id.uuid(), 1)
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(action.runs(), 4);
    assert_eq!(db.things().get(old.id).await.unwrap().big, 1);
    assert_eq!(db.count_events().await, 0);
}

async fn without_retries_there_is_one_attempt(db: &TestDatabase) {
    let old = overtaken(db).await;
    let action = stage(|ctx| Ok(ctx.plan().update(old.clone().apply(|_| ()))));
    let executor = db.executor().await;
    let once = executor.execute(&action, Nothing {}).retry(RetryPolicy::none()).await.unwrap_err();
    assert!(matches!(once, ExecuteError::Stale { attempts: 1, .. }), "{once:?}");
    assert_eq!(action.runs(), 1);
}

async fn retries_add_to_the_first_attempt(db: &TestDatabase) {
    let old = overtaken(db).await;
    let executor = db.executor().await;
    for retries in [0, 1, 5] {
        let action = stage(|ctx| Ok(ctx.plan().update(old.clone().apply(|_| ()))));
        let policy = RetryPolicy::none().with(ErrorKind::Stale, at_once(retries));
        let error = executor.execute(&action, Nothing {}).retry(policy).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stale);
        assert_eq!(action.runs(), retries + 1);
    }
}

async fn a_retry_that_reads_again_commits(db: &TestDatabase) {
    let old = overtaken(db).await;
    let new = db.things().get(old.id).await.unwrap();
    let action = stage(|ctx| {
        let read = if ctx.attempt() == 1 { old.clone() } else { new.clone() };
        Ok(ctx.plan().update(read.apply(|thing| thing.big -= 1)))
    });
    let stored = db.executor().await.execute(&action, Nothing {}).await.unwrap();
    assert_eq!((stored.version(), stored.big, action.runs()), (3, 0, 2));
    assert_eq!(db.count_events().await, 1, "the failed attempt left no row");
}

async fn each_kind_has_a_budget_of_its_own(db: &TestDatabase) {
    let old = overtaken(db).await;
    let action = stage(|ctx| match ctx.attempt() {
        1 | 3 => {
            ctx.plan().update(old.clone().apply(|_| ()));
            Ok(())
        }
        2 | 4 => Err(Refused),
        _ => Ok(()),
    });
    let policy =
        RetryPolicy::none().with(ErrorKind::Stale, at_once(2)).with(ErrorKind::Domain, at_once(2));
    let executor = db.executor().await;
    executor
        .execute(&action, Nothing {})
        .retry(policy)
        .retry_if(|refused| *refused == Refused)
        .await
        .unwrap();
    assert_eq!(action.runs(), 5);
}

async fn removing_a_budget_keeps_the_others(db: &TestDatabase) {
    let old = overtaken(db).await;
    let action = stage(|ctx| Ok(ctx.plan().update(old.clone().apply(|_| ()))));
    let policy = RetryPolicy::default();
    let others = policy.budget(ErrorKind::Deadlock);
    let policy = policy.without(ErrorKind::Stale);
    assert_eq!(policy.budget(ErrorKind::Deadlock), others);
    let error = db.executor().await.execute(&action, Nothing {}).retry(policy).await.unwrap_err();
    assert_eq!((error.kind(), action.runs()), (ErrorKind::Stale, 1));
}

async fn a_domain_error_is_retried_only_if_the_caller_allows_it(db: &TestDatabase) {
    let executor = db.executor().await;
    let policy = RetryPolicy::none().with(ErrorKind::Domain, at_once(2));
    for (wanted, runs) in [(None, 1), (Some(false), 1), (Some(true), 3)] {
        let action = stage(|_| Err::<(), _>(Refused));
        let mut call = executor.execute(&action, Nothing {}).retry(policy.clone());
        if let Some(wanted) = wanted {
            call = call.retry_if(move |_| wanted);
        }
        assert!(matches!(call.await, Err(ExecuteError::Domain(Refused))));
        assert_eq!(action.runs(), runs);
    }
}

async fn a_failure_of_a_kind_without_budget_is_not_retried(db: &TestDatabase) {
    db.things().add(quiet(thing("taken"))).await.unwrap();
    let action = stage(|ctx| Ok(ctx.plan().add(quiet(thing("taken")))));
    let error = db.executor().await.execute(&action, Nothing {}).await.unwrap_err();
    assert_eq!((error.kind(), action.runs()), (ErrorKind::Unique, 1));
}

async fn a_deadline_before_the_next_attempt_returns_the_last_error(db: &TestDatabase) {
    let executor = ActionExecutor::builder(&db.databases, NAMESPACE).seed(1).build().await.unwrap();
    let century = Duration::from_secs(3_155_760_000);
    let policy =
        RetryPolicy::none().with(ErrorKind::Domain, Budget::new(1).base(century).cap(century));
    let mut last = None;
    for _ in 0..10 {
        let action = stage(|_| Err::<(), _>(Refused));
        let call = executor.execute(&action, Nothing {}).retry(policy.clone()).retry_if(|_| true);
        let answer = call.deadline(Duration::from_secs(1)).await;
        // On a busy machine the deadline may pass before the first attempt.
        if action.runs() > 0 {
            assert!(matches!(answer, Err(ExecuteError::Domain(Refused))), "{answer:?}");
            return assert_eq!(action.runs(), 1);
        }
        last = Some(answer);
    }
    panic!("no call began: {last:?}");
}

async fn attempts_are_counted_and_keep_the_action_id(db: &TestDatabase) {
    let seen = std::sync::Mutex::new(Vec::new());
    let action = stage(|ctx| {
        seen.lock().unwrap().push((ctx.attempt(), ctx.action_id()));
        if ctx.attempt() < 3 { Err(Refused) } else { Ok(()) }
    });
    let executor = db.executor().await;
    let call = executor
        .execute(&action, Nothing {})
        .retry(RetryPolicy::none().with(ErrorKind::Domain, at_once(2)))
        .retry_if(|_| true);
    let id = call.action_id();
    call.await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [(1, id), (2, id), (3, id)]);
}
