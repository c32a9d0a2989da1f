//! Errors for models that do not match the database and for values that a column cannot store,
//! with behaviour 84. Each error names the model, the column or the value.

use ekbatan::action::{BuildError, PlanError};
use ekbatan::db::{DbErrorKind, SchemaError};
use ekbatan::domain::{New, PayloadError};
use ekbatan::prelude::*;
use serde::Serialize;
use support::things::{THINGS, Thing, ThingState, Zone, quiet, thing};
use support::{Dialect, TestDatabase};

use crate::actions::{Stage, run};

on_every_database! {
    a_missing_column_is_named_with_its_model,
    a_column_of_another_type_is_named_with_its_model,
    two_models_of_one_table_are_checked_separately,
    two_names_of_one_table_are_refused,
    a_database_without_migrations_is_named_in_the_error,
    an_unknown_enum_value_is_named,
    an_integer_beyond_64_signed_bits_is_refused,
    a_decimal_is_refused_or_stored_without_loss,
    a_text_with_nul_is_refused_or_stored_without_loss,
}

on_every_database! {
    on_sqlite_only:
    two_models_with_one_event_name_are_refused,
    params_must_be_an_object,
    an_event_must_be_an_object,
}

#[derive(Debug, Clone, Serialize, Event)]
enum ClashingEvent {
    #[event(name = "ThingMade")]
    Listed(Vec<i64>),
}

#[derive(Debug, Clone, Model)]
#[model(table = "wallets", event = ClashingEvent, name = "Clashing")]
struct Clashing {
    id: Id<Clashing>,
    state: ThingState,
}

async fn two_models_with_one_event_name_are_refused(db: &TestDatabase) {
    // `db.databases` has checked another model of the same table.
    let databases = db.open_again().await;
    let builder = ActionExecutor::builder(&databases, "a").model::<Thing>().model::<Clashing>();
    match builder.build().await.err() {
        Some(BuildError::EventName { name: "ThingMade", first, second }) => {
            assert_eq!((first, second), ("Thing", "Clashing"));
        }
        other => panic!("{other:?}"),
    }
}

#[derive(Debug, Clone, Entity)]
#[entity(table = "zones", name = "Misfit")]
struct Misfit {
    id: Id<Misfit>,
    nickname: String,
    state: ThingState,
}

#[derive(Debug, Clone, Entity)]
#[entity(table = "zones", name = "Numbered")]
struct Numbered {
    id: Id<Numbered>,
    name: i64,
    state: ThingState,
}

/// The table `zones` under other names.
mod other_names {
    use super::*;

    macro_rules! other_name {
        ($name:ident of $table:tt) => {
            #[derive(Debug, Clone, Entity)]
            #[entity(table = $table, name = $table)]
            pub struct $name {
                id: Id<$name>,
                name: String,
                state: ThingState,
            }
        };
    }

    other_name!(InSchema of "public.zones");
    other_name!(InCapitals of "ZONES");
    other_name!(InDatabase of "names_of_one_table.zones");
}

async fn two_names_of_one_table_are_refused(db: &TestDatabase) {
    use other_names::{InCapitals, InDatabase, InSchema};
    async fn second_name<T: Entity>(databases: &Databases) -> String {
        databases.check::<Zone>().await.unwrap();
        databases.check::<T>().await.unwrap_err().to_string()
    }
    let refused = match db.dialect {
        Dialect::Postgres => second_name::<InSchema>(&db.databases).await,
        Dialect::Sqlite => second_name::<InCapitals>(&db.databases).await,
        // The code names the database. Tests share the server, so the name stands once for each.
        Dialect::MySql | Dialect::MariaDb => {
            let server = db.url.rsplit_once('/').unwrap().0;
            db.execute("CREATE DATABASE IF NOT EXISTS names_of_one_table").await;
            let url = format!("{server}/names_of_one_table");
            let config = ekbatan::config::DataSourceConfig::new(&url).eventlog("names_of_one_log");
            let databases = Databases::connect(&config.into()).await.unwrap();
            databases.migrate(&(THINGS.migrations)()).await.unwrap();
            second_name::<InDatabase>(&databases).await
        }
    };
    assert!(refused.contains("`Zone` has this table under the name `zones`"), "{refused}");
}

async fn problems<T: Entity>(db: &TestDatabase) -> String {
    // `db.databases` has checked another model of the same table.
    let databases = db.open_again().await;
    let executor = ActionExecutor::builder(&databases, "a").model::<T>().build().await;
    match executor.err() {
        Some(BuildError::Schema(problems)) => {
            assert!(
                matches!(&problems[..], [SchemaError::Columns { model, .. }] if *model == T::TABLE.model)
            );
            problems[0].to_string()
        }
        other => panic!("{other:?}"),
    }
}

async fn a_missing_column_is_named_with_its_model(db: &TestDatabase) {
    let problem = problems::<Misfit>(db).await;
    assert!(problem.contains("Misfit") && problem.contains("`nickname`"), "{problem}");
}

async fn a_column_of_another_type_is_named_with_its_model(db: &TestDatabase) {
    let problem = problems::<Numbered>(db).await;
    assert!(problem.contains("Numbered") && problem.contains("`name`"), "{problem}");
}

/// The check of one model must not count for another model of the same table.
async fn two_models_of_one_table_are_checked_separately(db: &TestDatabase) {
    db.databases.check::<support::things::Zone>().await.unwrap();
    let error = db.databases.check::<Misfit>().await.unwrap_err();
    assert!(error.schema().is_some(), "{error}");
}

async fn a_database_without_migrations_is_named_in_the_error(db: &TestDatabase) {
    let empty = TestDatabase::start_empty(&THINGS, db.dialect).await;
    let executor = ActionExecutor::builder(&empty.databases, "a").build().await;
    match executor.err() {
        Some(BuildError::Schema(problems)) => {
            assert!(
                matches!(problems[0], SchemaError::NoTable { ref table, .. } if table == "eventlog.events")
            );
            assert!(problems[0].to_string().contains("migrat"), "{}", problems[0]);
        }
        other => panic!("{other:?}"),
    }
}

async fn an_unknown_enum_value_is_named(db: &TestDatabase) {
    let stored = db.things().add(quiet(thing("a"))).await.unwrap();
    db.execute("UPDATE things SET color = 'BLUE'").await;
    match db.things().get(stored.id).await.unwrap_err() {
        ReadError::Row { model: "Thing", id, source } => {
            assert_eq!((id, source.column.as_str()), (stored.id.to_string(), "color"));
            assert!(source.reason.contains("BLUE"), "{source}");
        }
        other => panic!("{other:?}"),
    }
}

async fn params_must_be_an_object(db: &TestDatabase) {
    let executor = db.executor().await;
    let no_object = |answer: Result<(), ExecuteError<_>>, runs: u32| {
        let error = answer.unwrap_err();
        assert!(
            matches!(
                error,
                ExecuteError::Plan(PlanError::Payload(PayloadError::NotAnObject { .. }))
            ),
            "{error:?}"
        );
        assert_eq!(runs, 0, "the action did not run");
    };
    let null = Stage::with_params(|_: &mut ActionContext<'_>, _: &()| Ok(()));
    no_object(executor.execute(&null, ()).await, null.runs());
    let scalar = Stage::with_params(|_: &mut ActionContext<'_>, _: &i64| Ok(()));
    no_object(executor.execute(&scalar, 7).await, scalar.runs());
    let list = Stage::with_params(|_: &mut ActionContext<'_>, _: &Vec<i64>| Ok(()));
    no_object(executor.execute(&list, vec![7]).await, list.runs());
}

async fn an_event_must_be_an_object(db: &TestDatabase) {
    let error = run(&db.executor().await, |ctx| {
        let value = Clashing { id: Id::new(), state: ThingState::Active };
        Ok(ctx.plan().add(New::new(value, ClashingEvent::Listed(vec![1]))))
    })
    .await
    .unwrap_err();
    match error {
        ExecuteError::Plan(PlanError::Payload(PayloadError::NotAnObject { name, .. })) => {
            assert_eq!(name, "ThingMade");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((db.count("wallets").await, db.count_events().await), (0, 0));
}

async fn refused_column(db: &TestDatabase, value: Thing) -> String {
    let error = run(&db.executor().await, |ctx| Ok(ctx.plan().add(quiet(value.clone()))))
        .await
        .unwrap_err();
    assert_eq!(db.count("things").await, 0);
    match error {
        ExecuteError::Plan(PlanError::Field { model: "Thing", id, source }) => {
            assert_eq!(id, value.id.uuid());
            source.column
        }
        other => panic!("{other:?}"),
    }
}

async fn an_integer_beyond_64_signed_bits_is_refused(db: &TestDatabase) {
    assert_eq!(refused_column(db, Thing { huge: u64::MAX, ..thing("a") }).await, "huge");
}

/// The column is `numeric(20, 2)` and would round. SQLite stores any decimal.
async fn a_decimal_is_refused_or_stored_without_loss(db: &TestDatabase) {
    for (n, price) in ["1.005", "-0.001", "1000000000000000000"].into_iter().enumerate() {
        let price: Decimal = price.parse().unwrap();
        let value = Thing { price, ..thing(&n.to_string()) };
        match db.dialect {
            Dialect::Postgres | Dialect::MySql | Dialect::MariaDb => {
                assert_eq!(refused_column(db, value).await, "price");
            }
            Dialect::Sqlite => {
                let stored = db.things().add(quiet(value)).await.unwrap();
                assert_eq!(db.things().get(stored.id).await.unwrap().price, price);
            }
        }
    }
    for (n, price) in ["999999999999999999.99", "-1.500", "0.00"].into_iter().enumerate() {
        let price: Decimal = price.parse().unwrap();
        let stored = db.things().add(quiet(Thing { price, ..thing(&format!("ok {n}")) })).await;
        assert_eq!(db.things().get(stored.unwrap().id).await.unwrap().price, price);
    }
}

/// PostgreSQL cannot store NUL in a text.
async fn a_text_with_nul_is_refused_or_stored_without_loss(db: &TestDatabase) {
    let value = Thing { note: Some("a\0b".to_owned()), ..thing("a") };
    let answer = run(&db.executor().await, |ctx| Ok(ctx.plan().add(quiet(value.clone())))).await;
    match db.dialect {
        Dialect::Postgres => {
            let error = answer.unwrap_err();
            let kind = error.database_error().map(|error| error.kind());
            assert_eq!(kind, Some(DbErrorKind::ValueOutOfRange), "{error}");
            assert_eq!(db.count("things").await, 0);
        }
        Dialect::Sqlite | Dialect::MySql | Dialect::MariaDb => {
            let stored = answer.unwrap();
            assert_eq!(db.things().get(stored.id).await.unwrap().note, value.note);
        }
    }
}
