//! Reads, and writes outside actions: behaviours 41, 42 and 46 to 48.

use ekbatan::domain::{Changed, New};
use ekbatan::prelude::*;
use ekbatan::repository::{Condition, PageRequest, Repository, WriteError};
use futures_util::TryStreamExt as _;
use support::TestDatabase;
use support::things::{Thing, ThingEvent, as_stored, quiet, thing, zone};

use crate::actions::Refused;

on_every_database! {
    every_field_type_round_trips_in_single_and_batch_writes,
    every_write_works_outside_a_transaction,
    every_write_works_in_a_transaction_and_rolls_back_with_it,
    a_stale_row_is_refused_in_single_and_batch_updates,
    a_stale_row_is_refused_in_a_transaction,
    a_missing_row_is_stale,
    empty_batches_write_nothing,
    a_batch_must_not_contain_a_row_twice,
    changing_the_id_is_refused,
    rows_with_events_are_refused,
    no_read_returns_deleted_rows,
    a_missing_row_is_not_found,
    find_by_ids_returns_each_known_id_once,
    find_one_returns_one_row_and_refuses_two,
    a_stream_returns_every_row_once,
}

async fn every_field_type_round_trips_in_single_and_batch_writes(db: &TestDatabase) {
    let full = thing("full");
    let empty = Thing {
        note: None,
        weight: None,
        seen_at: None,
        seen_on: None,
        hits: None,
        settings: support::things::Settings { tags: vec![], depth: None },
        raw: vec![],
        ratio: f64::MIN_POSITIVE,
        price: Decimal::new(-1, 2),
        big: i64::MIN,
        active: false,
        ..thing("")
    };
    let extreme =
        Thing { ratio: f64::MAX, hits: Some(-1), huge: i64::MAX as u64, ..thing("\\\n☃") };
    let things = [full.clone(), empty, extreme];
    db.things().add(quiet(things[0].clone())).await.unwrap();
    db.things().add_all(things[1..].iter().cloned().map(quiet)).await.unwrap();
    assert_eq!(*db.things().get(full.id).await.unwrap(), as_stored(full));
    for value in &things[1..] {
        let found = db.things().get(value.id).await.unwrap();
        let expected = Thing { at: found.at, seen_at: found.seen_at, ..value.clone() };
        assert_eq!(*found, expected);
        assert_eq!(found.seen_at.is_some(), value.seen_at.is_some());
    }
}

/// Adds a, b and c, updates all of them, and deletes c.
async fn write_in_every_way(things: &Repository<Thing>) {
    let a = things.add(quiet(thing("a"))).await.unwrap();
    let others = things.add_all([quiet(thing("b")), quiet(thing("c"))]).await.unwrap();
    assert_eq!(things.update(a.apply(|thing| thing.small = 1)).await.unwrap().version(), 2);
    let changed = others.into_iter().map(|thing| thing.apply(|thing| thing.small = 2));
    let mut others = things.update_all(changed).await.unwrap();
    assert_eq!(others.iter().map(|thing| &*thing.label).collect::<Vec<_>>(), ["b", "c"]);
    let c = things.delete(others.remove(1)).await.unwrap();
    assert_eq!((c.version(), c.created_date()), (3, others[0].created_date()));
}

async fn written(things: &Repository<Thing>) -> Vec<(String, i32, i64)> {
    let mut found: Vec<_> = things
        .find_all()
        .await
        .unwrap()
        .into_iter()
        .map(|thing| (thing.label.clone(), thing.small, thing.version()))
        .collect();
    found.sort();
    found
}

async fn every_write_works_outside_a_transaction(db: &TestDatabase) {
    write_in_every_way(&db.things()).await;
    let expected = [("a".to_owned(), 1, 2), ("b".to_owned(), 2, 2)];
    assert_eq!(written(&db.things()).await, expected);
    assert_eq!(db.count_events().await, 0);
}

async fn every_write_works_in_a_transaction_and_rolls_back_with_it(db: &TestDatabase) {
    let expected = [("a".to_owned(), 1, 2), ("b".to_owned(), 2, 2)];
    for commits in [false, true] {
        let answer = db
            .databases
            .transactions()
            .in_transaction(async |tx| {
                let things = db.things().within(&tx);
                write_in_every_way(&things).await;
                assert_eq!(written(&things).await, expected);
                if commits { Ok(()) } else { Err(Refused) }
            })
            .await;
        assert_eq!(answer.is_ok(), commits);
        assert_eq!(db.count("things").await, if commits { 3 } else { 0 });
    }
    assert_eq!(written(&db.things()).await, expected);
}

/// Returns three things as they were before the second one changed.
async fn three_things_one_changed(db: &TestDatabase) -> Vec<Stored<Thing>> {
    let read = db.things().add_all(["a", "b", "c"].map(|label| quiet(thing(label)))).await.unwrap();
    db.things().update(read[1].clone().apply(|thing| thing.small = 1)).await.unwrap();
    read
}

/// The model, the id and the expected version of each stale row.
fn stale(error: WriteError) -> Vec<(&'static str, Uuid, i64)> {
    match error {
        WriteError::Stale(rows) => {
            rows.iter().map(|row| (row.model, row.id, row.expected_version)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn changes(read: &[Stored<Thing>]) -> Vec<Changed<Thing>> {
    read.iter().cloned().map(|thing| thing.apply(|thing| thing.small = 9)).collect()
}

async fn a_stale_row_is_refused_in_single_and_batch_updates(db: &TestDatabase) {
    let read = three_things_one_changed(db).await;
    let row = ("Thing", read[1].id.uuid(), 1);
    let alone = db.things().update(changes(&read).remove(1)).await.unwrap_err();
    assert_eq!(stale(alone), [row]);
    assert_eq!(stale(db.things().update_all(changes(&read)).await.unwrap_err()), [row]);
    assert_eq!(stale(db.things().delete(read[1].clone()).await.unwrap_err()), [row]);
    let expected = [("a".to_owned(), -7, 1), ("b".to_owned(), 1, 2), ("c".to_owned(), -7, 1)];
    assert_eq!(written(&db.things()).await, expected);
}

async fn a_stale_row_is_refused_in_a_transaction(db: &TestDatabase) {
    let read = three_things_one_changed(db).await;
    db.databases
        .transactions()
        .in_transaction(async |tx| {
            let things = db.things().within(&tx);
            assert_eq!(stale(things.update(changes(&read).remove(1)).await.unwrap_err()).len(), 1);
            assert_eq!(stale(things.update_all(changes(&read)).await.unwrap_err()).len(), 1);
            // A stale row does not end the transaction.
            things.add(quiet(thing("d"))).await.unwrap();
            Ok::<_, Refused>(())
        })
        .await
        .unwrap();
    let sum: i32 = written(&db.things()).await.iter().map(|(_, small, _)| small).sum();
    assert_eq!((sum, db.count("things").await), (-7 + 1 - 7 - 7, 4));
}

async fn a_missing_row_is_stale(db: &TestDatabase) {
    let read = db.things().add(quiet(thing("a"))).await.unwrap();
    db.execute("DELETE FROM things").await;
    let error = db.things().update(read.clone().apply(|_| ())).await.unwrap_err();
    assert_eq!(stale(error).len(), 1);
}

async fn empty_batches_write_nothing(db: &TestDatabase) {
    assert_eq!(db.things().add_all([]).await.unwrap(), []);
    assert_eq!(db.things().update_all([]).await.unwrap(), []);
    assert_eq!(db.count("things").await, 0);
}

async fn a_batch_must_not_contain_a_row_twice(db: &TestDatabase) {
    let value = thing("a");
    let twice = [quiet(value.clone()), quiet(value.clone())];
    let error = db.things().add_all(twice).await.unwrap_err();
    assert!(matches!(error, WriteError::Twice { id, .. } if id == value.id.uuid()), "{error:?}");
    assert_eq!(db.count("things").await, 0);
}

async fn changing_the_id_is_refused(db: &TestDatabase) {
    let read = db.things().add(quiet(thing("a"))).await.unwrap();
    let moved = read.clone().apply(|thing| thing.id = Id::new());
    let error = db.things().update(moved).await.unwrap_err();
    assert!(matches!(error, WriteError::IdChanged { id, .. } if id == read.id.uuid()), "{error:?}");
    assert_eq!(db.things().find_all().await.unwrap(), [read]);
}

async fn rows_with_events_are_refused(db: &TestDatabase) {
    let carries = |answer: Result<Stored<Thing>, WriteError>, expected: usize| {
        let error = answer.unwrap_err();
        assert!(
            matches!(error, WriteError::CarriesEvents { model: "Thing", count, .. } if count == expected),
            "{error:?}"
        );
    };
    let read = db.things().add(quiet(thing("a"))).await.unwrap();
    let things = db.things();
    let touched = || read.clone().apply(|_| [ThingEvent::Touched, ThingEvent::Touched]);
    carries(things.add(New::new(thing("b"), ThingEvent::Touched)).await, 1);
    carries(things.update(touched()).await, 2);
    carries(things.delete(touched()).await, 2);
    let both = [quiet(thing("c")), New::new(thing("d"), ThingEvent::Touched)];
    carries(things.add_all(both).await.map(|mut all| all.remove(0)), 1);
    assert_eq!(things.find_all().await.unwrap(), [read]);
}

async fn no_read_returns_deleted_rows(db: &TestDatabase) {
    let things = db.things();
    let [kept, gone]: [Stored<Thing>; 2] = things
        .add_all([quiet(thing("kept")), quiet(thing("gone"))])
        .await
        .unwrap()
        .try_into()
        .unwrap();
    things.delete(gone.clone()).await.unwrap();
    let only_kept = std::slice::from_ref(&kept);
    let is_gone = || Thing::LABEL.eq("gone");
    assert_eq!(things.find(gone.id).await.unwrap(), None);
    assert!(matches!(things.get(gone.id).await, Err(ReadError::NotFound { .. })));
    assert!(!things.exists(gone.id).await.unwrap());
    assert_eq!(things.find_all().await.unwrap(), only_kept);
    assert_eq!(things.find_by_ids(&[kept.id, gone.id]).await.unwrap(), only_kept);
    assert_eq!(things.find_where(is_gone() | Thing::LABEL.eq("kept")).await.unwrap(), only_kept);
    assert_eq!(things.find_one(is_gone()).await.unwrap(), None);
    assert_eq!(things.count().await.unwrap(), 1);
    assert_eq!(things.count_where(is_gone()).await.unwrap(), 0);
    assert!(!things.exists_where(is_gone()).await.unwrap());
    assert_eq!(things.page(PageRequest::first(9)).await.unwrap().rows, only_kept);
    let streamed: Vec<_> = things.stream(Condition::all()).try_collect().await.unwrap();
    assert_eq!(streamed, only_kept);
    assert_eq!(things.on_replica().count().await.unwrap(), 1);
    assert_eq!(db.count("things").await, 2);
}

async fn a_missing_row_is_not_found(db: &TestDatabase) {
    let id = Id::new();
    match db.things().get(id).await.unwrap_err() {
        ReadError::NotFound { model: "Thing", id: named, .. } => assert_eq!(named, id.uuid()),
        other => panic!("{other:?}"),
    }
    assert_eq!(db.things().find(id).await.unwrap(), None);
    assert!(!db.things().exists(id).await.unwrap());
}

async fn find_by_ids_returns_each_known_id_once(db: &TestDatabase) {
    let stored = db.things().add_all(["a", "b"].map(|label| quiet(thing(label)))).await.unwrap();
    let (a, b) = (stored[0].id, stored[1].id);
    assert_eq!(db.things().find_by_ids(&[]).await.unwrap(), []);
    assert_eq!(db.things().find_by_ids(&[Id::new()]).await.unwrap(), []);
    let mut found = db.things().find_by_ids(&[b, a, Id::new(), b, a]).await.unwrap();
    found.sort_by_key(|thing| thing.label.clone());
    assert_eq!(found, stored);
}

async fn find_one_returns_one_row_and_refuses_two(db: &TestDatabase) {
    let stored = db.things().add_all(["a", "b"].map(|label| quiet(thing(label)))).await.unwrap();
    let found = db.things().find_one(Thing::LABEL.eq("b")).await.unwrap();
    assert_eq!(found.as_ref(), Some(&stored[1]));
    assert_eq!(db.things().find_one(Thing::LABEL.eq("c")).await.unwrap(), None);
    let error = db.things().find_one(Condition::all()).await.unwrap_err();
    assert!(matches!(error, ReadError::NotUnique { model: "Thing", .. }), "{error:?}");
}

async fn a_stream_returns_every_row_once(db: &TestDatabase) {
    let zones = db.databases.repository();
    let names = (0..1_200).map(|n| New::new(zone(&format!("{n:04}")), ()));
    zones.add_all(names).await.unwrap();
    let mut streamed: Vec<_> = zones.stream(Condition::all()).try_collect().await.unwrap();
    assert!(streamed.windows(2).all(|pair| pair[0].id < pair[1].id), "by id");
    streamed.sort_by_key(|zone| zone.name.clone());
    let names: Vec<_> = streamed.iter().map(|zone| zone.name.clone()).collect();
    assert_eq!(names, (0..1_200).map(|n| format!("{n:04}")).collect::<Vec<_>>());
}
