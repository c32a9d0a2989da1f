//! A model and an entity whose ids contain their shard, and an entity whose ids do not.

use ekbatan::domain::{New, ShardIdentifier};
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use support::stored_instant;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Model)]
#[model(table = "accounts", event = AccountEvent, name = "Account")]
pub struct Account {
    pub id: ShardedId<Account>,
    pub owner: String,
    /// PostgreSQL pads it with blanks.
    pub code: String,
    /// The same, and may be null.
    pub memo: Option<String>,
    pub balance: Decimal,
    pub at: DateTime<Utc>,
    pub rank: i64,
    pub state: Life,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, State)]
pub enum Life {
    Active,
    Deleted,
}

#[derive(Debug, Clone, Serialize, Deserialize, Event)]
pub enum AccountEvent {
    #[event(name = "AccountOpened")]
    Opened { owner: String },
    #[event(name = "AccountChanged")]
    Changed { by: Decimal },
}

/// An entity, which emits no events. Its text is unique on its shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
#[entity(table = "notes", name = "Note")]
pub struct Note {
    pub id: ShardedId<Note>,
    pub text: String,
    pub state: Life,
}

/// An entity that a rule must place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
#[entity(table = "orders", name = "Order")]
pub struct Order {
    pub id: Id<Order>,
    pub country: String,
    pub state: Life,
}

pub fn account_with(id: ShardedId<Account>, owner: &str) -> Account {
    Account {
        id,
        owner: owner.to_owned(),
        code: "ABCDEFGH".to_owned(),
        memo: None,
        balance: Decimal::ONE_HUNDRED,
        at: stored_instant(0),
        rank: 0,
        state: Life::Active,
    }
}

pub fn account(shard: ShardIdentifier, owner: &str) -> Account {
    account_with(ShardedId::new(shard), owner)
}

pub fn note(shard: ShardIdentifier, text: &str) -> Note {
    Note { id: ShardedId::new(shard), text: text.to_owned(), state: Life::Active }
}

pub fn order(country: &str) -> Order {
    Order { id: Id::new(), country: country.to_owned(), state: Life::Active }
}

/// A new row without events, which a repository can store.
pub fn quiet<T: Entity>(value: T) -> New<T> {
    New::new(value, ())
}

pub fn migrations() -> Migrations {
    Migrations::none()
        .script_for(ekbatan::db::Dialect::Sqlite, 1, "create_accounts", SQLITE)
        .script_for(ekbatan::db::Dialect::Postgres, 1, "create_accounts", POSTGRES)
        .script_for(ekbatan::db::Dialect::MariaDb, 1, "create_accounts", MARIADB)
}

/// The collations do not compare bytes, so merged pages must use the order of the databases.
const SQLITE: &str = "
CREATE TABLE accounts (
    id TEXT PRIMARY KEY,
    owner TEXT COLLATE NOCASE NOT NULL,
    code TEXT NOT NULL,
    memo TEXT,
    balance TEXT NOT NULL,
    at TEXT NOT NULL,
    rank INTEGER NOT NULL,
    state TEXT NOT NULL,
    version INTEGER NOT NULL,
    created_date TEXT NOT NULL,
    updated_date TEXT NOT NULL
);
CREATE TABLE notes (id TEXT PRIMARY KEY, text TEXT NOT NULL CONSTRAINT notes_text_key UNIQUE, state TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE orders (id TEXT PRIMARY KEY, country TEXT NOT NULL, state TEXT NOT NULL, version INTEGER NOT NULL);";

const POSTGRES: &str = r#"
CREATE TABLE accounts (
    id uuid PRIMARY KEY,
    owner text COLLATE "und-x-icu" NOT NULL,
    code char(8) NOT NULL,
    memo char(8),
    balance numeric(20, 4) NOT NULL,
    at timestamptz NOT NULL,
    rank bigint NOT NULL,
    state varchar(24) NOT NULL,
    version bigint NOT NULL,
    created_date timestamp NOT NULL,
    updated_date timestamp NOT NULL
);
CREATE TABLE notes (id uuid PRIMARY KEY, text text NOT NULL CONSTRAINT notes_text_key UNIQUE, state varchar(24) NOT NULL, version bigint NOT NULL);
CREATE TABLE orders (id uuid PRIMARY KEY, country text NOT NULL, state varchar(24) NOT NULL, version bigint NOT NULL);"#;

const MARIADB: &str = "
CREATE TABLE accounts (
    id uuid PRIMARY KEY,
    owner varchar(255) COLLATE utf8mb4_general_ci NOT NULL,
    code varchar(8) COLLATE utf8mb4_unicode_ci NOT NULL,
    memo varchar(8) COLLATE utf8mb4_unicode_ci,
    balance decimal(20, 4) NOT NULL,
    at datetime(6) NOT NULL,
    rank bigint NOT NULL,
    state varchar(24) NOT NULL,
    version bigint NOT NULL,
    created_date datetime(6) NOT NULL,
    updated_date datetime(6) NOT NULL
);
CREATE TABLE notes (id uuid PRIMARY KEY, text varchar(255) NOT NULL, state varchar(24) NOT NULL, version bigint NOT NULL, UNIQUE notes_text_key (text));
CREATE TABLE orders (id uuid PRIMARY KEY, country varchar(255) NOT NULL, state varchar(24) NOT NULL, version bigint NOT NULL);";
