//! Values and plans: behaviours 2 to 12.

use ekbatan::action::PlanError;
use ekbatan::db::ChangeKind;
use ekbatan::domain::New;
use ekbatan::prelude::*;
use serde_json::json;
use support::things::{Thing, ThingEvent, ThingState, Zone, as_stored, quiet, thing, zone};
use support::wallet::Wallet;
use support::{TestDatabase, instant, stored_instant};

use crate::actions::run;

on_every_database! {
    dates_have_microseconds_and_start_equal,
    stored_values_differ_by_value_version_and_dates,
    an_update_increments_the_version_of_a_copy,
    ids_round_trip_through_database_and_text,
    events_name_the_model_and_its_id,
    two_tables_may_use_the_same_id,
}

on_every_database! {
    on_sqlite_only:
    copies_do_not_share_events,
    staging_a_row_twice_is_a_plan_error,
    changing_the_id_is_a_plan_error,
    empty_collections_stage_nothing,
    the_plan_lists_staged_changes_and_events,
    stored_values_differ_by_each_field,
    a_stored_value_that_no_row_can_be_is_not_deserialized,
    a_row_whose_version_is_below_one_is_not_read,
    a_row_of_the_last_version_cannot_be_changed,
}

async fn dates_have_microseconds_and_start_equal(db: &TestDatabase) {
    let value = thing("a");
    let added = db.things().add(quiet(value.clone())).await.unwrap();
    assert_eq!(added.created_date(), stored_instant(0));
    assert_eq!(added.updated_date(), added.created_date());
    assert_eq!(added.clone().into_value(), as_stored(value));
    assert_eq!(db.things().get(added.id).await.unwrap(), added);

    db.clock.set(instant(9));
    let updated = db.things().update(added.apply(|thing| thing.small = 8)).await.unwrap();
    assert_eq!(updated.created_date(), stored_instant(0));
    assert_eq!(updated.updated_date(), stored_instant(9));
    assert_eq!(db.things().get(updated.id).await.unwrap(), updated);
}

async fn copies_do_not_share_events(db: &TestDatabase) {
    let added = db.things().add(quiet(thing("a"))).await.unwrap();
    let changed = added.apply(|_| ThingEvent::Touched);
    let copy = changed.clone().apply(|_| [ThingEvent::Touched, ThingEvent::Touched]);
    assert_eq!(changed.events().len(), 1);
    assert_eq!(copy.events().len(), 3);
}

async fn stored_values_differ_by_value_version_and_dates(db: &TestDatabase) {
    let added = db.things().add(quiet(thing("a"))).await.unwrap();
    assert_eq!(added, added.clone());
    db.clock.set(instant(1));
    let touched = db.things().update(added.clone().apply(|_| ())).await.unwrap();
    assert_eq!(*touched, *added, "equal values");
    assert_ne!(touched, added, "another version and date");
    let other = db.things().add(quiet(Thing { id: Id::new(), ..thing("b") })).await.unwrap();
    assert_ne!(other, touched);
}

async fn an_update_increments_the_version_of_a_copy(db: &TestDatabase) {
    let read = db.things().add(quiet(thing("a"))).await.unwrap();
    let staged = run(&db.executor().await, |ctx| {
        Ok(ctx.plan().update(read.clone().apply(|thing| thing.big = 1)))
    })
    .await
    .unwrap();
    assert_eq!((read.version(), read.big), (1, i64::MAX));
    assert_eq!((staged.version(), staged.big), (2, 1));
    assert_eq!(db.things().get(read.id).await.unwrap(), staged);
}

async fn ids_round_trip_through_database_and_text(db: &TestDatabase) {
    let added = db.things().add(quiet(thing("a"))).await.unwrap();
    let id: Id<Thing> = added.id.to_string().parse().unwrap();
    assert_eq!(db.things().get(id).await.unwrap().id, id);
    assert!("no uuid".parse::<Id<Thing>>().is_err());
}

async fn events_name_the_model_and_its_id(db: &TestDatabase) {
    let value = thing("a");
    run(&db.executor().await, |ctx| {
        Ok(ctx.plan().add(New::new(value.clone(), ThingEvent::Touched)))
    })
    .await
    .unwrap();
    let events =
        db.select(&["model_type", "model_id"], &format!("FROM {}", db.eventlog("events"))).await;
    assert_eq!(events, [[Some("Thing".to_owned()), Some(value.id.to_string())]]);
}

async fn staging_a_row_twice_is_a_plan_error(db: &TestDatabase) {
    let executor = db.executor().await;
    let stored = db.things().add(quiet(thing("stored"))).await.unwrap();
    let fresh = thing("fresh");
    let add = |ctx: &mut ActionContext<'_>, value: &Thing| {
        ctx.plan().add(quiet(value.clone()));
    };
    let update = |ctx: &mut ActionContext<'_>| {
        ctx.plan().update(stored.clone().apply(|thing| thing.big = 2));
    };
    for (id, answer) in [
        (fresh.id, run(&executor, |ctx| Ok([(); 2].map(|()| add(ctx, &fresh)))).await.map(drop)),
        (
            stored.id,
            run(&executor, |ctx| {
                add(ctx, &stored);
                update(ctx);
                Ok(())
            })
            .await,
        ),
        (
            stored.id,
            run(&executor, |ctx| {
                update(ctx);
                add(ctx, &stored);
                Ok(())
            })
            .await,
        ),
        (stored.id, run(&executor, |ctx| Ok([(); 2].map(|()| update(ctx)))).await.map(drop)),
    ] {
        match answer.unwrap_err() {
            ExecuteError::Plan(PlanError::StagedTwice { model: "Thing", id: found, .. }) => {
                assert_eq!(found, id.uuid());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(db.things().find_all().await.unwrap(), [stored]);
    assert_eq!(db.count_events().await, 0);
}

async fn changing_the_id_is_a_plan_error(db: &TestDatabase) {
    let stored = db.things().add(quiet(thing("a"))).await.unwrap();
    let error = run(&db.executor().await, |ctx| {
        Ok(ctx.plan().update(stored.clone().apply(|thing| thing.id = Id::new())))
    })
    .await
    .unwrap_err();
    assert!(
        matches!(error, ExecuteError::Plan(PlanError::IdChanged { id, .. }) if id == stored.id.uuid())
    );
    assert_eq!(db.things().find_all().await.unwrap(), [stored]);
}

async fn empty_collections_stage_nothing(db: &TestDatabase) {
    run(&db.executor().await, |ctx| {
        let plan = ctx.plan();
        assert_eq!(plan.add_all::<Thing>([]), []);
        assert_eq!(plan.update_all::<Thing>([]), []);
        assert_eq!(plan.delete_all::<Thing, Stored<Thing>>([]), []);
        assert_eq!((plan.changes().len(), plan.events().len()), (0, 0));
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(db.count_events().await, 0);
}

async fn two_tables_may_use_the_same_id(db: &TestDatabase) {
    let value = thing("a");
    let id = value.id.uuid();
    run(&db.executor().await, |ctx| {
        ctx.plan().add(quiet(value.clone()));
        ctx.plan().add(Wallet::open(Id::from_uuid(id), "alice", "EUR"));
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(db.things().get(Id::from_uuid(id)).await.unwrap().label, "a");
    assert_eq!(
        db.databases.repository::<Wallet>().get(Id::from_uuid(id)).await.unwrap().owner,
        "alice"
    );
}

async fn the_plan_lists_staged_changes_and_events(db: &TestDatabase) {
    let stored = db.databases.repository().add(New::new(zone("a"), ())).await.unwrap();
    run(&db.executor().await, |ctx| {
        ctx.plan().add(New::new(thing("a"), ThingEvent::Made { label: "a".to_owned() }));
        let deleted = ctx.plan().delete(stored.clone());
        assert_eq!((deleted.state, deleted.version()), (ThingState::Deleted, 2));
        let plan = ctx.plan();
        let changes: Vec<_> =
            plan.changes().map(|change| (change.table().name, change.kind())).collect();
        assert_eq!(changes, [("things", ChangeKind::Insert), ("zones", ChangeKind::Update)]);
        let events: Vec<_> = plan.events().map(|event| (event.name(), event.payload())).collect();
        assert_eq!(events, [("ThingMade", r#"{"label":"a"}"#)]);
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(db.count_events().await, 1);
}

/// The JSON of a stored thing, with other fields.
fn json_with(stored: &Stored<Thing>, fields: serde_json::Value) -> serde_json::Value {
    let mut json = serde_json::to_value(stored).unwrap();
    for (name, value) in fields.as_object().unwrap() {
        match value {
            serde_json::Value::Null => drop(json.as_object_mut().unwrap().remove(name)),
            value => json[name] = value.clone(),
        }
    }
    json
}

async fn stored_values_differ_by_each_field(db: &TestDatabase) {
    let stored = db.things().add(quiet(thing("a"))).await.unwrap();
    let read = |json| serde_json::from_value::<Stored<Thing>>(json).unwrap();
    let later = stored_instant(1);
    assert_eq!(read(json_with(&stored, json!({}))), stored);
    let version = read(json_with(&stored, json!({ "version": 2 })));
    assert_eq!((&*version, version.version()), (&*stored, 2));
    assert_ne!(version, stored);
    let created = read(json_with(&stored, json!({ "created_date": later })));
    assert_eq!((created.created_date(), created.version()), (later, 1));
    assert_ne!(created, stored);
    let updated = read(json_with(&stored, json!({ "updated_date": later })));
    assert_eq!((updated.updated_date(), updated.version()), (later, 1));
    assert_ne!(updated, stored);
    let value = serde_json::to_value(Thing { small: 8, ..stored.clone().into_value() }).unwrap();
    let value = read(json_with(&stored, json!({ "value": value })));
    assert_eq!((value.version(), value.updated_date()), (1, stored.updated_date()));
    assert_ne!(value, stored);
}

async fn a_stored_value_that_no_row_can_be_is_not_deserialized(db: &TestDatabase) {
    let stored = db.things().add(quiet(thing("a"))).await.unwrap();
    for (fields, expected) in [
        (json!({ "version": 0 }), "no stored `Thing` has the version 0; versions start at 1"),
        (json!({ "version": -3 }), "no stored `Thing` has the version -3"),
        (json!({ "version": i64::MAX }), "no stored `Thing` has the version 9223372036854775807"),
        (json!({ "version": null }), "missing field `version`"),
        (json!({ "created_date": null }), "missing field `created_date`"),
        (json!({ "updated_date": null }), "missing field `updated_date`"),
        (json!({ "created_date": "yesterday" }), "invalid characters"),
        (
            json!({ "created_date": "2024-01-01T00:00:00.000000001Z" }),
            "no stored `Thing` has the created_date 2024-01-01T00:00:00.000000001Z",
        ),
        (
            json!({ "updated_date": "+10000-01-01T00:00:00Z" }),
            "no stored `Thing` has the updated_date",
        ),
        (
            json!({ "updated_date": "-0001-01-01T00:00:00Z" }),
            "no stored `Thing` has the updated_date",
        ),
    ] {
        let error = serde_json::from_value::<Stored<Thing>>(json_with(&stored, fields.clone()))
            .expect_err(&fields.to_string())
            .to_string();
        assert!(error.contains(expected), "{fields}: {error}");
    }
    // An entity has no dates.
    let zone = db.databases.repository().add(New::new(zone("a"), ())).await.unwrap();
    let json = serde_json::to_value(&zone).unwrap();
    assert_eq!(json, json!({ "value": &*zone, "version": 1 }));
    assert_eq!(serde_json::from_value::<Stored<Zone>>(json).unwrap(), zone);
}

async fn a_row_whose_version_is_below_one_is_not_read(db: &TestDatabase) {
    let stored = db.things().add(quiet(thing("a"))).await.unwrap();
    for version in [0, -3] {
        db.execute(&format!("UPDATE things SET version = {version}")).await;
        let by_id = db.things().get(stored.id).await.unwrap_err();
        let with_all = db.things().find_all().await.unwrap_err();
        for error in [by_id, with_all] {
            assert!(matches!(error, ReadError::Row { .. }), "{error:?}");
            let expected = format!(
                "Thing {}: column `version`: the database holds {version}; versions start at 1",
                stored.id
            );
            assert_eq!(error.to_string(), expected);
        }
    }
    db.execute("UPDATE things SET version = 1").await;
    assert_eq!(db.things().find_all().await.unwrap(), [stored]);
}

async fn a_row_of_the_last_version_cannot_be_changed(db: &TestDatabase) {
    db.things().add(quiet(thing("a"))).await.unwrap();
    db.execute(&format!("UPDATE things SET version = {}", i64::MAX)).await;
    let last = db.things().find_all().await.unwrap().remove(0);
    let changed = || last.clone().apply(|thing| thing.small = 8);
    let error = run(&db.executor().await, |ctx| Ok(ctx.plan().update(changed()))).await;
    match error.unwrap_err() {
        ExecuteError::Plan(PlanError::Field { source, .. }) => assert_eq!(source.column, "version"),
        other => panic!("{other:?}"),
    }
    let error = db.things().update(changed()).await.unwrap_err();
    assert!(error.to_string().contains("`version`"), "{error}");
}
