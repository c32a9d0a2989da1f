//! The rows of the outbox: behaviours 25, 26, 83 and 85, and the additional columns.

use std::time::Duration;

use ekbatan::domain::New;
use ekbatan::prelude::*;
use support::things::{NAMESPACE, THINGS, Thing, ThingEvent, quiet, thing};
use support::wallet::Wallet;
use support::{Dialect, TestDatabase, TextRow, instant, stored_instant};

use crate::actions::{Nothing, Number, Refused, Stage, run, stage};

on_every_database! {
    each_event_is_a_row_with_the_context_of_the_action,
    a_change_without_events_leaves_one_row_with_four_nulls,
    new_rows_are_not_delivered,
    principal_reason_and_trace_are_stored_or_null,
    an_action_that_changes_nothing_writes_nothing,
    record_reads_writes_a_row_for_an_action_that_changes_nothing,
    many_events_of_one_row_keep_their_order,
    a_young_row_cannot_be_deleted,
    old_rows_without_a_reader_are_pruned,
    rows_are_pruned_in_pages,
}

async fn events(db: &TestDatabase, columns: &[&str]) -> Vec<TextRow> {
    db.select(columns, &format!("FROM {} ORDER BY event_index, id", db.eventlog("events"))).await
}

fn some(texts: &[&str]) -> TextRow {
    texts.iter().map(|text| Some((*text).to_owned())).collect()
}

/// A column as JSON. Databases store the same document with different spacing.
fn payload(row: &TextRow, at: usize) -> serde_json::Value {
    serde_json::from_str(row[at].as_deref().unwrap()).unwrap()
}

async fn each_event_is_a_row_with_the_context_of_the_action(db: &TestDatabase) {
    let stored = db.things().add(quiet(thing("old"))).await.unwrap();
    db.clock.set(instant(1));
    let action = Stage::with_params(|ctx: &mut ActionContext<'_>, number: &Number| {
        db.clock.set(instant(2));
        let renamed = |label: &str| ThingEvent::Renamed { from: "old".into(), to: label.into() };
        ctx.plan().update(stored.clone().apply(|_| [renamed("x"), renamed("y")]));
        let id = Id::from_uuid(Uuid::from_u128(number.number.unsigned_abs().into()));
        ctx.plan().add(Wallet::open(id, "alice", "EUR"));
        Ok(())
    });
    let executor = db.executor().await;
    let call = executor.execute(&action, Number { number: 7 });
    let action_id = call.action_id().to_string();
    call.await.unwrap();

    let wallet = Uuid::from_u128(7).to_string();
    let thing = stored.id.to_string();
    let context = ["namespace", "action_id", "action_name"];
    let of_event = ["model_type", "model_id", "event_type"];
    let versions = ["event_index", "model_version", "event_version"];
    let mut expected = Vec::new();
    for (model, id, event, versions) in [
        ("Thing", &thing, "ThingRenamed", ["0", "2", "2"]),
        ("Thing", &thing, "ThingRenamed", ["1", "2", "2"]),
        ("Wallet", &wallet, "WalletOpened", ["2", "1", "1"]),
    ] {
        let context = [NAMESPACE, &action_id, "conformance.stage"];
        expected.push(some(&[&context[..], &[model, id, event], &versions].concat()));
    }
    assert_eq!(events(db, &[&context[..], &of_event, &versions].concat()).await, expected);

    let payloads = events(db, &["action_params", "payload"]).await;
    assert!(payloads.iter().all(|row| payload(row, 0) == serde_json::json!({"number": 7})));
    assert_eq!(payload(&payloads[1], 1), serde_json::json!({"from": "old", "to": "y"}));
    let dates = events(db, &["started_date", "completion_date"]).await;
    let [began, completed] = [1, 2].map(|seconds| stored_text(db, stored_instant(seconds)));
    assert_eq!(dates, vec![some(&[&began, &completed]); 3]);
    let ids: std::collections::HashSet<TextRow> = events(db, &["id"]).await.into_iter().collect();
    assert_eq!(ids.len(), 3);
}

/// A date as the database prints it.
fn stored_text(db: &TestDatabase, at: DateTime<Utc>) -> String {
    let format = if db.dialect == Dialect::Sqlite { "%FT%T%.6fZ" } else { "%F %T%.6f" };
    at.format(format).to_string()
}

async fn a_change_without_events_leaves_one_row_with_four_nulls(db: &TestDatabase) {
    run(&db.executor().await, |ctx| Ok(ctx.plan().add_all([quiet(thing("a")), quiet(thing("b"))])))
        .await
        .unwrap();
    assert_eq!(
        events(db, &["model_id", "model_type", "event_type", "payload", "action_name"]).await,
        [[None, None, None, None, Some("conformance.stage".to_owned())]]
    );
    assert_eq!(
        events(db, &["model_version", "event_index", "event_version"]).await,
        [[None, None, None]]
    );
}

async fn new_rows_are_not_delivered(db: &TestDatabase) {
    let executor = db.executor().await;
    run(&executor, |ctx| Ok(ctx.plan().add(New::new(thing("a"), ThingEvent::Touched))))
        .await
        .unwrap();
    run(&executor, |ctx| Ok(ctx.plan().add(quiet(thing("b"))))).await.unwrap();
    let delivered = events(db, &["CASE WHEN delivered THEN 1 ELSE 0 END"]).await;
    assert_eq!(delivered, [some(&["0"]), some(&["0"])]);
}

async fn principal_reason_and_trace_are_stored_or_null(db: &TestDatabase) {
    let executor = db.executor().await;
    let said = ["principal", "reason", "trace_parent"];
    run(&executor, |ctx| Ok(ctx.plan().add(quiet(thing("a"))))).await.unwrap();
    assert_eq!(events(db, &said).await, [[None, None, None]]);

    let action = Stage::with_params(|ctx: &mut ActionContext<'_>, _: &Number| {
        assert_eq!((ctx.principal(), ctx.reason()), (Some("alice"), Some("a reason")));
        Ok(ctx.plan().add(New::new(thing("b"), ThingEvent::Touched)))
    });
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    executor
        .execute(&action, Number { number: 1 })
        .principal("alice")
        .reason("a reason")
        .trace_parent(trace)
        .await
        .unwrap();
    let rows = events(db, &said).await;
    assert!(rows.contains(&some(&["alice", "a reason", trace])), "{rows:?}");

    // A header that is no trace parent is dropped, and the call runs.
    let number = db.count_events().await;
    let foreign = "463ac35c9f6413ad48485a3953bb6124-a2fb4a1d1a96d312-1";
    executor
        .execute(&stage(|ctx| Ok(ctx.plan().add(quiet(thing("c"))))), Nothing {})
        .trace_parent(foreign)
        .await
        .unwrap();
    assert_eq!(db.count_events().await, number + 1);
    assert!(
        events(db, &["trace_parent"]).await.iter().all(|row| row[0].as_deref() != Some(foreign))
    );
}

async fn an_action_that_changes_nothing_writes_nothing(db: &TestDatabase) {
    let read = db.things().add(quiet(thing("a"))).await.unwrap();
    let executor = db.executor().await;
    let answer = run(&executor, |_| Ok(read.clone())).await.unwrap();
    assert_eq!(answer, read);
    run(&executor, |_| Err::<(), _>(Refused)).await.unwrap_err();
    assert_eq!(db.count_events().await, 0);
}

async fn record_reads_writes_a_row_for_an_action_that_changes_nothing(db: &TestDatabase) {
    let executor =
        ActionExecutor::builder(&db.databases, NAMESPACE).record_reads(true).build().await.unwrap();
    run(&executor, |_| Ok(())).await.unwrap();
    run(&executor, |_| Err::<(), _>(Refused)).await.unwrap_err();
    assert_eq!(
        events(db, &["action_name", "event_type"]).await,
        [[Some("conformance.stage".to_owned()), None]]
    );
}

async fn many_events_of_one_row_keep_their_order(db: &TestDatabase) {
    let labels: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    run(&THINGS.executor_on(&db.databases).await, |ctx| {
        let made: Vec<_> =
            labels.iter().map(|label| ThingEvent::Made { label: label.clone() }).collect();
        Ok(ctx.plan().add::<Thing>(New::new(thing("a"), made)))
    })
    .await
    .unwrap();
    let rows = events(db, &["payload"]).await;
    let stored: Vec<_> = rows.iter().map(|row| payload(row, 0)).collect();
    let expected: Vec<_> =
        labels.iter().map(|label| serde_json::json!({ "label": label })).collect();
    assert_eq!(stored, expected);
}

/// Makes the rows of the outbox two hours older. On SQLite the test's clock does it.
async fn age(db: &TestDatabase) {
    let subtract = match db.dialect {
        Dialect::Sqlite => return,
        Dialect::Postgres => "interval '2 hours'",
        Dialect::MySql | Dialect::MariaDb => "INTERVAL 2 HOUR",
    };
    let events = db.eventlog("events");
    db.execute(&format!("UPDATE {events} SET recorded_date = recorded_date - {subtract}")).await;
}

async fn deliver(db: &TestDatabase) {
    db.execute(&format!("UPDATE {} SET delivered = true", db.eventlog("events"))).await;
}

/// Adds a thing with an event, or without.
async fn add(db: &TestDatabase, label: &str, event: bool) {
    let adding = |ctx: &mut ActionContext<'_>| {
        let renamed = ThingEvent::Renamed { from: "old".into(), to: label.to_owned() };
        let events = if event { vec![renamed] } else { Vec::new() };
        ctx.plan().add(New::new(thing(label), events));
        Ok(())
    };
    run(&db.executor().await, adding).await.unwrap();
}

async fn a_young_row_cannot_be_deleted(db: &TestDatabase) {
    db.clock.set(Utc::now());
    add(db, "a", true).await;
    deliver(db).await;
    let mut relay = db.connect().await;
    let delete = format!("DELETE FROM {}", db.eventlog("events"));
    let error = relay.try_execute(&delete).await.expect_err("the row is needed").to_string();
    assert!(error.contains("kept for one hour"), "{error}");
    assert_eq!(db.databases.prune_outbox(Databases::OUTBOX_KEPT).await.unwrap(), 0);
    assert_eq!(db.count_events().await, 1);
    if db.dialect != Dialect::Sqlite {
        age(db).await;
        relay.execute(&delete).await;
        assert_eq!(db.count_events().await, 0);
    }
}

async fn old_rows_without_a_reader_are_pruned(db: &TestDatabase) {
    add(db, "delivered", true).await;
    deliver(db).await;
    add(db, "not delivered", true).await;
    // As other programs write events that have nothing to say.
    let events = db.eventlog("events");
    db.execute(&format!("UPDATE {events} SET payload = NULL WHERE delivered = false")).await;
    add(db, "without an event", false).await;
    age(db).await;
    db.clock.set(Utc::now());
    add(db, "young", false).await;
    assert_eq!(db.databases.prune_outbox(Databases::OUTBOX_KEPT).await.unwrap(), 2);
    assert_eq!(db.databases.prune_outbox(Databases::OUTBOX_KEPT).await.unwrap(), 0);
    assert_eq!(db.count_events().await, 2);
    let too_young = Databases::OUTBOX_KEPT - Duration::from_secs(1);
    let error = db.databases.prune_outbox(too_young).await.unwrap_err().to_string();
    assert!(error.contains("3599s is less"), "{error}");
    assert_eq!(db.databases.prune_outbox(Duration::MAX).await.unwrap(), 0);
}

async fn rows_are_pruned_in_pages(db: &TestDatabase) {
    let executor = db.executor().await;
    let action = Stage::with_params(|ctx: &mut ActionContext<'_>, params: &Number| {
        let renamed = |n: i64| ThingEvent::Renamed { from: "old".into(), to: n.to_string() };
        ctx.plan().add(New::new(thing("a"), (0..params.number).map(renamed).collect::<Vec<_>>()));
        Ok(())
    });
    executor.execute(&action, Number { number: 2_500 }).await.unwrap();
    deliver(db).await;
    age(db).await;
    assert_eq!(db.databases.prune_outbox(Databases::OUTBOX_KEPT).await.unwrap(), 2_500);
    assert_eq!(db.count_events().await, 0);
}
