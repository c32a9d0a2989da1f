//! A model with a field of every type, and an entity that it refers to.

use ekbatan::Field;
use ekbatan::chrono::NaiveDate;
use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::Repository;
use serde::{Deserialize, Serialize};

use crate::wallet::{self, Wallet};
use crate::{Domain, TestDatabase, instant, stored_instant};

/// Things, zones and the wallets of the example.
pub static THINGS: Domain = Domain {
    migrations,
    executor: |databases| {
        ActionExecutor::builder(databases, NAMESPACE)
            .model::<Thing>()
            .model::<Zone>()
            .model::<Wallet>()
    },
};

/// The namespace of the executors for things.
pub const NAMESPACE: &str = "com.example.things";

impl TestDatabase {
    /// The repository of things, for databases of [`THINGS`].
    pub fn things(&self) -> Repository<Thing> {
        self.databases.repository()
    }
}

/// A model with a field of every type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Model)]
#[model(table = "things", event = ThingEvent, name = "Thing")]
pub struct Thing {
    pub id: Id<Thing>,
    pub zone: Option<Id<Zone>>,
    pub label: String,
    pub owner: Uuid,
    pub price: Decimal,
    pub small: i32,
    pub big: i64,
    pub huge: u64,
    pub ratio: f64,
    pub active: bool,
    pub raw: Vec<u8>,
    pub day: NaiveDate,
    pub at: DateTime<Utc>,
    #[column(json)]
    pub settings: Settings,
    pub color: Color,
    pub cents: Cents,
    pub note: Option<String>,
    pub weight: Option<Decimal>,
    pub seen_at: Option<DateTime<Utc>>,
    pub seen_on: Option<NaiveDate>,
    pub hits: Option<i64>,
    /// Optional here, although its column is NOT NULL.
    pub code: Option<String>,
    pub state: ThingState,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub tags: Vec<String>,
    pub depth: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Field)]
pub enum Color {
    Red,
    Green,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Field)]
pub struct Cents(pub i64);

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, State)]
pub enum ThingState {
    Active,
    Deleted,
}

#[derive(Debug, Clone, Serialize, Deserialize, Event)]
pub enum ThingEvent {
    #[event(name = "ThingMade")]
    Made { label: String },
    #[event(name = "ThingRenamed", version = 2)]
    Renamed { from: String, to: String },
    #[event(name = "ThingTouched")]
    Touched,
    #[event(name = "ThingDescribed")]
    Described { text: serde_json::Value },
}

/// An entity. Its table sorts after `things`, which refers to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
#[entity(table = "zones", name = "Zone")]
pub struct Zone {
    pub id: Id<Zone>,
    pub name: String,
    pub state: ThingState,
}

pub fn zone(name: &str) -> Zone {
    Zone { id: Id::new(), name: name.to_owned(), state: ThingState::Active }
}

pub fn thing(label: &str) -> Thing {
    Thing {
        id: Id::new(),
        zone: None,
        label: label.to_owned(),
        owner: Uuid::now_v7(),
        price: Decimal::new(1050, 2),
        small: -7,
        big: i64::MAX,
        huge: 7,
        ratio: 0.1,
        active: true,
        raw: vec![0, 159, 255],
        day: NaiveDate::from_ymd_opt(2024, 2, 29).unwrap(),
        at: instant(-86_400),
        settings: Settings { tags: vec!["ü'\"".to_owned()], depth: Some(3) },
        color: Color::Green,
        cents: Cents(5),
        note: Some("a note".to_owned()),
        weight: Some(Decimal::new(-25, 1)),
        seen_at: Some(instant(-60)),
        seen_on: NaiveDate::from_ymd_opt(1969, 7, 20),
        hits: Some(0),
        code: Some(String::new()),
        state: ThingState::Active,
    }
}

/// The thing as a database stores it: instants lose their nanoseconds.
pub fn as_stored(mut thing: Thing) -> Thing {
    assert_eq!((thing.at, thing.seen_at), (instant(-86_400), Some(instant(-60))));
    thing.at = stored_instant(-86_400);
    thing.seen_at = Some(stored_instant(-60));
    thing
}

/// A new thing without events, which a repository can store.
pub fn quiet(thing: Thing) -> New<Thing> {
    New::new(thing, ())
}

pub fn migrations() -> Migrations {
    let mysql = |uuid: &str, collation: &str| {
        MYSQL.replace("{uuid}", uuid).replace("{collation}", collation)
    };
    let char36 = "char(36) CHARACTER SET ascii COLLATE ascii_bin";
    wallet::migrations()
        .script_for(ekbatan::db::Dialect::Sqlite, 2, "create_things", SQLITE)
        .script_for(ekbatan::db::Dialect::Postgres, 2, "create_things", POSTGRES)
        .script_for(
            ekbatan::db::Dialect::MySql,
            2,
            "create_things",
            mysql(char36, "utf8mb4_0900_bin"),
        )
        .script_for(
            ekbatan::db::Dialect::MariaDb,
            2,
            "create_things",
            mysql("uuid", "utf8mb4_nopad_bin"),
        )
}

const SQLITE: &str = "
CREATE TABLE zones (id TEXT PRIMARY KEY, name TEXT NOT NULL, state TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE things (
    id TEXT PRIMARY KEY,
    zone TEXT CONSTRAINT things_zone_fkey REFERENCES zones (id),
    label TEXT NOT NULL CONSTRAINT things_label_key UNIQUE,
    owner TEXT NOT NULL,
    price TEXT NOT NULL,
    small INTEGER NOT NULL CONSTRAINT things_small_check CHECK (small < 1000),
    big INTEGER NOT NULL,
    huge INTEGER NOT NULL,
    ratio REAL NOT NULL,
    active INTEGER NOT NULL,
    raw BLOB NOT NULL,
    day TEXT NOT NULL,
    at TEXT NOT NULL,
    settings TEXT NOT NULL,
    color TEXT NOT NULL,
    cents INTEGER NOT NULL,
    note TEXT,
    weight TEXT,
    seen_at TEXT,
    seen_on TEXT,
    hits INTEGER,
    code TEXT NOT NULL,
    state TEXT NOT NULL,
    version INTEGER NOT NULL,
    created_date TEXT NOT NULL,
    updated_date TEXT NOT NULL
);";

/// `Color` has no variant for `BLUE`.
const POSTGRES: &str = "
CREATE TYPE color AS ENUM ('RED', 'GREEN', 'BLUE');
CREATE TABLE zones (id uuid PRIMARY KEY, name text NOT NULL, state varchar(24) NOT NULL, version bigint NOT NULL);
CREATE TABLE things (
    id uuid PRIMARY KEY,
    zone uuid CONSTRAINT things_zone_fkey REFERENCES zones (id),
    label text NOT NULL CONSTRAINT things_label_key UNIQUE,
    owner uuid NOT NULL,
    price numeric(20, 2) NOT NULL,
    small integer NOT NULL CONSTRAINT things_small_check CHECK (small < 1000),
    big bigint NOT NULL,
    huge bigint NOT NULL,
    ratio double precision NOT NULL,
    active boolean NOT NULL,
    raw bytea NOT NULL,
    day date NOT NULL,
    at timestamptz NOT NULL,
    settings jsonb NOT NULL,
    color color NOT NULL,
    cents bigint NOT NULL,
    note text,
    weight numeric,
    seen_at timestamp,
    seen_on date,
    hits integer,
    code text NOT NULL,
    state varchar(24) NOT NULL,
    version bigint NOT NULL,
    created_date timestamp NOT NULL,
    updated_date timestamp NOT NULL
);";

/// MySQL and MariaDB differ in the type of ids and in the name of the collation that compares
/// bytes.
const MYSQL: &str = "
CREATE TABLE zones (
    id {uuid} NOT NULL PRIMARY KEY, name varchar(255) NOT NULL, state varchar(24) NOT NULL, version bigint NOT NULL
) DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};
CREATE TABLE things (
    id {uuid} NOT NULL PRIMARY KEY,
    zone {uuid},
    label varchar(255) NOT NULL,
    owner {uuid} NOT NULL,
    price decimal(20, 2) NOT NULL,
    small integer NOT NULL,
    big bigint NOT NULL,
    huge bigint NOT NULL,
    ratio double NOT NULL,
    active boolean NOT NULL,
    raw varbinary(255) NOT NULL,
    day date NOT NULL,
    at datetime(6) NOT NULL,
    settings json NOT NULL,
    color enum('RED', 'GREEN', 'BLUE') NOT NULL,
    cents bigint NOT NULL,
    note text,
    weight decimal(30, 10),
    seen_at datetime(6),
    seen_on date,
    hits integer,
    code varchar(255) NOT NULL,
    state varchar(24) NOT NULL,
    version bigint NOT NULL,
    created_date datetime(6) NOT NULL,
    updated_date datetime(6) NOT NULL,
    CONSTRAINT things_label_key UNIQUE (label),
    CONSTRAINT things_zone_fkey FOREIGN KEY (zone) REFERENCES zones (id),
    CONSTRAINT things_small_check CHECK (small < 1000)
) DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};";
