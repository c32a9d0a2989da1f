//! Errors for models that do not match the database, and for parameters and events that are no objects
//! (behaviour 84). Each error names the model, the column or the event.

use ekbatan::action::{BuildError, PlanError};
use ekbatan::db::SchemaError;
use ekbatan::domain::{New, PayloadError};
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
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
    columns_that_may_be_null_or_have_to_be_filled_are_named,
    a_model_without_a_column_that_has_to_be_filled_can_be_read_and_updated,
    a_column_that_the_database_computes_is_refused_unless_it_is_only_read,
    an_id_that_two_rows_may_have_is_refused,
    a_raw_connection_of_another_dialect_names_both,
}

on_every_database! {
    on_sqlite_only:
    two_models_with_one_event_name_are_refused,
    two_models_of_one_table_need_one_name,
    params_must_be_an_object,
    no_params_are_stored_as_an_empty_object,
    params_for_later_must_be_readable,
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
        Some(BuildError::EventName { name: "ThingMade", first, second, .. }) => {
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
    problems_of_executor::<T>(&db.open_again().await).await
}

async fn problems_of_executor<T: Entity>(databases: &Databases) -> String {
    let executor = ActionExecutor::builder(databases, "a").model::<T>().build().await;
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

/// `weight` and `version` may be null, and `note` has to be filled.
#[derive(Debug, Clone, Entity)]
#[entity(table = "parcels", name = "Parcel")]
struct Parcel {
    id: Id<Parcel>,
    weight: i64,
    state: ThingState,
}

/// The same, without the weight.
#[derive(Debug, Clone, Entity)]
#[entity(table = "parcels", name = "Envelope")]
struct Envelope {
    id: Id<Envelope>,
    state: ThingState,
}

/// Creates the table of parcels. The database fills all columns after `note` by itself.
async fn create_parcels(db: &TestDatabase, version: &str) {
    let (id, filled) = match db.dialect {
        Dialect::Sqlite => ("TEXT", "twice integer NOT NULL AS (version * 2)"),
        Dialect::Postgres => (
            "uuid NOT NULL",
            "number bigint GENERATED ALWAYS AS IDENTITY, \
             twice bigint NOT NULL GENERATED ALWAYS AS (version * 2) STORED",
        ),
        Dialect::MySql => (
            "char(36) NOT NULL",
            "number bigint NOT NULL AUTO_INCREMENT UNIQUE, color enum('RED') NOT NULL, \
             twice bigint AS (version * 2) STORED NOT NULL",
        ),
        Dialect::MariaDb => (
            "uuid NOT NULL",
            "number bigint NOT NULL AUTO_INCREMENT UNIQUE, twice bigint AS (version * 2) STORED",
        ),
    };
    db.execute(&format!(
        "CREATE TABLE parcels (id {id} PRIMARY KEY, weight bigint, note varchar(20) NOT NULL, \
         label varchar(20) DEFAULT 'none' NOT NULL, {filled}, state varchar(24) NOT NULL, \
         version bigint {version})"
    ))
    .await;
}

async fn columns_that_may_be_null_or_have_to_be_filled_are_named(db: &TestDatabase) {
    create_parcels(db, "NULL").await;
    let executor = ActionExecutor::builder(&db.databases, "a").model::<Parcel>().build().await;
    let problems = match executor.err() {
        Some(BuildError::Schema(problems)) => problems,
        other => panic!("{other:?}"),
    };
    let [SchemaError::Columns { model: "Parcel", table, problems, .. }] = &problems[..] else {
        panic!("{problems:?}")
    };
    assert_eq!(table, "parcels");
    assert_eq!(
        problems[..],
        [
            "column `weight` can be NULL, but its field of type integer is no Option; \
             make the field an Option, or declare the column NOT NULL",
            "column `version` can be NULL, but its field of type integer is no Option; \
             declare the column NOT NULL",
            "column `note` is NOT NULL without a default, and the code has no field for it; \
             add the field, or give the column a default",
        ]
    );
}

async fn a_model_without_a_column_that_has_to_be_filled_can_be_read_and_updated(db: &TestDatabase) {
    create_parcels(db, "NOT NULL").await;
    let id: Id<Envelope> = Id::new();
    db.execute(&format!(
        "INSERT INTO parcels (id, note, state, version) VALUES ('{id}', 'n', 'ACTIVE', 1)"
    ))
    .await;
    let envelopes = db.databases.repository::<Envelope>();
    let deleted = envelopes.delete(envelopes.get(id).await.unwrap()).await.unwrap();
    assert_eq!(deleted.version(), 2);
    let problem = problems_of_executor::<Envelope>(&db.databases).await;
    assert!(problem.contains("Envelope") && problem.contains("`note`"), "{problem}");
}

/// A parcel whose weight the database computes.
#[derive(Debug, Clone, Entity)]
#[entity(table = "parcels", name = "Weighed")]
struct Weighed {
    id: Id<Weighed>,
    weight: Option<i64>,
    state: ThingState,
}

async fn a_column_that_the_database_computes_is_refused_unless_it_is_only_read(db: &TestDatabase) {
    let (id, computed): (_, &[&str]) = match db.dialect {
        Dialect::Sqlite => {
            ("TEXT", &["GENERATED ALWAYS AS (version * 2) STORED", "AS (version * 2) VIRTUAL"])
        }
        Dialect::Postgres => {
            ("uuid", &["GENERATED ALWAYS AS (version * 2) STORED", "GENERATED ALWAYS AS IDENTITY"])
        }
        Dialect::MySql => ("char(36)", &["AS (version * 2) STORED", "AS (version * 2) VIRTUAL"]),
        Dialect::MariaDb => ("uuid", &["AS (version * 2) STORED", "AS (version * 2) VIRTUAL"]),
    };
    let row: Id<Weighed> = Id::new();
    let create = async |weight: &str| {
        db.execute("DROP TABLE IF EXISTS parcels").await;
        db.execute(&format!(
            "CREATE TABLE parcels (id {id} NOT NULL PRIMARY KEY, weight bigint {weight}, \
             state varchar(24) NOT NULL, version bigint NOT NULL)"
        ))
        .await;
        db.execute(&format!(
            "INSERT INTO parcels (id, state, version) VALUES ('{row}', 'ACTIVE', 1)"
        ))
        .await;
    };
    for computed in computed {
        create(computed).await;
        let problem = problems::<Weighed>(db).await;
        let expected = "the database computes column `weight`, so no value can be written to it; \
                        leave the field out, or turn it into an ordinary column";
        assert!(problem.ends_with(expected), "{computed}: {problem}");
        let read = db.open_again().await.repository::<Weighed>().get(row).await.unwrap();
        assert!(read.weight.is_some(), "{computed}");
    }
    let written = if db.dialect == Dialect::Postgres {
        "GENERATED BY DEFAULT AS IDENTITY"
    } else {
        "DEFAULT (1 + 1)"
    };
    create(written).await;
    db.open_again().await.check::<Weighed>().await.unwrap();
}

async fn an_id_that_two_rows_may_have_is_refused(db: &TestDatabase) {
    let id = match db.dialect {
        Dialect::Postgres | Dialect::MariaDb => "uuid",
        Dialect::Sqlite | Dialect::MySql => "char(36)",
    };
    let columns = "state varchar(24) NOT NULL, version bigint NOT NULL, note varchar(20) UNIQUE";
    db.execute(&format!("CREATE TABLE parcels (id {id} NOT NULL, {columns})")).await;
    let refused = async || {
        let error = db.databases.check::<Envelope>().await.unwrap_err().to_string();
        assert!(error.contains("`id` is in no primary key and no unique index"), "{error}");
    };
    refused().await;
    db.execute("CREATE INDEX parcels_by_id ON parcels (id)").await;
    refused().await;
    if db.dialect == Dialect::Postgres {
        let twice: Id<Envelope> = Id::new();
        let row = format!("('{twice}', 'ACTIVE', 1)");
        db.execute(&format!("INSERT INTO parcels (id, state, version) VALUES {row}, {row}")).await;
        let unique = "CREATE UNIQUE INDEX CONCURRENTLY parcels_by_one_id ON parcels (id)";
        db.connect().await.try_execute(unique).await.unwrap_err();
        // It is there, and compares new rows. What was there has one id twice.
        refused().await;
        db.execute("DROP INDEX parcels_by_one_id").await;
        db.execute("DELETE FROM parcels").await;
    }
    db.execute("CREATE UNIQUE INDEX parcels_by_one_id ON parcels (id)").await;
    db.databases.check::<Envelope>().await.unwrap();
}

/// The check of one model must not count for another model of the same table.
async fn two_models_of_one_table_are_checked_separately(db: &TestDatabase) {
    db.databases.check::<support::things::Zone>().await.unwrap();
    let error = db.databases.check::<Misfit>().await.unwrap_err();
    assert!(error.schema().is_some(), "{error}");
}

/// The columns of a zone under another name.
#[derive(Debug, Clone, Entity)]
#[entity(table = "zones", name = "Area")]
struct Area {
    id: Id<Area>,
    name: String,
    state: ThingState,
}

async fn two_models_of_one_table_need_one_name(db: &TestDatabase) {
    db.databases.check::<Zone>().await.unwrap();
    let error = db.databases.check::<Area>().await.unwrap_err().to_string();
    assert!(error.contains(r#"give both types `name = "Zone"`"#), "{error}");
    let error = db.databases.check::<Numbered>().await.unwrap_err().to_string();
    assert!(error.contains("`Zone` has this table with other columns ("), "{error}");
    assert!(error.contains("; map it once, or with the same columns"), "{error}");
}

async fn a_database_without_migrations_is_named_in_the_error(db: &TestDatabase) {
    let empty = TestDatabase::start_empty(&THINGS, db.dialect).await;
    let executor = ActionExecutor::builder(&empty.databases, "a").build().await;
    let name = match db.dialect {
        Dialect::Sqlite => "eventlog_events",
        _ => "eventlog.events",
    };
    match executor.err() {
        Some(BuildError::Schema(problems)) => {
            assert!(matches!(problems[0], SchemaError::NoTable { ref table, .. } if table == name));
            assert!(problems[0].to_string().contains("migrat"), "{}", problems[0]);
        }
        other => panic!("{other:?}"),
    }
}

async fn an_unknown_enum_value_is_named(db: &TestDatabase) {
    let stored = db.things().add(quiet(thing("a"))).await.unwrap();
    db.execute("UPDATE things SET color = 'BLUE'").await;
    match db.things().get(stored.id).await.unwrap_err() {
        ReadError::Row { model: "Thing", id, source, .. } => {
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
    let null = Stage::with_params(|_: &mut ActionContext<'_>, _: &Option<Weight>| Ok(()));
    no_object(executor.execute(&null, None).await, null.runs());
    let scalar = Stage::with_params(|_: &mut ActionContext<'_>, _: &i64| Ok(()));
    no_object(executor.execute(&scalar, 7).await, scalar.runs());
    let list = Stage::with_params(|_: &mut ActionContext<'_>, _: &Vec<i64>| Ok(()));
    no_object(executor.execute(&list, vec![7]).await, list.runs());
}

async fn no_params_are_stored_as_an_empty_object(db: &TestDatabase) {
    let executor = db.executor().await;
    let action = Stage::with_params(|ctx: &mut ActionContext<'_>, _: &()| {
        Ok(ctx.plan().add(quiet(thing("a"))))
    });
    for _ in 0..2 {
        executor.execute(&action, ()).idempotency_key("once").await.unwrap();
    }
    let params = format!("FROM {}", db.eventlog("events"));
    let params = db.select(&["action_params"], &params).await;
    assert_eq!(params, [[Some("{}".to_owned())]]);
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Weight {
    grams: f64,
}

/// JSON has no NaN, so a node could not read the parameters. A call that runs at once does not read them.
async fn params_for_later_must_be_readable(db: &TestDatabase) {
    let executor = db.executor().await;
    let weigh = Stage::with_params(|_: &mut ActionContext<'_>, _: &Weight| Ok(()));
    let nan = || Weight { grams: f64::NAN };
    let later = |ctx: &mut ActionContext<'_>| {
        ctx.plan().enqueue(&weigh, nan());
        Ok(())
    };
    match run(&executor, later).await.unwrap_err() {
        ExecuteError::Plan(PlanError::Payload(error @ PayloadError::Serialize { .. })) => {
            assert!(error.to_string().contains("could not be read back"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    executor.execute(&weigh, nan()).await.unwrap();
}

async fn an_event_must_be_an_object(db: &TestDatabase) {
    let error = run(&db.executor().await, |ctx| {
        let value = Clashing { id: Id::new(), state: ThingState::Active };
        Ok(ctx.plan().add(New::new(value, ClashingEvent::Listed(vec![1]))))
    })
    .await
    .unwrap_err();
    match error {
        ExecuteError::Plan(PlanError::Payload(PayloadError::NotAnObject { what, .. })) => {
            assert!(what.starts_with("the event `ThingMade` of `"), "{what}");
            assert!(what.ends_with("ClashingEvent`"), "{what}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((db.count("wallets").await, db.count_events().await), (0, 0));
}

async fn a_raw_connection_of_another_dialect_names_both(db: &TestDatabase) {
    let (mine, other) = match db.dialect {
        Dialect::Sqlite => ("is sqlite", "of PostgreSQL; use `sqlite()`"),
        Dialect::Postgres => ("is postgres", "of SQLite; use `postgres()`"),
        Dialect::MySql => ("is mysql", "of SQLite; use `mysql()`"),
        Dialect::MariaDb => ("is mariadb", "of SQLite; use `mysql()`"),
    };
    let error = if db.dialect == Dialect::Sqlite {
        db.databases.postgres().await.err().unwrap()
    } else {
        db.databases.sqlite().await.err().unwrap()
    };
    let error = error.to_string();
    assert!(error.contains(mine) && error.contains(other), "{error}");
}

/// SQLite's triggers cannot change the row that is inserted.
mod on_servers {
    use super::*;

    on_every_database! {
        only postgres and mysql and mariadb: a_column_that_a_trigger_fills_is_not_missed,
    }

    async fn a_column_that_a_trigger_fills_is_not_missed(db: &TestDatabase) {
        create_parcels(db, "NOT NULL").await;
        db.execute(if db.dialect == Dialect::Postgres {
            "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN NEW.note = ''filled''; RETURN NEW; END'; \
             CREATE TRIGGER fill BEFORE INSERT ON parcels FOR EACH ROW EXECUTE FUNCTION fill()"
        } else {
            "CREATE TRIGGER fill BEFORE INSERT ON parcels FOR EACH ROW SET NEW.note = 'filled'"
        })
        .await;
        db.databases.check::<Envelope>().await.unwrap();
        let envelope = Envelope { id: Id::new(), state: ThingState::Active };
        db.databases.repository().add(New::new(envelope, ())).await.unwrap();
        assert_eq!(db.select(&["note"], "FROM parcels").await, [[Some("filled".to_owned())]]);
    }
}
