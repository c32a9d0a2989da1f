//! Accounts on three shards, which enqueue calls, and the entries that handlers add for their events.

use ekbatan::config::{DataSourceConfig, EkbatanConfig, ShardMemberConfig};
use ekbatan::db::Dialect as Sql;
use ekbatan::domain::{New, ShardIdentifier};
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use support::ScratchDatabase;

use crate::requests::{CallEffect, Cancellable, Request, Serve, Wish};
use crate::ticks::Tick;

pub const SHARDS: usize = 3;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Model)]
#[model(table = "accounts", event = AccountEvent, name = "Account")]
pub struct Account {
    pub id: ShardedId<Account>,
    pub credits: i64,
    pub state: AccountState,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, State)]
pub enum AccountState {
    Open,
}

#[derive(Debug, Clone, Serialize, Deserialize, Event)]
pub enum AccountEvent {
    #[event(name = "AccountOpened")]
    Opened {},
    #[event(name = "AccountCredited")]
    Credited {
        /// How many calls the same commit enqueues.
        calls: usize,
    },
}

/// The effect of one handler and one event.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "entries")]
pub struct Entry {
    pub id: ShardedId<Entry>,
    pub handler: String,
    pub event: String,
    pub account: String,
    pub account_version: i64,
    /// The greatest earlier version of the account whose entry the run had found.
    pub after_version: i64,
    pub state: EntryState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
pub enum EntryState {
    Posted,
}

/// Opens an account on a shard.
pub struct Open;

#[derive(Debug, Serialize, Deserialize)]
pub struct Opening {
    pub shard: usize,
}

impl Action for Open {
    const NAME: &'static str = "account.open";
    type Params = Opening;
    type Output = ShardedId<Account>;
    type Error = std::convert::Infallible;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        opening: &Opening,
    ) -> Result<ShardedId<Account>, Self::Error> {
        let id = ctx.new_sharded_id(shard(opening.shard));
        let account = Account { id, credits: 0, state: AccountState::Open };
        ctx.plan().add(New::new(account, AccountEvent::Opened {}));
        Ok(id)
    }
}

/// Credits an account, and enqueues and cancels calls.
pub struct Credit(pub Serve);

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Crediting {
    pub account: Uuid,
    pub wishes: Vec<Wish>,
    pub cancelled: Option<Cancellable>,
    /// Whether the action fails at its end.
    pub fails: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum CreditError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the action fails on purpose")]
    OnPurpose,
}

impl Action for Credit {
    const NAME: &'static str = "account.credit";
    type Params = Crediting;
    /// What was enqueued.
    type Output = Vec<Cancellable>;
    type Error = CreditError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        crediting: &Crediting,
    ) -> Result<Vec<Cancellable>, CreditError> {
        let account = ctx.get(ShardedId::<Account>::from_uuid(crediting.account)).await?;
        let on = account.id.shard().map(number).expect("the id of an account has a shard");
        if let Some(cancelled) = &crediting.cancelled {
            self.0.cancel(ctx, cancelled).await?;
        }
        let mut enqueued = Vec::new();
        for (place, wish) in crediting.wishes.iter().enumerate() {
            let maker = (crediting.account.to_string(), account.version() + 1, place);
            enqueued.push(self.0.enqueue(ctx, on, maker, wish));
        }
        ctx.plan().update(account.apply(|account| {
            account.credits += 1;
            AccountEvent::Credited { calls: crediting.wishes.len() }
        }));
        if crediting.fails { Err(CreditError::OnPurpose) } else { Ok(enqueued) }
    }
}

/// Adds an entry. Nothing but the delivery's mark, or the key of the step, keeps it from being added
/// twice.
pub struct Post;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Posting {
    pub shard: usize,
    pub handler: String,
    pub event: Uuid,
    pub account: String,
    pub version: i64,
    pub after: i64,
}

impl Action for Post {
    const NAME: &'static str = "entry.post";
    type Params = Posting;
    type Output = ();
    type Error = std::convert::Infallible;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        posting: &Posting,
    ) -> Result<(), Self::Error> {
        let entry = Entry {
            id: ctx.new_sharded_id(shard(posting.shard)),
            handler: posting.handler.clone(),
            event: posting.event.to_string(),
            account: posting.account.clone(),
            account_version: posting.version,
            after_version: posting.after,
            state: EntryState::Posted,
        };
        ctx.plan().add(New::new(entry, ()));
        Ok(())
    }
}

pub fn shard(n: usize) -> ShardIdentifier {
    let member = u32::try_from(n).expect("a small number");
    ShardIdentifier::new(0, member).expect("a shard")
}

/// The number of a shard.
pub fn number(shard: ShardIdentifier) -> usize {
    shard.member().into()
}

/// Three shards at these URLs.
pub async fn connect(urls: &[String; SHARDS]) -> Databases {
    let data_source = |url: &String| -> DataSourceConfig {
        // Four processes fit into the connections of one server.
        ScratchDatabase::config_of(url).maximum_pool_size(5)
    };
    let mut config = EkbatanConfig::from(data_source(&urls[0]));
    for (n, url) in urls.iter().enumerate().skip(1) {
        config = config.shard(shard(n), ShardMemberConfig::new(0, data_source(url)));
    }
    Databases::connect(&config).await.unwrap()
}

pub async fn executor(databases: &Databases) -> ActionExecutor {
    let builder = ActionExecutor::builder(databases, "com.example.accounts");
    let builder = builder.model::<Account>().model::<Entry>();
    builder.model::<Request>().model::<CallEffect>().model::<Tick>().build().await.unwrap()
}

pub fn migrations() -> Migrations {
    let script = |uuid: &str, text: &str, integer: &str, date: &str| {
        format!(
            "CREATE TABLE accounts (id {uuid} PRIMARY KEY, credits {integer} NOT NULL, \
             state {text} NOT NULL, version {integer} NOT NULL, created_date {date} NOT NULL, \
             updated_date {date} NOT NULL); \
             CREATE TABLE entries (id {uuid} PRIMARY KEY, handler {text} NOT NULL, \
             event {text} NOT NULL, account {text} NOT NULL, account_version {integer} NOT NULL, \
             after_version {integer} NOT NULL, state {text} NOT NULL, version {integer} NOT NULL); \
             CREATE INDEX entries_of_account ON entries (account, handler, account_version); \
             CREATE TABLE requests (id {uuid} PRIMARY KEY, manner {text} NOT NULL, \
             call_key {text} NOT NULL, maker {text} NOT NULL, maker_version {integer} NOT NULL, \
             place {integer} NOT NULL, state {text} NOT NULL, version {integer} NOT NULL); \
             CREATE INDEX requests_of_key ON requests (call_key, state); \
             CREATE TABLE call_effects (id {uuid} PRIMARY KEY, request {text} NOT NULL, \
             call_key {text} NOT NULL, position {integer} NOT NULL, found {text} NOT NULL, \
             state {text} NOT NULL, version {integer} NOT NULL); \
             CREATE INDEX effects_of_key ON call_effects (call_key, position); \
             CREATE TABLE ticks (id {uuid} PRIMARY KEY, job {text} NOT NULL, run {text} NOT NULL, \
             slot {integer} NOT NULL, position {integer} NOT NULL, state {text} NOT NULL, \
             version {integer} NOT NULL); \
             CREATE INDEX ticks_of_job ON ticks (job, position)"
        )
    };
    let ascii = "char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL";
    Migrations::none()
        .script_for(Sql::Sqlite, 1, "accounts", script("TEXT NOT NULL", "TEXT", "INTEGER", "TEXT"))
        .script_for(
            Sql::Postgres,
            1,
            "accounts",
            script("uuid", "varchar(64)", "bigint", "timestamp"),
        )
        .script_for(
            Sql::MySql,
            1,
            "accounts",
            script(ascii, "varchar(64)", "bigint", "datetime(6)"),
        )
        .script_for(
            Sql::MariaDb,
            1,
            "accounts",
            script("uuid", "varchar(64)", "bigint", "datetime(6)"),
        )
}
