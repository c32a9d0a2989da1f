//! Batches with more rows than any dialect allows parameters: behaviours 42 to 45.

use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;
use support::things::{Settings, Thing, Zone, quiet, thing, zone};
use support::{TestDatabase, instant, stored_instant};

use crate::actions::run;

on_every_database! {
    twenty_thousand_rows_are_added_and_updated,
    an_action_commits_twenty_thousand_rows,
    a_batch_with_a_stale_row_writes_nothing,
    a_hundred_thousand_ids_are_found_at_once,
    batch_and_single_updates_store_the_same_values,
    nullable_columns_may_be_null_in_every_row_of_a_batch,
}

const MANY: usize = 20_000;

fn zones(count: usize) -> Vec<New<Zone>> {
    (0..count).map(|n| New::new(zone(&n.to_string()), ())).collect()
}

async fn twenty_thousand_rows_are_added_and_updated(db: &TestDatabase) {
    let repository = db.databases.repository::<Zone>();
    let added = repository.add_all(zones(MANY)).await.unwrap();
    assert_eq!(repository.count().await.unwrap(), MANY as u64);
    let changed = added.into_iter().map(|zone| zone.apply(|zone| zone.name.push('x')));
    let updated = repository.update_all(changed).await.unwrap();
    assert_eq!(updated.len(), MANY);
    let wrong = "FROM zones WHERE version <> 2 OR name NOT LIKE '%x'";
    assert_eq!(db.select(&["count(*)"], wrong).await, [[Some("0".to_owned())]]);
    let last = updated.last().unwrap();
    assert_eq!(repository.get(last.id).await.unwrap(), *last);
}

async fn an_action_commits_twenty_thousand_rows(db: &TestDatabase) {
    let executor = db.executor().await;
    run(&executor, |ctx| Ok(ctx.plan().add_all(zones(MANY)))).await.unwrap();
    assert_eq!((db.count("zones").await, db.count_events().await), (MANY, 1));
}

async fn a_batch_with_a_stale_row_writes_nothing(db: &TestDatabase) {
    let repository = db.databases.repository::<Zone>();
    let read = repository.add_all(zones(1_000)).await.unwrap();
    let overtaken = read[700].clone();
    repository.update(overtaken.clone().apply(|_| ())).await.unwrap();
    let changed = read.into_iter().map(|zone| zone.apply(|zone| zone.name.push('x')));
    match repository.update_all(changed).await.unwrap_err() {
        WriteError::Stale(rows) => {
            let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
            assert_eq!(ids, [overtaken.id.uuid()]);
        }
        other => panic!("{other:?}"),
    }
    let changed = "FROM zones WHERE name LIKE '%x'";
    assert_eq!(db.select(&["count(*)"], changed).await, [[Some("0".to_owned())]]);
}

async fn a_hundred_thousand_ids_are_found_at_once(db: &TestDatabase) {
    let repository = db.databases.repository::<Zone>();
    let stored = repository.add_all(zones(3)).await.unwrap();
    let mut ids: Vec<Id<Zone>> = (0..100_000).map(|_| Id::new()).collect();
    for (zone, at) in stored.iter().zip([0, 50_000, 99_999]) {
        ids[at] = zone.id;
    }
    let mut found = repository.find_by_ids(&ids).await.unwrap();
    found.sort_by_key(|zone| zone.name.clone());
    assert_eq!(found, stored);
    let named = Zone::ID.is_in(ids);
    assert_eq!(repository.count_where(named).await.unwrap(), 3);
}

/// Dates, JSON and numbers are stored alike by single and batch updates.
async fn batch_and_single_updates_store_the_same_values(db: &TestDatabase) {
    let labels = ["single", "batch 1", "batch 2"];
    let read = db.things().add_all(labels.map(|label| quiet(thing(label)))).await.unwrap();
    db.clock.set(instant(7));
    let settings = Settings { tags: vec!["\"\\\u{1F980}".to_owned(), String::new()], depth: None };
    let at = DateTime::from_timestamp_micros(-1).unwrap();
    let mut changed: Vec<_> = read
        .into_iter()
        .map(|thing| {
            thing.apply(|thing| {
                thing.settings = settings.clone();
                thing.at = at;
                thing.seen_at = Some(at);
                thing.price = Decimal::new(-105, 1);
            })
        })
        .collect();
    let single = db.things().update(changed.remove(0)).await.unwrap();
    let mut expected = db.things().update_all(changed).await.unwrap();
    expected.push(single.clone());
    for thing in expected {
        let found = db.things().get(thing.id).await.unwrap();
        assert_eq!(found, thing);
        assert_eq!((&found.settings, found.at, found.seen_at), (&settings, at, Some(at)));
        assert_eq!(found.created_date(), stored_instant(0));
        assert_eq!(found.updated_date(), stored_instant(7));
    }
    // The stored text is the same, too.
    let columns = ["settings", "at", "seen_at", "price", "created_date", "updated_date", "version"];
    let rows = db.select(&columns, "FROM things").await;
    assert!(rows.iter().all(|row| *row == rows[0]), "{rows:?}");
}

async fn nullable_columns_may_be_null_in_every_row_of_a_batch(db: &TestDatabase) {
    let read = db.things().add_all(["a", "b", "c"].map(|label| quiet(thing(label)))).await.unwrap();
    let emptied = |thing: &mut Thing| {
        thing.note = None;
        thing.weight = None;
        thing.seen_at = None;
        thing.seen_on = None;
        thing.hits = None;
    };
    let changed = read.into_iter().map(|thing| thing.apply(emptied));
    for thing in db.things().update_all(changed).await.unwrap() {
        assert_eq!(db.things().get(thing.id).await.unwrap(), thing);
    }
    let nulls = "FROM things WHERE note IS NULL AND weight IS NULL AND seen_at IS NULL \
                 AND seen_on IS NULL AND hits IS NULL";
    assert_eq!(db.select(&["count(*)"], nulls).await, [[Some("3".to_owned())]]);
}
