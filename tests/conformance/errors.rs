//! The kinds of constraint violations, and concurrent actions that they do not affect.

use ekbatan::action::{ErrorKind, RetryPolicy};
use ekbatan::db::DbErrorKind;
use ekbatan::prelude::*;
use futures_util::future::join_all;
use support::things::{Thing, quiet, thing};
use support::{Dialect, TestDatabase};

use crate::actions::{Nothing, Refused, run, stage};

on_every_database! {
    a_unique_violation_names_its_constraint,
    a_repeated_id_is_a_unique_violation,
    a_missing_parent_is_a_foreign_key_violation,
    a_missing_parent_of_many_rows_is_a_foreign_key_violation,
    a_missing_value_is_refused,
    a_failed_check_names_its_constraint,
    concurrent_actions_commit_when_one_is_refused,
    concurrent_actions_commit_when_one_is_stale,
}

async fn add(db: &TestDatabase, values: &[Thing]) -> ExecuteError<Refused> {
    let before = (db.count("things").await, db.count_events().await);
    let error =
        run(&db.executor().await, |ctx| Ok(ctx.plan().add_all(values.iter().cloned().map(quiet))))
            .await
            .unwrap_err();
    assert_eq!((db.count("things").await, db.count_events().await), before);
    error
}

fn database_kind(error: &ExecuteError<Refused>) -> Option<DbErrorKind> {
    error.database_error().map(|error| error.kind())
}

async fn a_unique_violation_names_its_constraint(db: &TestDatabase) {
    db.things().add(quiet(thing("taken"))).await.unwrap();
    let error = add(db, &[thing("taken")]).await;
    assert!(matches!(error, ExecuteError::Unique(_)), "{error:?}");
    let named = db.databases.capabilities().names_constraints;
    let expected = if named { "things_label_key" } else { "things.label" };
    assert_eq!(error.constraint(), Some(expected));
}

async fn a_repeated_id_is_a_unique_violation(db: &TestDatabase) {
    let stored = db.things().add(quiet(thing("a"))).await.unwrap();
    let error = add(db, &[Thing { id: stored.id, ..thing("b") }]).await;
    assert!(matches!(error, ExecuteError::Unique(_)), "{error:?}");
    let expected = match db.dialect {
        Dialect::Postgres => "things_pkey",
        Dialect::Sqlite => "things.id",
        Dialect::MySql | Dialect::MariaDb => "PRIMARY",
    };
    assert_eq!(error.constraint(), Some(expected));
}

async fn a_missing_parent_is_a_foreign_key_violation(db: &TestDatabase) {
    let error = add(db, &[Thing { zone: Some(Id::new()), ..thing("a") }]).await;
    assert!(matches!(error, ExecuteError::ForeignKey(_)), "{error:?}");
    // SQLite does not name the constraint.
    let named = db.databases.capabilities().names_constraints;
    let expected = named.then_some("things_zone_fkey");
    assert_eq!(error.constraint(), expected);
}

async fn a_missing_parent_of_many_rows_is_a_foreign_key_violation(db: &TestDatabase) {
    let error = add(db, &[thing("a"), Thing { zone: Some(Id::new()), ..thing("b") }]).await;
    assert!(matches!(error, ExecuteError::ForeignKey(_)), "{error:?}");
}

async fn a_missing_value_is_refused(db: &TestDatabase) {
    let error = add(db, &[Thing { code: None, ..thing("a") }]).await;
    assert!(matches!(error, ExecuteError::Refused(_)), "{error:?}");
    assert_eq!(database_kind(&error), Some(DbErrorKind::NotNullViolation));
    assert!(error.to_string().contains("code"), "{error}");
}

async fn a_failed_check_names_its_constraint(db: &TestDatabase) {
    let error = add(db, &[Thing { small: 1_000, ..thing("a") }]).await;
    assert!(matches!(error, ExecuteError::Refused(_)), "{error:?}");
    assert_eq!(database_kind(&error), Some(DbErrorKind::CheckViolation));
    assert_eq!(error.constraint(), Some("things_small_check"));
}

async fn concurrent_actions_commit_when_one_is_refused(db: &TestDatabase) {
    db.things().add(quiet(thing("taken"))).await.unwrap();
    let executor = db.executor().await;
    let labels = ["a", "taken", "b", "taken", "c"];
    let actions = labels.map(|label| stage(move |ctx| Ok(ctx.plan().add(quiet(thing(label))))));
    let answers =
        join_all(actions.iter().map(|action| executor.execute(action, Nothing {}).into_future()))
            .await;
    for (label, answer) in labels.iter().zip(answers) {
        match answer {
            Ok(stored) => assert_eq!((&*stored.label, *label), (*label, &*stored.label)),
            Err(error) => assert_eq!((error.kind(), *label), (ErrorKind::Unique, "taken")),
        }
    }
    assert_eq!((db.count("things").await, db.count_events().await), (4, 3));
}

async fn concurrent_actions_commit_when_one_is_stale(db: &TestDatabase) {
    let read = db.things().add(quiet(thing("overtaken"))).await.unwrap();
    db.things().update(read.clone().apply(|_| ())).await.unwrap();
    let executor = db.executor().await;
    let actions: Vec<_> = (0..6)
        .map(|n| {
            let read = read.clone();
            stage(move |ctx| {
                if n % 3 == 1 {
                    ctx.plan().update(read.clone().apply(|thing| thing.big = n));
                }
                Ok(ctx.plan().add(quiet(thing(&n.to_string()))))
            })
        })
        .collect();
    let calls = actions.iter().map(|action| {
        executor.execute(action, Nothing {}).retry(RetryPolicy::none()).into_future()
    });
    let kinds: Vec<_> = join_all(calls)
        .await
        .into_iter()
        .map(|answer| answer.err().map(|error| error.kind()))
        .collect();
    let stale = Some(ErrorKind::Stale);
    assert_eq!(kinds, [None, stale, None, None, stale, None]);
    assert_eq!(db.count("things").await, 5);
    assert_eq!(db.things().get(read.id).await.unwrap().version(), 2);
}
