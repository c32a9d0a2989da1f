//! Wallets, a ledger that is fed by their events, and handlers that a test scripts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::db::Dialect as Sql;
use ekbatan::domain::New;
use ekbatan::events::{
    Delivered, DeliveryOperations, EventHandler, HandlerContext, Node, NodeBuilder,
};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use support::wallet::{self, Deposit, DepositMoney, OpenWallet, Opening, Wallet, WalletEvent};
use support::{Dialect, ScratchDatabase, until};

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One line of the ledger: the effect of one event.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "entries")]
pub struct Entry {
    pub id: Id<Entry>,
    pub event: String,
    pub wallet: String,
    pub wallet_version: i64,
    pub state: EntryState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
pub enum EntryState {
    Posted,
}

/// Posts an event to the ledger.
pub struct PostEntry;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Posting {
    pub event: Uuid,
    pub wallet: String,
    pub wallet_version: i64,
}

impl Posting {
    pub fn of(event: &Delivered<WalletEvent>) -> Self {
        Self {
            event: event.id,
            wallet: event.model_id.clone(),
            wallet_version: event.model_version.unwrap_or_default(),
        }
    }
}

impl Action for PostEntry {
    const NAME: &'static str = "ledger.post_entry";
    type Params = Posting;
    type Output = ();
    type Error = std::convert::Infallible;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        posting: &Posting,
    ) -> Result<(), Self::Error> {
        let entry = Entry {
            id: ctx.new_id(),
            event: posting.event.to_string(),
            wallet: posting.wallet.clone(),
            wallet_version: posting.wallet_version,
            state: EntryState::Posted,
        };
        ctx.plan().add(New::new(entry, ()));
        Ok(())
    }
}

type Work = dyn for<'a> Fn(
        &'a mut HandlerContext<'_>,
        &'a Delivered<WalletEvent>,
    ) -> BoxFuture<'a, Result<(), Failure>>
    + Send
    + Sync;

/// A handler that does what a test says, and notes each event before.
pub struct Scripted<const N: u8> {
    work: Box<Work>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// A run of a handler.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    pub wallet: String,
    pub version: i64,
    pub attempt: u32,
    pub name: String,
}

impl<const N: u8> Scripted<N> {
    pub fn new<W>(work: W) -> Self
    where
        W: for<'a> Fn(
                &'a mut HandlerContext<'_>,
                &'a Delivered<WalletEvent>,
            ) -> BoxFuture<'a, Result<(), Failure>>
            + Send
            + Sync
            + 'static,
    {
        Self { work: Box::new(work), seen: Arc::default() }
    }

    /// Posts each event to the ledger.
    pub fn posting() -> Self {
        Self::new(|ctx, event| post(ctx, event))
    }

    /// What it has seen, also after it was given to a node.
    pub fn seen(&self) -> Arc<Mutex<Vec<Seen>>> {
        self.seen.clone()
    }
}

/// Posts an event to the ledger by the action that marks it as handled.
pub fn post<'a>(
    ctx: &'a mut HandlerContext<'_>,
    event: &'a Delivered<WalletEvent>,
) -> BoxFuture<'a, Result<(), Failure>> {
    async move { Ok(ctx.finish(&PostEntry, Posting::of(event)).await?) }.boxed()
}

impl<const N: u8> EventHandler for Scripted<N> {
    const NAME: &'static str = match N {
        0 => "ledger.post",
        1 => "mail.send",
        _ => "ledger.post_again",
    };
    type Event = WalletEvent;
    type Error = Failure;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: &Delivered<WalletEvent>,
    ) -> Result<(), Failure> {
        let seen = Seen {
            wallet: event.model_id.clone(),
            version: event.model_version.unwrap_or_default(),
            attempt: event.attempt,
            name: event.name.clone(),
        };
        self.seen.lock().unwrap().push(seen);
        (self.work)(ctx, event).await
    }
}

/// An event of another program.
pub struct Foreign {
    pub id: Uuid,
    pub wallet: Uuid,
    /// The version of the wallet and the index of the event, if the program knows them.
    pub place: Option<(i64, i64)>,
}

/// The handler of most tests.
pub type Ledger = Scripted<0>;
/// Another handler of the same events.
pub type Mail = Scripted<1>;
/// The ledger under another name.
pub type Renamed = Scripted<2>;

/// A database with wallets and a ledger.
pub struct Scene {
    pub databases: Databases,
    pub executor: ActionExecutor,
    pub scratch: ScratchDatabase,
}

impl Scene {
    pub async fn start(dialect: Dialect) -> Self {
        Self::start_in(ScratchDatabase::create(dialect).await).await
    }

    pub async fn start_in(scratch: ScratchDatabase) -> Self {
        let databases = Databases::connect(&scratch.config().into()).await.unwrap();
        databases.migrate(&migrations()).await.unwrap();
        let executor = executor(&databases).await;
        Self { databases, executor, scratch }
    }

    /// The same database, as another process opens it.
    pub async fn open_again(&self) -> ActionExecutor {
        let databases = Databases::connect(&self.scratch.config().into()).await.unwrap();
        executor(&databases).await
    }

    pub fn node(&self) -> NodeBuilder {
        node(&self.executor)
    }

    pub fn operations(&self) -> DeliveryOperations {
        DeliveryOperations::new(&self.databases, &self.databases.shards().next().unwrap())
    }

    pub async fn open_wallet(&self) -> Id<Wallet> {
        open_wallet(&self.executor).await
    }

    pub async fn deposit(&self, wallet: Id<Wallet>, times: usize) {
        deposit(&self.executor, wallet, times).await;
    }

    /// Inserts closings of wallets as another program does that knows no handlers.
    pub async fn insert_events(&self, rows: &[Foreign]) {
        let (date, no) = match self.scratch.dialect {
            // SQLite has no dates: other programs may leave out what is zero.
            Dialect::Sqlite => ("2026-01-31T12:00:00Z", "0"),
            Dialect::Postgres => ("2026-01-31 12:00:00", "false"),
            Dialect::MySql | Dialect::MariaDb => ("2026-01-31 12:00:00", "0"),
        };
        let row = |Foreign { id, wallet, place }: &Foreign| {
            let place = place.map_or("NULL, NULL".to_owned(), |(v, i)| format!("{v}, {i}"));
            format!(
                "('{id}', 'java', '{id}', 'CloseAction', '{{}}', '{date}', '{date}', '{wallet}', \
                 'Wallet', 'WalletClosed', '{{\"balance\":\"1\"}}', '{date}', {no}, {place})"
            )
        };
        let events = self.scratch.eventlog("events");
        let values: Vec<String> = rows.iter().map(row).collect();
        let insert = format!(
            "INSERT INTO {events} (id, namespace, action_id, action_name, action_params, \
             started_date, completion_date, model_id, model_type, event_type, payload, event_date, \
             delivered, model_version, event_index) VALUES {}",
            values.join(", ")
        );
        self.scratch.execute(&insert).await;
    }

    /// The ledger: the versions of each wallet that were posted, in the order of posting.
    pub async fn posted(&self, wallet: Id<Wallet>) -> Vec<i64> {
        let mut entries =
            self.entries().find_where(Entry::WALLET.eq(wallet.to_string())).await.unwrap();
        entries.sort_by_key(|entry| entry.id.uuid());
        entries.iter().map(|entry| entry.wallet_version).collect()
    }

    pub fn entries(&self) -> ekbatan::repository::Repository<Entry> {
        self.databases.repository()
    }

    /// Waits until the ledger has this many lines.
    pub async fn until_posted(&self, count: u64) {
        until("the ledger has its lines", async || self.entries().count().await.unwrap() >= count)
            .await;
    }

    /// Waits until no delivery of a handler is left.
    pub async fn until_handled(&self, handler: &str) {
        until("every event is handled", async || {
            self.operations().pending(handler).await.unwrap() == 0
        })
        .await;
    }
}

pub async fn executor(databases: &Databases) -> ActionExecutor {
    let builder = ActionExecutor::builder(databases, "com.example.events");
    builder.model::<Wallet>().model::<Entry>().build().await.unwrap()
}

/// A node that finds what others commit soon.
pub fn node(executor: &ActionExecutor) -> NodeBuilder {
    Node::builder(executor).poll(Duration::from_millis(1), Duration::from_millis(50))
}

pub async fn open_wallet(executor: &ActionExecutor) -> Id<Wallet> {
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    executor.execute(&OpenWallet, opening).await.unwrap().id
}

pub async fn deposit(executor: &ActionExecutor, wallet: Id<Wallet>, times: usize) {
    for _ in 0..times {
        let deposit = Deposit { wallet, amount: Decimal::ONE };
        executor.execute(&DepositMoney, deposit).await.unwrap();
    }
}

pub fn migrations() -> Migrations {
    let entries = |uuid: &str| {
        format!(
            "CREATE TABLE entries (id {uuid} PRIMARY KEY, event varchar(64) NOT NULL, \
             wallet varchar(64) NOT NULL, wallet_version bigint NOT NULL, \
             state varchar(16) NOT NULL, version bigint NOT NULL)"
        )
    };
    let ascii = "char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL";
    wallet::migrations()
        .script_for(
            Sql::Sqlite,
            2,
            "entries",
            entries("TEXT NOT NULL")
                .replace("bigint", "INTEGER")
                .replace("varchar(64)", "TEXT")
                .replace("varchar(16)", "TEXT"),
        )
        .script_for(Sql::Postgres, 2, "entries", entries("uuid"))
        .script_for(Sql::MySql, 2, "entries", entries(ascii))
        .script_for(Sql::MariaDb, 2, "entries", entries("uuid"))
}
