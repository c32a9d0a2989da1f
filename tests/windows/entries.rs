//! Entries that come into windows, and the batches of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::clock::SystemClock;
use ekbatan::db::Dialect as Sql;
use ekbatan::domain::{IdGenerator, New, ShardIdentifier};
use ekbatan::jobs::windows::{
    ChunkOutcome, NewWindow, OfWindow, Window, WindowChunk, WindowSeries,
};
use ekbatan::prelude::*;
use ekbatan::repository::PageRequest;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

/// The name of the series of most tests.
pub const SERIES: &str = "entries";

/// How many entries a chunk has at most.
pub const CHUNK: usize = 10;

#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "entries", name = "Entry")]
pub struct Entry {
    pub id: ShardedId<Entry>,
    #[column(name = "window_id")]
    pub window: ShardedId<Window>,
    pub amount: i64,
    #[column(name = "batch_id")]
    pub batch: Option<ShardedId<Batch>>,
    pub state: EntryState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, State)]
pub enum EntryState {
    Pending,
    Batched,
    Refused,
}

/// Entries that belong together.
#[derive(Debug, Clone, PartialEq, Model)]
#[model(table = "batches", event = BatchEvent, name = "Batch")]
pub struct Batch {
    pub id: ShardedId<Batch>,
    #[column(name = "window_id")]
    pub window: ShardedId<Window>,
    pub number: i64,
    pub entries: i64,
    pub amount: i64,
    pub state: BatchState,
}

#[derive(Debug, Clone, Copy, PartialEq, State)]
pub enum BatchState {
    Complete,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
pub enum BatchEvent {
    #[event(name = "EntriesBatched")]
    Batched { number: i64, entries: i64 },
}

/// The shard of a window, which has its entries and batches, too.
pub fn shard_of(window: ShardedId<Window>) -> ShardIdentifier {
    window.shard().unwrap()
}

/// The id of an entry that is added without an action.
pub fn entry_of(window: ShardedId<Window>) -> ShardedId<Entry> {
    IdGenerator::new(Arc::new(SystemClock)).generate_on(shard_of(window))
}

/// Adds an entry, in time or too late. Answers which of both.
pub struct AddEntry;

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Adding {
    pub window: ShardedId<Window>,
    pub amount: i64,
}

impl Action for AddEntry {
    const NAME: &'static str = "entries.add";
    type Params = Adding;
    type Output = bool;
    type Error = ReadError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        adding: &Adding,
    ) -> Result<bool, ReadError> {
        let window = ctx.get(adding.window).await?;
        let is_in_time = Window::admits(&window, ctx.plan());
        let state = if is_in_time { EntryState::Pending } else { EntryState::Refused };
        let entry = Entry {
            id: ctx.new_sharded_id(shard_of(window.id)),
            window: window.id,
            amount: adding.amount,
            batch: None,
            state,
        };
        ctx.plan().add(New::new(entry, ()));
        Ok(is_in_time)
    }
}

/// Why a test lets a chunk fail.
#[derive(Debug, thiserror::Error)]
pub enum BatchFailure {
    #[error("{0}")]
    Said(String),
    #[error(transparent)]
    Read(#[from] ReadError),
}

type Hook =
    dyn Fn(&Window, i64) -> BoxFuture<'static, Result<Option<ChunkOutcome>, String>> + Send + Sync;

/// Batches entries, after what a test does before. If the test has an outcome, it is that.
#[derive(Clone)]
pub struct BatchEntries {
    pub before: Arc<Hook>,
    /// Whether a full chunk is followed by another one, even if that has no rows.
    pub never_knows_the_last: bool,
    /// Whether a chunk without rows stages a batch.
    pub has_empty_batches: bool,
    /// If there are several shards: entries are read on that of the window alone.
    pub databases: Option<Databases>,
}

impl Default for BatchEntries {
    fn default() -> Self {
        let before = Arc::new(|_: &Window, _| async { Ok(None) }.boxed());
        Self { before, never_knows_the_last: false, has_empty_batches: false, databases: None }
    }
}

impl Action for BatchEntries {
    const NAME: &'static str = "entries.batch";
    type Params = WindowChunk;
    type Output = ChunkOutcome;
    type Error = BatchFailure;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        chunk: &WindowChunk,
    ) -> Result<ChunkOutcome, BatchFailure> {
        let window = ctx.get(chunk.window).await?;
        let said = (self.before)(&window, chunk.number).await.map_err(BatchFailure::Said)?;
        if let Some(outcome) = said {
            return Ok(outcome);
        }
        let pending = Entry::WINDOW.eq(chunk.window) & Entry::STATE.eq(EntryState::Pending);
        let page = PageRequest::first(CHUNK + 1).filter(pending);
        let mut repository = ctx.repository::<Entry>();
        if let Some(databases) = &self.databases {
            repository = repository.on_shard(&databases.shard(shard_of(window.id)).unwrap());
        }
        let mut entries = repository.page(page).await?.rows;
        let is_last =
            if self.never_knows_the_last { entries.len() < CHUNK } else { entries.len() <= CHUNK };
        entries.truncate(CHUNK);
        if entries.is_empty() && !self.has_empty_batches {
            return Ok(ChunkOutcome::last(0));
        }
        let rows = entries.len();
        let amount = entries.iter().map(|entry| entry.amount).sum();
        let (number, count) = (chunk.number, rows as i64);
        let batch = Batch {
            id: ctx.new_sharded_id(shard_of(window.id)),
            window: window.id,
            number,
            entries: count,
            amount,
            state: BatchState::Complete,
        };
        for entry in entries {
            let batched = entry.apply(|entry| {
                (entry.state, entry.batch) = (EntryState::Batched, Some(batch.id));
            });
            ctx.plan().update(batched);
        }
        ctx.plan().add(New::new(batch, BatchEvent::Batched { number, entries: count }));
        Ok(if is_last { ChunkOutcome::last(rows as u64) } else { ChunkOutcome::more(rows as u64) })
    }
}

/// Refuses what is late.
pub struct RefuseEntries;

impl Action for RefuseEntries {
    const NAME: &'static str = "entries.refuse";
    type Params = OfWindow;
    type Output = ();
    type Error = ReadError;

    async fn perform(&self, ctx: &mut ActionContext<'_>, of: &OfWindow) -> Result<(), ReadError> {
        let late = Entry::WINDOW.eq(of.window) & Entry::STATE.eq(EntryState::Pending);
        for entry in ctx.repository::<Entry>().find_where(late).await? {
            ctx.plan().update(entry.apply(|entry| entry.state = EntryState::Refused));
        }
        Ok(())
    }
}

/// The windows of entries.
#[derive(Clone, Default)]
pub struct Entries {
    pub batch: BatchEntries,
    pub late_check: Option<Duration>,
    /// The windows that are to be open.
    pub upcoming: Vec<NewWindow>,
    /// How often nobody can say which windows these are.
    pub unknown: Arc<AtomicUsize>,
}

impl WindowSeries for Entries {
    const NAME: &'static str = SERIES;
    type Batch = BatchEntries;
    type Refuse = RefuseEntries;

    fn batch(&self) -> &BatchEntries {
        &self.batch
    }

    fn refuse(&self) -> &RefuseEntries {
        &RefuseEntries
    }

    async fn upcoming(
        &self,
        _: &Databases,
        _: DateTime<Utc>,
    ) -> Result<Vec<NewWindow>, Box<dyn std::error::Error + Send + Sync>> {
        let fails = |left: usize| left.checked_sub(1);
        if self.unknown.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            return Err("the calendar does not answer".into());
        }
        Ok(self.upcoming.clone())
    }

    fn late_check(&self) -> Option<Duration> {
        self.late_check
    }
}

pub fn migrations() -> Migrations {
    [Sql::Sqlite, Sql::Postgres, Sql::MySql, Sql::MariaDb]
        .into_iter()
        .fold(Migrations::none(), |migrations, of| {
            migrations.script_for(of, 1, "entries", tables(of))
        })
}

fn tables(of: Sql) -> String {
    let [id, text, number, time] = match of {
        Sql::Sqlite => ["TEXT", "TEXT", "INTEGER", "TEXT"],
        Sql::Postgres => ["uuid", "varchar(24)", "bigint", "timestamp"],
        Sql::MariaDb => ["uuid", "varchar(24)", "bigint", "datetime(6)"],
        _ => [
            "char(36) CHARACTER SET ascii COLLATE ascii_bin",
            "varchar(24)",
            "bigint",
            "datetime(6)",
        ],
    };
    format!(
        "CREATE TABLE entries (id {id} NOT NULL PRIMARY KEY, window_id {id} NOT NULL, \
         amount {number} NOT NULL, batch_id {id}, state {text} NOT NULL, version {number} NOT NULL); \
         CREATE INDEX entries_window ON entries (window_id, state); \
         CREATE TABLE batches (id {id} NOT NULL PRIMARY KEY, window_id {id} NOT NULL, \
         number {number} NOT NULL, entries {number} NOT NULL, amount {number} NOT NULL, \
         state {text} NOT NULL, version {number} NOT NULL, created_date {time} NOT NULL, \
         updated_date {time} NOT NULL);"
    )
}
