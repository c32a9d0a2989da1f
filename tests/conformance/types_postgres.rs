//! The column types of PostgreSQL: values that they would change, and values that cannot be read.

use std::time::Duration;

use ekbatan::action::Fence;
use ekbatan::db::{DbErrorKind, SchemaError};
use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;
use serde::{Deserialize, Serialize};
use support::TestDatabase;
use support::things::{Color, ThingState, quiet, thing};

use crate::actions::Refused;

on_every_database! {
    only postgres:
    infinity_is_an_error,
    a_value_that_a_column_would_change_is_refused_by_name,
    timestamps_with_fewer_digits_are_named,
    an_enum_may_lie_outside_of_the_search_path,
    a_state_may_be_an_enum_that_does_not_declare_deleted,
    a_text_that_an_enum_does_not_declare_is_refused,
    a_decimal_is_read_exactly,
    a_decimal_that_would_be_rounded_is_an_error,
    a_scale_may_be_negative,
}

#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "narrow", name = "Narrow")]
struct Narrow {
    id: Id<Narrow>,
    code: String,
    ratio: f64,
    at: DateTime<Utc>,
    state: ThingState,
}

fn narrow() -> Narrow {
    Narrow {
        id: Id::new(),
        code: "abc".to_owned(),
        ratio: 0.5,
        at: DateTime::UNIX_EPOCH,
        state: ThingState::Active,
    }
}

async fn create(db: &TestDatabase, at: &str) {
    db.execute(&format!(
        "CREATE TABLE narrow (id uuid PRIMARY KEY, code varchar(3) NOT NULL, \
         ratio real NOT NULL, at {at} NOT NULL, state varchar(24) NOT NULL, version bigint NOT NULL)"
    ))
    .await;
}

async fn infinity_is_an_error(db: &TestDatabase) {
    let stored = db.things().add(quiet(thing("a"))).await.unwrap();
    for (column, value) in [("day", "infinity"), ("day", "5874897-01-01"), ("at", "-infinity")] {
        db.execute(&format!("UPDATE things SET {column} = '{value}'")).await;
        let error = db.things().get(stored.id).await.unwrap_err();
        assert_eq!(error.database_error().unwrap().kind(), DbErrorKind::Decode);
        assert!(error.to_string().contains(&format!("`{column}`")), "{error}");
        db.execute("UPDATE things SET day = '2024-01-01', at = '2024-01-01'").await;
    }
    db.things().get(stored.id).await.unwrap();
}

async fn a_value_that_a_column_would_change_is_refused_by_name(db: &TestDatabase) {
    create(db, "timestamp").await;
    let rows = db.databases.repository::<Narrow>();
    for (value, column) in [
        (Narrow { code: "abc ".to_owned(), ..narrow() }, "`code`"),
        (Narrow { code: "a\0".to_owned(), ..narrow() }, "`code`"),
        (Narrow { ratio: 0.1, ..narrow() }, "`ratio`"),
        (Narrow { at: DateTime::<Utc>::MIN_UTC, ..narrow() }, "`at`"),
    ] {
        match rows.add(New::new(value, ())).await.unwrap_err() {
            WriteError::Database(error) => {
                assert_eq!(error.kind(), DbErrorKind::ValueOutOfRange);
                assert!(error.to_string().contains(column), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    let kept = Narrow { code: "a  ".to_owned(), ..narrow() };
    let stored = rows.add(New::new(kept, ())).await.unwrap();
    assert_eq!(rows.find_all().await.unwrap(), [stored]);
}

async fn timestamps_with_fewer_digits_are_named(db: &TestDatabase) {
    create(db, "timestamp(3)").await;
    let error = db.databases.check::<Narrow>().await.unwrap_err();
    match error.schema() {
        Some(SchemaError::Columns { problems, .. }) => {
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].contains("`at` is of type timestamp(3)"), "{problems:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "paint.tins", name = "Tin")]
struct Tin {
    id: Id<Tin>,
    color: Color,
    state: ThingState,
}

async fn an_enum_may_lie_outside_of_the_search_path(db: &TestDatabase) {
    db.execute(
        "CREATE SCHEMA paint; CREATE TYPE paint.\"Hue\" AS ENUM ('RED', 'GREEN'); \
         CREATE TABLE paint.tins (id uuid PRIMARY KEY, color paint.\"Hue\" NOT NULL, \
         state varchar(24) NOT NULL, version bigint NOT NULL)",
    )
    .await;
    let tins = db.databases.repository::<Tin>();
    let tin = |color| New::new(Tin { id: Id::new(), color, state: ThingState::Active }, ());
    let red = tins.add(tin(Color::Red)).await.unwrap();
    tins.add_all([tin(Color::Green), tin(Color::Green)]).await.unwrap();
    let green = tins.update(red.apply(|tin| tin.color = Color::Green)).await.unwrap();
    assert_eq!(
        tins.find_where(Tin::ID.eq(green.id) & Tin::COLOR.eq(Color::Green)).await.unwrap(),
        [green]
    );
    let found = tins.find_where(Tin::COLOR.is_in([Color::Red, Color::Green])).await.unwrap();
    assert_eq!(found.len(), 3);
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, State)]
enum LampState {
    On,
    Off,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
#[entity(table = "lamps", name = "Lamp")]
struct Lamp {
    id: Id<Lamp>,
    state: LampState,
}

/// Reads a lamp by its id.
struct ReadLamp;

#[derive(Serialize, Deserialize)]
struct Wanted {
    lamp: Id<Lamp>,
}

impl Action for ReadLamp {
    const NAME: &'static str = "conformance.read_lamp";
    type Params = Wanted;
    type Output = Stored<Lamp>;
    type Error = Refused;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Wanted,
    ) -> Result<Stored<Lamp>, Refused> {
        ctx.get(params.lamp).await.map_err(|_| Refused)
    }
}

/// Every read excludes the deleted rows, also where no row can be deleted.
async fn a_state_may_be_an_enum_that_does_not_declare_deleted(db: &TestDatabase) {
    db.execute(
        "CREATE TYPE life AS ENUM ('ON', 'OFF'); CREATE TABLE lamps (id uuid PRIMARY KEY, \
         state life NOT NULL, version bigint NOT NULL)",
    )
    .await;
    let lamps = db.databases.repository::<Lamp>();
    let lamp = |state| New::new(Lamp { id: Id::new(), state }, ());
    let on = lamps.add(lamp(LampState::On)).await.unwrap();
    let off = lamps.add(lamp(LampState::Off)).await.unwrap();
    assert_eq!(lamps.get(on.id).await.unwrap(), on);
    assert_eq!(lamps.find_where(Lamp::STATE.eq(LampState::Off)).await.unwrap(), [off]);
    assert_eq!((lamps.count().await.unwrap(), lamps.find_all().await.unwrap().len()), (2, 2));

    let executor = db.executor().await;
    let fence = Fence { key: "lamps".into(), token: 1, remaining: Duration::from_secs(600) };
    let call = executor.execute(&ReadLamp, Wanted { lamp: on.id }).fenced_by(&fence);
    assert_eq!(call.await.unwrap(), on);
}

#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "doors", name = "Door")]
struct Door {
    id: Id<Door>,
    color: String,
    state: ThingState,
}

async fn a_text_that_an_enum_does_not_declare_is_refused(db: &TestDatabase) {
    db.execute(
        "CREATE TABLE doors (id uuid PRIMARY KEY, color color NOT NULL, \
         state varchar(24) NOT NULL, version bigint NOT NULL)",
    )
    .await;
    let doors = db.databases.repository::<Door>();
    let door = |color: &str| {
        New::new(Door { id: Id::new(), color: color.to_owned(), state: ThingState::Active }, ())
    };
    doors.add(door("RED")).await.unwrap();
    match doors.add(door("PINK")).await.unwrap_err() {
        WriteError::Database(error) => assert_eq!(error.kind(), DbErrorKind::ValueOutOfRange),
        other => panic!("{other:?}"),
    }
    let error = doors.find_where(Door::COLOR.eq("PINK")).await.unwrap_err();
    assert_eq!(error.database_error().unwrap().kind(), DbErrorKind::ValueOutOfRange);
}

#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "balances", name = "Balance")]
struct Balance {
    id: Id<Balance>,
    amount: Decimal,
    state: ThingState,
}

/// Stores an amount as other programs do.
async fn a_balance(db: &TestDatabase, amount: &str) -> Id<Balance> {
    let id = Id::<Balance>::new();
    db.execute(&format!(
        "CREATE TABLE IF NOT EXISTS balances (id uuid PRIMARY KEY, amount numeric NOT NULL, \
         state varchar(24) NOT NULL, version bigint NOT NULL); \
         INSERT INTO balances VALUES ('{}', '{amount}', 'ACTIVE', 1)",
        id.uuid()
    ))
    .await;
    id
}

async fn a_decimal_is_read_exactly(db: &TestDatabase) {
    let zeros = "0".repeat(40);
    let balances = db.databases.repository::<Balance>();
    for (stored, read) in [
        ("0", "0"),
        ("0.00", "0"),
        ("1.50", "1.50"),
        ("-10000", "-10000"),
        ("12345678.00012", "12345678.00012"),
        ("79228162514264337593543950335", "79228162514264337593543950335"),
        ("-7.9228162514264337593543950335", "-7.9228162514264337593543950335"),
        ("0.0000000000000000000000000001", "0.0000000000000000000000000001"),
        (&format!("-1.5{zeros}"), "-1.5000000000000000000000000000"),
        (&format!("79228162514264337593543950335.{zeros}"), "79228162514264337593543950335"),
    ] {
        let id = a_balance(db, stored).await;
        let balance = balances.get(id).await.unwrap();
        assert_eq!(balance.amount.to_string(), read);
        balances.update(balance.apply(|_| ())).await.unwrap();
        let equal = format!("balances WHERE id = '{}' AND amount = '{stored}'", id.uuid());
        assert_eq!(db.count(&equal).await, 1, "{stored}");
    }
}

async fn a_decimal_that_would_be_rounded_is_an_error(db: &TestDatabase) {
    let balances = db.databases.repository::<Balance>();
    for stored in [
        "99999999999.123456789012345678",
        "79228162514264337593543950336",
        "-0.00000000000000000000000000001",
        "NaN",
        "Infinity",
        "-Infinity",
    ] {
        let id = a_balance(db, stored).await;
        let error = balances.get(id).await.unwrap_err();
        assert_eq!(error.database_error().unwrap().kind(), DbErrorKind::Decode);
        let text = error.to_string();
        assert!(text.contains("`amount`") && text.contains(stored), "{text}");
    }
}

/// The digits before the scale are zeros: a `numeric(3, -2)` holds hundreds.
async fn a_scale_may_be_negative(db: &TestDatabase) {
    let created = db
        .connect()
        .await
        .try_execute(
            "CREATE TABLE balances (id uuid PRIMARY KEY, amount numeric(3, -2) NOT NULL, \
         state varchar(24) NOT NULL, version bigint NOT NULL)",
        )
        .await;
    // Servers before PostgreSQL 15 have no such type.
    let version = db.select(&["current_setting('server_version_num')"], "").await.remove(0);
    if version[0].as_deref().unwrap().parse::<u32>().unwrap() < 150_000 {
        created.unwrap_err();
        return;
    }
    created.unwrap();
    let balances = db.databases.repository::<Balance>();
    let balance = |amount: &str| {
        let (id, amount) = (Id::new(), amount.parse().unwrap());
        New::new(Balance { id, amount, state: ThingState::Active }, ())
    };
    for amount in ["0", "100", "-99900.00"] {
        let stored = balances.add(balance(amount)).await.unwrap();
        assert_eq!(balances.get(stored.id).await.unwrap(), stored);
    }
    for amount in ["1", "150", "99900.01", "100000"] {
        let error = balances.add(balance(amount)).await.unwrap_err().to_string();
        assert!(error.contains(&format!("{amount} does not fit numeric(3,-2)")), "{error}");
    }
}
