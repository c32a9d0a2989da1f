//! Executing: behaviours 23 to 28.

use ekbatan::action::{BuildError, ErrorKind, PlanError};
use ekbatan::db::SchemaError;
use ekbatan::domain::New;
use ekbatan::prelude::*;
use support::things::{Thing, ThingEvent, quiet, thing, zone};
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet, WalletError};
use support::{Dialect, TestDatabase, instant, stored_instant};

use crate::actions::{Refused, run};

on_every_database! {
    everything_that_is_staged_commits_as_one,
    nothing_is_written_when_one_row_fails,
    nothing_is_written_when_the_action_refuses,
    an_action_returns_the_stored_row,
    a_missing_table_is_an_error_that_names_model_and_table,
    the_injected_clock_dates_rows_events_and_ids,
    rows_that_refer_to_each_other_are_added_in_one_plan,
    deleted_rows_are_updates_that_leave_the_row,
}

on_every_database! {
    on_sqlite_only:
    a_namespace_is_a_dotted_identifier,
}

async fn a_namespace_is_a_dotted_identifier(db: &TestDatabase) {
    for good in ["wallets", "com.example.wallet", "_a.b_1"] {
        assert!(ActionExecutor::builder(&db.databases, good).build().await.is_ok(), "{good}");
    }
    for bad in ["", " ", "my-service", "com.example!", "a..b", "a.", "1a", &"n".repeat(256)] {
        match ActionExecutor::builder(&db.databases, bad).build().await.err() {
            Some(BuildError::Namespace { namespace, .. }) => assert_eq!(namespace, bad),
            other => panic!("{bad}: {other:?}"),
        }
    }
}

async fn everything_that_is_staged_commits_as_one(db: &TestDatabase) {
    let stored = db.things().add(quiet(thing("old"))).await.unwrap();
    let committed = run(&db.executor().await, |ctx| {
        let made = ThingEvent::Made { label: "new".to_owned() };
        let added = ctx.plan().add(New::new(thing("new"), made));
        let updated = ctx.plan().update(stored.clone().apply(|_| ThingEvent::Touched));
        let zone = ctx.plan().add(New::new(zone("z"), ()));
        Ok((added, updated, zone))
    })
    .await
    .unwrap();
    assert_eq!(db.things().get(committed.0.id).await.unwrap(), committed.0);
    assert_eq!(db.things().get(committed.1.id).await.unwrap(), committed.1);
    assert_eq!(db.databases.repository().get(committed.2.id).await.unwrap(), committed.2);
    assert_eq!(db.count_events().await, 2);
}

async fn nothing_is_written_when_one_row_fails(db: &TestDatabase) {
    db.things().add(quiet(thing("taken"))).await.unwrap();
    let error = run(&db.executor().await, |ctx| {
        ctx.plan().add(New::new(zone("z"), ()));
        ctx.plan().add_all([quiet(thing("free")), quiet(thing("taken"))]);
        Ok(())
    })
    .await
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unique);
    assert_eq!((db.count("things").await, db.count("zones").await), (1, 0));
    assert_eq!(db.count_events().await, 0);
}

async fn nothing_is_written_when_the_action_refuses(db: &TestDatabase) {
    let error = run(&db.executor().await, |ctx| {
        ctx.plan().add(quiet(thing("a")));
        Err::<(), _>(Refused)
    })
    .await
    .unwrap_err();
    assert!(matches!(error, ExecuteError::Domain(Refused)));
    assert_eq!((db.count("things").await, db.count_events().await), (0, 0));
}

async fn an_action_returns_the_stored_row(db: &TestDatabase) {
    let executor = db.executor().await;
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let opened = executor.execute(&OpenWallet, opening).await.unwrap();
    let amount = Decimal::new(250, 2);
    let deposit = Deposit { wallet: opened.id, amount };
    let deposited = executor.execute(&DepositMoney, deposit).await.unwrap();
    assert_eq!((deposited.version(), deposited.balance), (2, amount));
    assert_eq!(db.databases.repository::<Wallet>().get(opened.id).await.unwrap(), deposited);

    let unknown = Deposit { wallet: Id::new(), amount };
    let error = executor.execute(&DepositMoney, unknown).await.unwrap_err();
    assert!(matches!(
        error,
        ExecuteError::Domain(WalletError::Read(ReadError::NotFound { model: "Wallet", .. }))
    ));
}

#[derive(Debug, Clone, Entity)]
#[entity(table = "nowhere", name = "Stray")]
struct Stray {
    id: Id<Stray>,
    state: support::things::ThingState,
}

async fn a_missing_table_is_an_error_that_names_model_and_table(db: &TestDatabase) {
    let is_stray = |error: &SchemaError| matches!(error, SchemaError::NoTable { model: "Stray", table, .. } if table == "nowhere");
    let builder = ActionExecutor::builder(&db.databases, "a").model::<Stray>();
    match builder.build().await.err() {
        Some(BuildError::Schema(problems)) => {
            assert!(matches!(&problems[..], [only] if is_stray(only)), "{problems:?}");
        }
        other => panic!("{other:?}"),
    }
    let state = support::things::ThingState::Active;
    let error = run(&db.executor().await, |ctx| {
        Ok(ctx.plan().add(New::new(Stray { id: Id::new(), state }, ())))
    })
    .await
    .unwrap_err();
    assert!(
        matches!(&error, ExecuteError::Plan(PlanError::Schema(schema)) if is_stray(schema)),
        "{error:?}"
    );
}

async fn the_injected_clock_dates_rows_events_and_ids(db: &TestDatabase) {
    db.clock.set(instant(100));
    let added = run(&db.executor().await, |ctx| {
        assert_eq!(ctx.now(), stored_instant(100));
        let value = Thing { id: ctx.new_id(), ..thing("a") };
        Ok(ctx.plan().add(quiet(value)))
    })
    .await
    .unwrap();
    assert_eq!(added.created_date(), stored_instant(100));
    let (seconds, _) = added.id.uuid().get_timestamp().unwrap().to_unix();
    assert_eq!(i64::try_from(seconds).unwrap(), instant(100).timestamp());
    let events = db.eventlog("events");
    let dates = db
        .select(&["started_date", "completion_date", "event_date"], &format!("FROM {events}"))
        .await;
    let expected = match db.dialect {
        Dialect::Postgres | Dialect::MySql | Dialect::MariaDb => {
            stored_instant(100).format("%F %T%.6f").to_string()
        }
        Dialect::Sqlite => stored_instant(100).format("%FT%T%.6fZ").to_string(),
    };
    assert_eq!(dates, [[(); 3].map(|()| Some(expected.clone()))]);
}

async fn rows_that_refer_to_each_other_are_added_in_one_plan(db: &TestDatabase) {
    let zone = zone("z");
    let value = Thing { zone: Some(zone.id), ..thing("a") };
    run(&db.executor().await, |ctx| {
        ctx.plan().add(quiet(value.clone()));
        ctx.plan().add(New::new(zone.clone(), ()));
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(db.things().get(value.id).await.unwrap().zone, Some(zone.id));
}

async fn deleted_rows_are_updates_that_leave_the_row(db: &TestDatabase) {
    let stored = db.things().add(quiet(thing("a"))).await.unwrap();
    let changed = stored.apply(|_| ThingEvent::Touched);
    let deleted =
        run(&db.executor().await, |ctx| Ok(ctx.plan().delete(changed.clone()))).await.unwrap();
    assert_eq!(deleted.version(), 2);
    assert_eq!(db.things().find(deleted.id).await.unwrap(), None);
    assert_eq!(
        db.select(&["state", "version"], "FROM things").await,
        [[Some("DELETED".to_owned()), Some("2".to_owned())]]
    );
    assert_eq!(db.count_events().await, 1);
}
