//! Events of other programs that are unlike those of this framework: unreadable, long, or many at once.

use std::time::Duration;

use ekbatan::events::{DeliveryFilter, HandlerOptions};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::{Dialect, Recorder, until};
use tracing::Level;

use crate::backlog::closings;
use crate::scene::{Ledger, Scene, executor, node, post};

mod where_ids_are_texts {
    use super::*;

    on_every_database! { only sqlite and mysql:
        events_without_uuids_stop_no_other_one,
        an_event_whose_id_is_in_capitals_is_passed_over_until_it_is_corrected,
        a_column_that_cannot_be_read_parks_its_event_only,
    }
}

mod everywhere {
    use super::*;

    on_every_database! {
        a_long_payload_is_read_when_its_run_begins,
        an_event_that_is_set_back_with_its_delivery_stops_no_other_one,
        an_event_that_cannot_be_read_is_left_out_of_a_replay,
    }
}

mod of_mysql {
    use super::*;

    on_every_database! { only mysql and mariadb: an_event_of_the_year_one_stops_no_other_one }
}

on_every_database! { on_sqlite_only:
    events_without_any_id_stop_no_other_one,
    a_sweep_of_more_than_a_commit_holds_goes_on,
    a_long_payload_of_this_process_is_read_when_its_run_begins,
    dead_letters_are_selected_by_name_beside_one_that_cannot_be_read,
    an_event_of_the_year_10000_stops_no_other_one,
}

/// Longer than what a look reads of an event.
const LONG: usize = 100_000;

fn options() -> HandlerOptions {
    // The events of other programs have an old date.
    HandlerOptions::default().max_age(None)
}

async fn events_without_uuids_stop_no_other_one(scene: &Scene) {
    let events = scene.scratch.eventlog("events");
    let rows = closings(Uuid::now_v7(), 1..=4);
    scene.insert_events(&rows).await;
    let mut ids = vec!["'import-1'", "'9'"];
    if scene.scratch.dialect == Dialect::Sqlite {
        ids.push("x'00ff'");
    }
    for (id, version) in ids.iter().zip(2..) {
        let renamed = format!("UPDATE {events} SET id = {id} WHERE model_version = {version}");
        scene.scratch.execute(&renamed).await;
    }
    let wallet = Id::from_uuid(rows[0].wallet);
    let _node = scene.node().handler_with(Ledger::posting(), options()).start().await.unwrap();
    let others = 4 - ids.len();
    until("the others are posted", async || scene.posted(wallet).await.len() == others).await;
    scene.insert_events(&closings(wallet.uuid(), 5..=5)).await;
    until("so is a later one", async || scene.posted(wallet).await.len() == others + 1).await;
    // They are passed over once, so that they are in nobody's way.
    let lacking = format!("FROM {events} WHERE fanned_out IS NULL");
    until("no event lacks deliveries", async || {
        scene.scratch.select(&["id"], &lacking).await.is_empty()
    })
    .await;
}

/// SQLite takes a row whose primary key is null. So many fill each page of the sweep.
async fn events_without_any_id_stop_no_other_one(scene: &Scene) {
    let rows = closings(Uuid::now_v7(), 1..=5);
    scene.insert_events(&rows).await;
    let events = scene.scratch.eventlog("events");
    let nameless = format!("UPDATE {events} SET id = NULL WHERE model_version <= 3");
    scene.scratch.execute(&nameless).await;
    let wallet = Id::from_uuid(rows[0].wallet);
    let node = scene.node().swept_at_once(2).handler_with(Ledger::posting(), options());
    let _node = node.start().await.unwrap();
    until("the others are posted", async || scene.posted(wallet).await == [4, 5]).await;
}

/// Its id would not be found again: the database compares texts.
async fn an_event_whose_id_is_in_capitals_is_passed_over_until_it_is_corrected(scene: &Scene) {
    let events = scene.scratch.eventlog("events");
    let rows = closings(Uuid::now_v7(), 1..=2);
    scene.insert_events(&rows).await;
    let set = async |change: &str| {
        scene
            .scratch
            .execute(&format!("UPDATE {events} SET {change} WHERE model_version = 1"))
            .await;
    };
    set("id = upper(id)").await;
    let wallet = Id::from_uuid(rows[0].wallet);
    let _node = scene.node().handler_with(Ledger::posting(), options()).start().await.unwrap();
    until("the other one is posted", async || scene.posted(wallet).await == [2]).await;
    let lacking = format!("FROM {events} WHERE fanned_out IS NULL");
    until("no sweep looks at it any more", async || {
        scene.scratch.select(&["id"], &lacking).await.is_empty()
    })
    .await;
    assert_eq!(scene.posted(wallet).await, [2]);
    set("id = lower(id), fanned_out = NULL").await;
    until("the corrected one is posted", async || scene.posted(wallet).await == [2, 1]).await;
}

async fn a_column_that_cannot_be_read_parks_its_event_only(scene: &Scene) {
    let events = scene.scratch.eventlog("events");
    let rows = closings(Uuid::now_v7(), 1..=3);
    scene.insert_events(&rows).await;
    let set = async |column: &str, value: &str, version: i64| {
        let unreadable =
            format!("UPDATE {events} SET {column} = {value} WHERE model_version = {version}");
        scene.scratch.execute(&unreadable).await;
    };
    set("action_id", "'import-1'", 2).await;
    if scene.scratch.dialect == Dialect::Sqlite {
        // A payload is read with others, and this one by itself.
        let other = closings(Uuid::now_v7(), 9..=9);
        scene.insert_events(&other).await;
        set("payload", "x'00ff'", 9).await;
    }
    let wallet = Id::from_uuid(rows[0].wallet);
    let _node = scene.node().handler_with(Ledger::posting(), options()).start().await.unwrap();
    until("the first is posted", async || scene.posted(wallet).await == [1]).await;
    let operations = scene.operations();
    let expected = if scene.scratch.dialect == Dialect::Sqlite { 2 } else { 1 };
    until("what cannot be read is parked", async || {
        operations.parked(10).await.unwrap().len() == expected
    })
    .await;
    for parked in operations.parked(10).await.unwrap() {
        let why = parked.last_error.unwrap();
        let column = if parked.model_version == 2 { "`action_id`" } else { "`payload`" };
        assert!(why.contains("the event cannot be read") && why.contains(column), "{why}");
    }
    let later = closings(Uuid::now_v7(), 1..=1);
    scene.insert_events(&later).await;
    let of_later = Id::from_uuid(later[0].wallet);
    until("another model goes on", async || scene.posted(of_later).await == [1]).await;
    set("action_id", &format!("'{}'", rows[1].id), 2).await;
    for parked in operations.parked(10).await.unwrap() {
        operations.retry(parked.id, "alice", "corrected").await.unwrap();
    }
    until("a corrected one is posted", async || scene.posted(wallet).await == [1, 2, 3]).await;
}

async fn a_long_payload_is_read_when_its_run_begins(scene: &Scene) {
    let events = scene.scratch.eventlog("events");
    let rows = closings(Uuid::now_v7(), 1..=3);
    scene.insert_events(&rows).await;
    let note = "x".repeat(LONG);
    let long = format!(
        "UPDATE {events} SET payload = '{{\"balance\":\"1\",\"note\":\"{note}\"}}' \
         WHERE model_version = 2"
    );
    scene.scratch.execute(&long).await;
    let shard = scene.databases.shards().next().unwrap();
    let ids = rows.iter().map(|row| row.id).collect();
    let mut found = shard.short_events(ids, 1_000).await.unwrap();
    found.sort_by_key(|(event, _)| event.model_version);
    let payloads: Vec<bool> = found.iter().map(|(event, _)| event.payload == "{}").collect();
    assert_eq!(payloads, [false, true, false]);
    assert!(found[1].1.unwrap() > LONG && found[0].1.is_none());
    let _node = scene.node().handler_with(Ledger::posting(), options()).start().await.unwrap();
    let wallet = Id::from_uuid(rows[0].wallet);
    until("all are posted", async || scene.posted(wallet).await == [1, 2, 3]).await;
}

/// As an `UPDATE` does that was to correct other events.
async fn an_event_that_is_set_back_with_its_delivery_stops_no_other_one(scene: &Scene) {
    let [broken, later] = [(); 2].map(|()| closings(Uuid::now_v7(), 1..=1));
    let stopped = broken[0].wallet.to_string();
    let ledger = Ledger::new(move |ctx, event| {
        if event.model_id == stopped {
            async { Err("the ledger is closed".into()) }.boxed()
        } else {
            post(ctx, event)
        }
    });
    scene.insert_events(&broken).await;
    let node = scene.node().handler_with(ledger, options().max_attempts(1));
    let _node = node.start().await.unwrap();
    let operations = scene.operations();
    until("it is parked", async || operations.parked(10).await.unwrap().len() == 1).await;
    let events = scene.scratch.eventlog("events");
    scene.scratch.execute(&format!("UPDATE {events} SET fanned_out = NULL")).await;
    scene.insert_events(&later).await;
    let wallet = Id::from_uuid(later[0].wallet);
    until("the other one is posted", async || scene.posted(wallet).await == [1]).await;
    assert_eq!(operations.parked(10).await.unwrap().len(), 1);
}

async fn a_long_payload_of_this_process_is_read_when_its_run_begins(scene: &Scene) {
    let names = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let known = names.clone();
    let ledger = Ledger::new(move |_, event| {
        if let support::wallet::WalletEvent::Opened { owner, .. } = &event.event {
            known.lock().unwrap().push(owner.len());
        }
        Box::pin(async { Ok(()) })
    });
    let _node = scene.node().handler(ledger).start().await.unwrap();
    let opening = support::wallet::Opening { owner: "x".repeat(LONG), currency: "EUR".to_owned() };
    scene.executor.execute(&support::wallet::OpenWallet, opening).await.unwrap();
    scene.until_handled("ledger.post").await;
    assert_eq!(*names.lock().unwrap(), [LONG]);
}

async fn a_sweep_of_more_than_a_commit_holds_goes_on(scene: &Scene) {
    const EVENTS: i64 = 1_000;
    let config = scene.scratch.config().max_commit_bytes(50_000);
    let databases = Databases::connect(&config.into()).await.unwrap();
    let small = executor(&databases).await;
    let wallet = Uuid::now_v7();
    scene.insert_events(&closings(wallet, 1..=EVENTS)).await;
    let waiting = Ledger::new(|_, _| Box::pin(std::future::pending()));
    let node = node(&small).handles(false).handler_with(waiting, options()).start().await.unwrap();
    let deliveries = scene.scratch.eventlog("deliveries");
    until("all have their deliveries", async || {
        scene.scratch.count(&deliveries).await == EVENTS as usize
    })
    .await;
    node.drain(Duration::from_secs(60)).await;
}

async fn dead_letters_are_selected_by_name_beside_one_that_cannot_be_read(scene: &Scene) {
    let closed = Ledger::new(|_, _| Box::pin(async { Err("the ledger is closed".into()) }));
    let once = HandlerOptions::default().max_attempts(1).dead_letters();
    let _node = scene.node().handler_with(closed, once).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.open_wallet().await;
    let operations = scene.operations();
    until("both are dead letters", async || operations.dead_letters(10).await.unwrap().len() == 2)
        .await;
    let events = scene.scratch.eventlog("events");
    let spoil = format!("UPDATE {events} SET action_id = 'import-1' WHERE model_id = '{wallet}'");
    scene.scratch.execute(&spoil).await;
    let all = DeliveryFilter::dead_letters("ledger.post");
    assert_eq!(operations.count(&all).await.unwrap(), 2);
    let openings = all.event_type("WalletOpened").model_type("Wallet");
    assert_eq!(operations.count(&openings).await.unwrap(), 1);
    assert_eq!(operations.purge(&openings, 1, "alice", "a test").await.unwrap(), 1);
}

/// Year 1 is what programs in Go and .NET store for a date that was never set. MySQL can read it, but takes none before
/// the year 1000.
async fn an_event_of_the_year_one_stops_no_other_one(scene: &Scene) {
    an_event_with_this_date_stops_no_other_one(scene, "0001-01-01 00:00:00").await;
}

async fn an_event_of_the_year_10000_stops_no_other_one(scene: &Scene) {
    an_event_with_this_date_stops_no_other_one(scene, "9999-12-31T23:59:59-01:00").await;
}

async fn an_event_with_this_date_stops_no_other_one(scene: &Scene, date: &str) {
    let rows = closings(Uuid::now_v7(), 1..=2);
    scene.insert_events(&rows).await;
    change_event(scene, 2, &format!("event_date = '{date}'")).await;
    let _node = scene.node().handler_with(Ledger::posting(), options()).start().await.unwrap();
    let wallet = Id::from_uuid(rows[0].wallet);
    until("both are posted", async || scene.posted(wallet).await == [1, 2]).await;
    scene.insert_events(&closings(wallet.uuid(), 3..=3)).await;
    until("so is a later one", async || scene.posted(wallet).await == [1, 2, 3]).await;
}

async fn an_event_that_cannot_be_read_is_left_out_of_a_replay(scene: &Scene) {
    let rows = closings(Uuid::now_v7(), 1..=3);
    scene.insert_events(&rows).await;
    let date = match scene.scratch.dialect {
        Dialect::Sqlite => "yesterday",
        Dialect::Postgres => "infinity",
        Dialect::MySql | Dialect::MariaDb => ZERO,
    };
    change_event(scene, 3, &format!("event_date = '{date}'")).await;
    let _node = scene.node().handler_with(Ledger::posting(), options()).start().await.unwrap();
    let wallet = Id::from_uuid(rows[0].wallet);
    until("the others are posted", async || scene.posted(wallet).await == [1, 2]).await;
    scene.until_handled("ledger.post").await;
    let (operations, stored) = (scene.operations(), DeliveryFilter::stored_events("ledger.post"));
    assert_eq!(operations.count(&stored).await.unwrap(), 2);
    operations.replay_all(&stored, 2, "alice", "the ledger was lost").await.unwrap();
    until("the others are posted again", async || scene.posted(wallet).await == [1, 2, 1, 2]).await;
}

/// What is logged is recorded on one thread only.
#[tokio::test]
async fn an_event_without_a_model_is_reported() {
    an_event_that_lacks_something_is_reported(Dialect::Sqlite, "model_id = NULL").await;
}

#[tokio::test]
async fn an_event_without_a_date_is_reported() {
    let nothing = format!("event_date = '{ZERO}'");
    an_event_that_lacks_something_is_reported(Dialect::MySql, &nothing).await;
}

/// What the driver of MySQL reads as no date.
const ZERO: &str = "0000-00-00 00:00:00";

async fn an_event_that_lacks_something_is_reported(dialect: Dialect, change: &str) {
    let scene = Scene::start(dialect).await;
    let (recorder, _guard) = Recorder::start();
    let rows = closings(Uuid::now_v7(), 1..=2);
    scene.insert_events(&rows).await;
    change_event(&scene, 2, change).await;
    let _node = scene.node().handler_with(Ledger::posting(), options()).start().await.unwrap();
    let wallet = Id::from_uuid(rows[0].wallet);
    until("the other one is posted", async || scene.posted(wallet).await == [1]).await;
    let id = rows[1].id.to_string();
    until("it is reported", async || {
        let all = recorder.all();
        let mut errors = all.iter().filter(|event| event.level == Level::ERROR);
        errors.any(|event| event.field("event") == Some(&id))
    })
    .await;
}

/// Changes an event as a program does that checks nothing.
async fn change_event(scene: &Scene, version: i64, change: &str) {
    let lax = match scene.scratch.dialect {
        Dialect::MySql | Dialect::MariaDb => "SET SESSION sql_mode = '';",
        _ => "",
    };
    let events = scene.scratch.eventlog("events");
    let change = format!("{lax} UPDATE {events} SET {change} WHERE model_version = {version}");
    scene.scratch.execute(&change).await;
}
