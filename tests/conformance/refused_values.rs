//! Values that a column cannot store are refused with an error that names the column or the event, or they
//! are stored without loss.

use ekbatan::action::{ErrorKind, PlanError};
use ekbatan::db::DbErrorKind;
use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;
use serde::Serialize;
use support::things::{Thing, ThingEvent, ThingState, quiet, thing};
use support::{Dialect, TestDatabase};

use crate::actions::{Nothing, Stage, run, stage};

on_every_database! {
    an_integer_beyond_64_signed_bits_is_refused,
    a_decimal_is_refused_or_stored_without_loss,
    a_decimal_keeps_its_zeros,
    a_text_with_nul_is_refused_or_stored_without_loss,
    parameters_with_nul_are_refused_by_name_or_stored,
    an_event_with_nul_is_refused_by_name_or_stored,
    an_event_that_is_nested_too_deeply_is_refused_by_name,
    a_text_that_is_too_long_is_refused_with_its_column,
    a_principal_has_at_most_255_characters,
}

on_every_database! { on_sqlite_only: a_principal_or_a_reason_with_nul_is_refused_by_name }

/// SQLite has no limit of its own.
async fn a_principal_has_at_most_255_characters(db: &TestDatabase) {
    let executor = db.executor().await;
    let action = stage(|ctx| {
        let label = ctx.action_id().to_string();
        Ok(ctx.plan().add(quiet(thing(&label))))
    });
    for principal in ["a".repeat(255), "\u{e4}".repeat(255)] {
        executor.execute(&action, Nothing {}).principal(principal).await.unwrap();
    }
    let long = "\u{e4}".repeat(256);
    let error = executor.execute(&action, Nothing {}).principal(long).await.unwrap_err();
    assert!(matches!(error, ExecuteError::Plan(PlanError::PrincipalTooLong { .. })), "{error:?}");
    let begins = format!(r#"the principal "{}".. has 256 characters"#, "\u{e4}".repeat(40));
    assert!(error.to_string().starts_with(&begins), "{error}");
    assert_eq!(db.count("things").await, 2);
}

async fn refused_column(db: &TestDatabase, value: Thing) -> String {
    let error = run(&db.executor().await, |ctx| Ok(ctx.plan().add(quiet(value.clone()))))
        .await
        .unwrap_err();
    assert_eq!(db.count("things").await, 0);
    match error {
        ExecuteError::Plan(PlanError::Field { model: "Thing", id, source, .. }) => {
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

async fn a_decimal_keeps_its_zeros(db: &TestDatabase) {
    let value = Thing { price: Decimal::new(1250, 2), ..thing("a") };
    let stored = db.things().add(quiet(value)).await.unwrap();
    assert_eq!(db.things().get(stored.id).await.unwrap().price.to_string(), "12.50");
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

/// PostgreSQL's jsonb cannot store NUL.
async fn parameters_with_nul_are_refused_by_name_or_stored(db: &TestDatabase) {
    let executor = db.executor().await;
    let action = Stage::with_params(|ctx: &mut ActionContext<'_>, _: &Label| {
        Ok(ctx.plan().add(quiet(thing("a"))))
    });
    let answer = executor.execute(&action, Label { label: "a\0b".to_owned() }).await;
    if db.dialect == Dialect::Postgres {
        let error = answer.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the parameters of the call: a string of it holds the character 0, after `{\"label\":\"a`, \
             which PostgreSQL's jsonb does not; remove it"
        );
        assert_eq!(db.count("things").await, 0);
    } else {
        answer.unwrap();
        let params = format!("FROM {}", db.eventlog("events"));
        let params = db.select(&["action_params"], &params).await.remove(0).remove(0).unwrap();
        assert_eq!(serde_json::from_str::<Label>(&params).unwrap().label, "a\0b");
    }
}

async fn an_event_with_nul_is_refused_by_name_or_stored(db: &TestDatabase) {
    let answer = run(&db.executor().await, |ctx| {
        let made = ThingEvent::Made { label: "a\0b".to_owned() };
        ctx.plan().add(New::new(thing("a"), [ThingEvent::Touched, made]));
        Ok(())
    })
    .await;
    if db.dialect == Dialect::Postgres {
        assert_eq!(
            answer.unwrap_err().to_string(),
            "the payload of the event `ThingMade` of `conformance.stage`: a string of it holds the character 0, \
             after `{\"label\":\"a`, which PostgreSQL's jsonb does not; remove it"
        );
        assert_eq!((db.count("things").await, db.count_events().await), (0, 0));
    } else {
        answer.unwrap();
        let made = format!("FROM {} WHERE event_type = 'ThingMade'", db.eventlog("events"));
        let payload = db.select(&["payload"], &made).await.remove(0).remove(0).unwrap();
        assert_eq!(serde_json::from_str::<Label>(&payload).unwrap().label, "a\0b");
    }
}

/// Refused is what a handler could not read, and what the database does not take.
async fn an_event_that_is_nested_too_deeply_is_refused_by_name(db: &TestDatabase) {
    let executor = db.executor().await;
    let most = match db.dialect {
        Dialect::Sqlite | Dialect::Postgres => 127,
        Dialect::MySql => 100,
        // 127 from 12.2 on.
        Dialect::MariaDb => 31,
    };
    for depth in [most, most + 1, 128, 200] {
        let answer = run(&executor, |ctx| {
            // The payload is a level, too.
            let text = (1..depth).fold(serde_json::json!(1), |inner, _| serde_json::json!([inner]));
            let described = ThingEvent::Described { text };
            ctx.plan().add(New::new(thing(&depth.to_string()), [described]));
            Ok(())
        })
        .await;
        if depth == most {
            answer.unwrap();
            let payload = format!("FROM {}", db.eventlog("events"));
            let payload = db.select(&["payload"], &payload).await.remove(0).remove(0).unwrap();
            serde_json::from_str::<serde_json::Value>(&payload).unwrap();
            continue;
        }
        let error = answer.unwrap_err().to_string();
        if depth > 127 {
            let expected = "`ThingDescribed` does not serialize: its JSON is nested";
            assert!(error.contains(expected) && error.contains(&depth.to_string()), "{error}");
        } else {
            let event = "the payload of the event `ThingDescribed` of `conformance.stage`";
            assert!(error.starts_with(event), "{error}");
            let words = match db.dialect {
                Dialect::MariaDb => format!("is nested more than {most} deep"),
                _ => format!("nested {most} deep at most"),
            };
            assert!(error.contains(&words), "{error}");
        }
    }
    assert_eq!((db.count("things").await, db.count_events().await), (1, 1));
}

/// SQLite's texts have no maximum length.
async fn a_text_that_is_too_long_is_refused_with_its_column(db: &TestDatabase) {
    let create = match db.dialect {
        Dialect::Postgres => "CREATE TABLE tags (id uuid PRIMARY KEY, ",
        Dialect::MariaDb => "CREATE TABLE tags (id uuid PRIMARY KEY, ",
        _ => "CREATE TABLE tags (id char(36) NOT NULL PRIMARY KEY, ",
    };
    db.execute(&format!(
        "{create} name varchar(4) NOT NULL, code char(3) NOT NULL, state varchar(24) NOT NULL, \
         version bigint NOT NULL)"
    ))
    .await;
    let tags = db.databases.repository::<Tag>();
    let tag = |name: &str, code: &str| {
        New::new(
            Tag { id: Id::new(), name: name.into(), code: code.into(), state: ThingState::Active },
            (),
        )
    };
    tags.add(tag("äöüß", "äöü")).await.unwrap();
    for (name, code, column) in [("abcde", "", "name"), ("", "abcd", "code")] {
        let tag = tag(name, code);
        let named = format!("Tag {}: column `{column}`: ", tag.id);
        let answer = tags.add(tag).await;
        if db.dialect == Dialect::Sqlite {
            answer.unwrap();
        } else {
            let error = answer.unwrap_err();
            let WriteError::Database(cause) = &error else { panic!("{error:?}") };
            assert_eq!(cause.kind(), DbErrorKind::ValueOutOfRange);
            assert!(error.to_string().contains(column), "{error}");
            // Elsewhere the server checks it, which does not know the model.
            let is_named = error.to_string().starts_with(&named);
            assert_eq!(is_named, db.dialect == Dialect::Postgres, "{error}");
        }
    }
    // A value of the call is named as such, and not by the column of the framework's table.
    let long = "a".repeat(256);
    let action = stage(|ctx| Ok(ctx.plan().add(quiet(thing("a")))));
    let executor = db.executor().await;
    let answer = executor.execute(&action, Nothing {}).principal(long).await;
    let error = answer.unwrap_err().to_string();
    assert!(error.starts_with("the principal "), "{error}");
}

/// PostgreSQL would refuse it, so every database does.
async fn a_principal_or_a_reason_with_nul_is_refused_by_name(db: &TestDatabase) {
    let action = stage(|ctx| Ok(ctx.plan().add(quiet(thing("a")))));
    let executor = db.executor().await;
    let call = || executor.execute(&action, Nothing {});
    for (call, named) in [
        (call().principal("a\0b"), "the principal \"a\\0b\""),
        (call().reason("c\0"), "the reason \"c\\0\""),
    ] {
        let error = call.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Plan, "{error}");
        assert!(error.to_string().starts_with(named), "{error}");
    }
    assert_eq!((action.runs(), db.count("things").await), (0, 0));
}

#[derive(Debug, Clone, Entity)]
#[entity(table = "tags", name = "Tag")]
struct Tag {
    id: Id<Tag>,
    name: String,
    code: String,
    state: ThingState,
}

#[derive(Debug, Clone, Serialize, serde::Deserialize)]
struct Label {
    label: String,
}
