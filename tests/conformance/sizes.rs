//! Bounds on rows, commits and parameters. What exceeds one is refused before it is sent.

use ekbatan::db::{DbError, DbErrorKind, Transaction};
use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;
use support::TestDatabase;
use support::things::{THINGS, Thing, ThingEvent, quiet, thing};

use crate::actions::{Nothing, Refused, Stage, stage};

on_every_database! {
    a_row_that_is_too_large_names_its_column,
    parameters_events_and_outputs_are_named,
    a_commit_that_is_too_large_names_its_largest_value,
    the_parameters_of_a_query_are_bounded,
    what_fits_is_stored,
}

const ROW: usize = 10_000;
const COMMIT: usize = 50_000;

async fn bounded(db: &TestDatabase) -> Databases {
    let config = db.config().max_row_bytes(ROW).max_commit_bytes(COMMIT);
    Databases::connect(&config.into()).await.unwrap()
}

fn with_note(label: &str, bytes: usize) -> Thing {
    let mut thing = thing(label);
    thing.note = Some("n".repeat(bytes));
    thing
}

#[track_caller]
fn assert_too_large(error: Option<&DbError>, parts: &[&str]) {
    let error = error.expect("the database's layer refuses it");
    assert_eq!(error.kind(), DbErrorKind::TooLarge, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part} in: {error}");
    }
}

async fn a_row_that_is_too_large_names_its_column(db: &TestDatabase) {
    let databases = bounded(db).await;
    let things = databases.repository::<Thing>();
    let large = with_note("a", 2 * ROW);
    let parts = [
        &format!("column `note` of Thing {} takes 20000 bytes", large.id),
        "max-row-bytes is 10000",
    ];
    let error = things.add(quiet(large.clone())).await.unwrap_err();
    let WriteError::Database(error) = error else { panic!("{error:?}") };
    assert_too_large(Some(&error), &parts);
    let within = databases
        .transactions()
        .in_transaction(async |tx| things.within(&tx).add(quiet(large.clone())).await)
        .await;
    assert!(within.unwrap_err().to_string().contains(parts[0]));
    let stored = things.add(quiet(with_note("a", 10))).await.unwrap();
    let error = things.update(stored.apply(|thing| thing.note = large.note.clone())).await;
    assert!(error.unwrap_err().to_string().contains("column `note`"));
}

async fn parameters_events_and_outputs_are_named(db: &TestDatabase) {
    let executor = THINGS.executor_on(&bounded(db).await).await;
    let action = Stage::with_params(|ctx: &mut ActionContext<'_>, _: &LongText| {
        ctx.plan().add(quiet(thing("a")));
        Ok::<_, Refused>(())
    });
    let error = executor.execute(&action, LongText { text: "p".repeat(ROW) }).await.unwrap_err();
    assert_too_large(
        error.database_error(),
        &["the parameters of `conformance.stage` takes 100", "max-row-bytes is 10000"],
    );
    let action = stage(|ctx| {
        let made = ThingEvent::Made { label: "e".repeat(ROW) };
        ctx.plan().add(New::new(thing("a"), [made]));
        Ok(())
    });
    let error = executor.execute(&action, Nothing {}).await.unwrap_err();
    assert_too_large(
        error.database_error(),
        &["the payload of the event `ThingMade` of `conformance.stage`"],
    );
    let action = stage(|_| Ok("o".repeat(ROW)));
    let error = executor.execute(&action, Nothing {}).idempotency_key("k").await.unwrap_err();
    assert_too_large(error.database_error(), &["the output of `conformance.stage`"]);
    assert_eq!((db.count("things").await, db.count_events().await), (0, 0));
}

async fn a_commit_that_is_too_large_names_its_largest_value(db: &TestDatabase) {
    let things = bounded(db).await.repository::<Thing>();
    let mut many: Vec<_> = (0..7).map(|n| quiet(with_note(&n.to_string(), 8_000))).collect();
    many.push(quiet(with_note("x", 9_000)));
    let error = things.add_all(many).await.unwrap_err();
    let WriteError::Database(error) = error else { panic!("{error:?}") };
    assert_too_large(
        Some(&error),
        &[
            "the commit takes 6",
            "max-commit-bytes is 50000",
            "column `note` of Thing",
            "takes 9000 bytes",
        ],
    );
    assert_eq!(db.count("things").await, 0);
}

async fn the_parameters_of_a_query_are_bounded(db: &TestDatabase) {
    let databases = bounded(db).await;
    let things = databases.repository::<Thing>();
    let long = "l".repeat(COMMIT + 1);
    let large = || !Thing::NOTE.is_null() & Thing::LABEL.eq(&*long);
    let parts = ["of the query takes 50001 bytes", "max-commit-bytes is 50000"];
    let error = things.find_where(large()).await.unwrap_err();
    assert_too_large(error.database_error(), &parts);
    let read = async |tx: Transaction| things.within(&tx).find_where(large()).await;
    let error = databases.transactions().in_transaction(read).await.unwrap_err();
    assert!(error.to_string().contains(parts[0]), "{error}");
    let ids: Vec<_> = (0..4_000).map(|_| Id::<Thing>::new()).collect();
    let error = things.find_by_ids(&ids).await.unwrap_err();
    assert_too_large(error.database_error(), &["parameter $1 of the query takes 64000 bytes"]);
}

async fn what_fits_is_stored(db: &TestDatabase) {
    let things = bounded(db).await.repository::<Thing>();
    let rows = (0..5).map(|n| quiet(with_note(&n.to_string(), 9_000)));
    let stored = things.add_all(rows).await.unwrap();
    assert_eq!(things.get(stored[0].id).await.unwrap().note.as_deref().map(str::len), Some(9_000));
}

/// A parameter of any length.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct LongText {
    text: String,
}
