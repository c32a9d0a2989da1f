//! The code that the derives generate: every kind of field is read back as it was stored,
//! names and texts are those in the source, and errors are precise.

use chrono::{DateTime, NaiveDate, Utc};
use ekbatan_core::domain::{
    ColumnDef, Comparable, Entity, Event, Field, FieldError, Id, Json, Model, NoEvent, RowReader,
    SoftDelete, State, Table, Value, ValueType,
};
use ekbatan_core::repository::Column;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

// The traits above and these derives share their names, as serde's do.
use ekbatan_macros::{Entity, Event, Field, Model, State};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Address {
    street: String,
}

#[derive(Debug, Clone, PartialEq, Field)]
enum Tier {
    Basic,
    #[field(name = "gold-plus")]
    GoldPlus,
}

#[derive(Debug, Clone, PartialEq, Field)]
struct Email(String);

#[derive(Debug, Clone, PartialEq, Field)]
struct Birthday {
    date: Option<NaiveDate>,
}

#[derive(Debug, Clone, PartialEq, Field)]
struct SeenAt(DateTime<Utc>);

/// A newtype that conditions cannot compare, which is allowed.
#[derive(Debug, Clone, PartialEq, Field)]
struct Tags(Json<Vec<String>>);

#[derive(Debug, Clone, Copy, PartialEq, State)]
enum CustomerState {
    Active,
    PendingReview,
    #[state(name = "DELETED")]
    Gone,
}

/// Names of several words.
#[derive(Debug, Clone, PartialEq, Field)]
enum Words {
    Open,
    InEU,
    HTTPFailed,
    Level2Reached,
    #[allow(non_camel_case_types)]
    Already_Snake,
}

#[derive(Debug, Clone, PartialEq, State)]
enum Life {
    Active,
}

#[derive(Debug, Clone, Serialize, Event)]
enum CustomerEvent {
    #[event(name = "CustomerJoined", version = 2)]
    Joined { email: String },
    #[event(name = "CustomerLeft")]
    Left,
    #[event(name = "CustomerMoved")]
    Moved(Address),
    #[event(name = "CustomerCounted")]
    Counted(u32),
}

#[derive(Debug, Clone, PartialEq, Model)]
#[model(table = "crm.customers", event = CustomerEvent, name = "Customer")]
struct Customer {
    state: CustomerState,
    owner_id: Uuid,
    id: Id<Self>,
    balance: Decimal,
    small: u8,
    large: i64,
    ratio: f64,
    narrow: f32,
    vip: bool,
    #[column(name = "full_name")]
    name: String,
    photo: Vec<u8>,
    born: NaiveDate,
    seen: DateTime<Utc>,
    #[column(json)]
    address: Address,
    #[column(json)]
    former: Option<Address>,
    settings: Json<Vec<u8>>,
    document: serde_json::Value,
    tier: Tier,
    email: Email,
    birthday: Birthday,
    seen_at: SeenAt,
    tags: Tags,
    nickname: Option<String>,
    r#type: Option<Tier>,
    referrer: Option<Id<Customer>>,
}

#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "counters")]
struct Counter {
    id: Id<Counter>,
    count: i64,
    /// The struct's own field: the framework manages no dates of an entity.
    created_date: NaiveDate,
    state: Life,
}

fn instant() -> DateTime<Utc> {
    DateTime::from_timestamp(1_700_000_000, 123_456_789).unwrap()
}

fn customer() -> Customer {
    let street = "Main St".to_owned();
    Customer {
        state: CustomerState::PendingReview,
        owner_id: Uuid::from_u128(7),
        id: Id::from_uuid(Uuid::from_u128(1)),
        balance: Decimal::new(12_345, 2),
        small: 255,
        large: i64::MIN,
        ratio: 0.1,
        narrow: 0.1,
        vip: true,
        name: "Zoë".to_owned(),
        photo: vec![0, 255],
        born: NaiveDate::from_ymd_opt(2000, 2, 29).unwrap(),
        seen: instant(),
        address: Address { street: street.clone() },
        former: Some(Address { street }),
        settings: Json(vec![1, 2]),
        document: serde_json::json!({ "a": [1, null] }),
        tier: Tier::GoldPlus,
        email: Email("z@example.com".to_owned()),
        birthday: Birthday { date: NaiveDate::from_ymd_opt(2000, 2, 29) },
        seen_at: SeenAt(instant()),
        tags: Tags(Json(vec!["a".to_owned()])),
        nickname: Some("Z".to_owned()),
        r#type: Some(Tier::Basic),
        referrer: Some(Id::from_uuid(Uuid::from_u128(2))),
    }
}

fn read<E: Entity>(mut values: Vec<Value>) -> Result<E, FieldError> {
    E::from_row(&mut RowReader::new(E::TABLE, &mut values))
}

fn column<E: Entity>(name: &str) -> usize {
    E::TABLE.columns.iter().position(|column| column.name == name).unwrap()
}

#[test]
fn every_kind_of_field_is_read_back_as_it_was_stored() {
    let mut before = customer();
    let values = before.to_values().unwrap();
    let after: Customer = read(values.clone()).unwrap();
    assert_ne!(after, before, "a database stores microseconds");
    before.normalize();
    assert_eq!(after, before);
    assert_eq!(after.to_values().unwrap(), values);
}

#[test]
fn absent_values_are_null() {
    let absent = Customer {
        former: None,
        nickname: None,
        r#type: None,
        referrer: None,
        birthday: Birthday { date: None },
        seen: DateTime::UNIX_EPOCH,
        seen_at: SeenAt(DateTime::UNIX_EPOCH),
        ..customer()
    };
    let values = absent.to_values().unwrap();
    for name in ["former", "nickname", "type", "referrer", "birthday"] {
        let index = column::<Customer>(name);
        assert!(Customer::TABLE.columns[index].nullable, "{name}");
        assert_eq!(values[index], Value::Null, "{name}");
    }
    assert_eq!(read::<Customer>(values).unwrap(), absent);
}

#[test]
fn every_value_has_the_type_of_its_column() {
    let values = customer().to_values().unwrap();
    let columns = Customer::TABLE.user_columns();
    assert_eq!(values.len(), columns.len());
    for (value, column) in values.iter().zip(columns) {
        assert_eq!(value.kind(), column.ty.name(), "{}", column.name);
    }
}

#[test]
fn a_table_lists_the_id_the_fields_and_the_framework_columns() {
    let table = Customer::TABLE;
    assert_eq!((table.schema, table.name, table.model), (Some("crm"), "customers", "Customer"));
    assert_eq!(table.columns[0], ColumnDef::new("id", ValueType::Uuid));
    assert_eq!(table.columns[1], ColumnDef::new("state", ValueType::Text));
    assert_eq!(table.columns[column::<Customer>("full_name")].ty, ValueType::Text);
    assert_eq!(
        table.columns[25..],
        [
            ColumnDef::new("version", ValueType::Int),
            ColumnDef::new("created_date", ValueType::Timestamp),
            ColumnDef::new("updated_date", ValueType::Timestamp),
        ]
    );
    assert_eq!((table.version, table.dates, table.state), (Some(25), Some(26), Some(1)));
}

#[test]
fn an_entity_has_a_version_but_neither_dates_nor_events() {
    const COLUMNS: &[ColumnDef] = &[
        ColumnDef::new("id", ValueType::Uuid),
        ColumnDef::new("count", ValueType::Int),
        ColumnDef::new("created_date", ValueType::Date),
        ColumnDef::new("state", ValueType::Text),
        ColumnDef::new("version", ValueType::Int),
    ];
    let expected = Table {
        schema: None,
        name: "counters",
        model: "counters",
        columns: COLUMNS,
        version: Some(4),
        dates: None,
        state: Some(3),
    };
    assert_eq!(*Counter::TABLE, expected);
    fn without_events<E: Entity<Event = NoEvent>>() {}
    without_events::<Counter>();
}

#[test]
fn the_trait_gives_access_to_id_and_state() {
    fn reach<M: Model>(model: &mut M, state: M::State) -> (M::Id, &M::State) {
        model.set_state(state);
        (model.id(), model.state())
    }
    let mut customer = customer();
    let id = customer.id;
    assert_eq!(reach(&mut customer, CustomerState::Gone), (id, &CustomerState::Gone));
}

#[test]
fn columns_have_typed_constants() {
    let _: Column<Customer, Id<Customer>> = Customer::ID;
    let _: Column<Customer, Json<Address>> = Customer::ADDRESS;
    let _: Column<Customer, Option<Json<Address>>> = Customer::FORMER;
    let _: Column<Customer, Option<Tier>> = Customer::TYPE;
    let _: Column<Customer, String> = Customer::NAME;
    let _: Column<Customer, i64> = Customer::VERSION;
    let _: Column<Customer, DateTime<Utc>> = Customer::CREATED_DATE;
    let _: Column<Customer, DateTime<Utc>> = Customer::UPDATED_DATE;
    let _: Column<Counter, NaiveDate> = Counter::CREATED_DATE;
}

#[test]
fn a_value_that_does_not_fit_names_its_column() {
    let mut values = customer().to_values().unwrap();
    values[column::<Customer>("full_name")] = Value::Null;
    let error = read::<Customer>(values).unwrap_err();
    assert_eq!(error.column, "full_name");
    assert!(error.reason.contains("NULL"), "{error}");
}

#[test]
fn an_unknown_text_lists_the_known_ones() {
    let mut values = customer().to_values().unwrap();
    values[column::<Customer>("state")] = Value::Text("FROZEN".into());
    assert_eq!(
        read::<Customer>(values).unwrap_err().to_string(),
        "column `state`: the database holds `FROZEN`, which CustomerState does not know \
         (ACTIVE, PENDING_REVIEW, DELETED); add the variant or correct the row"
    );
    let error = Tier::from_value(Value::Text("GOLD_PLUS".into())).unwrap_err();
    assert_eq!(
        error.reason,
        "the database holds `GOLD_PLUS`, which Tier does not know (BASIC, gold-plus); \
         add the variant or correct the row"
    );
    let error = Tier::from_value(Value::Int(1)).unwrap_err();
    assert_eq!(error, FieldError::mismatch(ValueType::Text, &Value::Int(1)));
}

#[test]
fn states_are_stored_under_their_names() {
    assert_eq!(CustomerState::Active.as_str(), "ACTIVE");
    assert_eq!(CustomerState::PendingReview.as_str(), "PENDING_REVIEW");
    assert_eq!(CustomerState::Gone.as_str(), "DELETED");
    assert_eq!(<CustomerState as SoftDelete>::deleted(), CustomerState::Gone);
}

#[test]
fn names_are_split_into_words() {
    for (value, text) in [
        (Words::Open, "OPEN"),
        (Words::InEU, "IN_EU"),
        (Words::HTTPFailed, "HTTP_FAILED"),
        (Words::Level2Reached, "LEVEL2_REACHED"),
        (Words::Already_Snake, "ALREADY_SNAKE"),
    ] {
        assert_eq!(value.to_value().unwrap(), Value::Text(text.into()));
    }
}

#[test]
fn enums_and_newtypes_can_be_compared() {
    fn comparable<F: Comparable>() {}
    comparable::<Tier>();
    comparable::<CustomerState>();
    comparable::<Email>();
    comparable::<Birthday>();
}

#[test]
fn events_are_stored_under_their_names() {
    let names: Vec<(&str, i32)> =
        CustomerEvent::NAMES.iter().map(|n| (n.name, n.version)).collect();
    assert_eq!(
        names,
        [("CustomerJoined", 2), ("CustomerLeft", 1), ("CustomerMoved", 1), ("CustomerCounted", 1)]
    );
    assert_eq!(CustomerEvent::Left.event_name(), CustomerEvent::NAMES[1]);
    assert_eq!(CustomerEvent::Counted(1).event_name(), CustomerEvent::NAMES[3]);
}

#[test]
fn a_payload_contains_the_fields_of_the_variant() {
    let payload = |event: CustomerEvent| event.payload().unwrap().to_string();
    assert_eq!(payload(CustomerEvent::Joined { email: "a@b".into() }), r#"{"email":"a@b"}"#);
    assert_eq!(payload(CustomerEvent::Left), "{}");
    assert_eq!(
        payload(CustomerEvent::Moved(Address { street: "Main".into() })),
        r#"{"street":"Main"}"#
    );
}

#[test]
fn a_payload_that_is_not_an_object_is_an_error() {
    let error = CustomerEvent::Counted(1).payload().unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("expected the event `CustomerCounted` of `"), "{error}");
    assert!(
        error.contains("CustomerEvent` to serialize to a JSON object, found a number"),
        "{error}"
    );
}
