//! A database with windows of entries, the nodes that close them, and what must hold afterwards.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use ekbatan::clock::Clock;
use ekbatan::config::{DataSourceConfig, EkbatanConfig, ShardMemberConfig};
use ekbatan::domain::ShardIdentifier;
use ekbatan::events::{DeliveryOperations, Node};
use ekbatan::jobs::windows::{NewWindow, Window, WindowState, Windows};
use ekbatan::jobs::{JobNode, Schedule};
use ekbatan::prelude::*;
use support::{Dialect, ScratchDatabase, until};

use crate::entries::{AddEntry, Adding, Batch, Entries, Entry, EntryState, SERIES, migrations};

/// A clock that is wrong by a constant.
struct WrongClock(TimeDelta);

impl Clock for WrongClock {
    fn now(&self) -> DateTime<Utc> {
        Utc::now() + self.0
    }
}

pub struct Scene {
    pub databases: Databases,
    pub executor: ActionExecutor,
    pub scratch: ScratchDatabase,
}

/// The nodes of one process.
pub struct Nodes {
    pub node: Node,
    pub jobs: JobNode,
}

impl Nodes {
    pub async fn drain(self) {
        self.jobs.drain(Duration::MAX).await;
        self.node.drain(Duration::MAX).await;
    }
}

impl Scene {
    pub async fn start(dialect: Dialect) -> Self {
        Self::with_shards(dialect, []).await
    }

    /// With more shards than the default one, whose database is `scratch`.
    pub async fn with_shards<const N: usize>(
        dialect: Dialect,
        others: [(ShardIdentifier, DataSourceConfig); N],
    ) -> Self {
        let scratch = ScratchDatabase::create(dialect).await;
        let config = EkbatanConfig::from(scratch.config());
        let config = others.into_iter().fold(config, |config, (shard, other)| {
            config.shard(shard, ShardMemberConfig::new(shard.member(), other))
        });
        let databases = Databases::connect(&config).await.unwrap();
        databases.migrate(&migrations()).await.unwrap();
        let executor = executor(&databases).await;
        Self { databases, executor, scratch }
    }

    /// The same database, as another process opens it whose clock is wrong.
    pub async fn open_again(&self, wrong_by: TimeDelta) -> ActionExecutor {
        let databases = Databases::connect(&self.scratch.config().into()).await.unwrap();
        executor(&databases.with_clock(Arc::new(WrongClock(wrong_by)))).await
    }

    /// The time of the database.
    pub async fn now(&self) -> DateTime<Utc> {
        self.databases.default_shard().database_time().await.unwrap()
    }

    /// Opens a window that closes after this time. With `Duration::ZERO`, the window is open
    /// although its cutoff has come.
    pub async fn open(&self, participant: &str, after: Duration) -> ShardedId<Window> {
        self.open_on(ShardIdentifier::DEFAULT, participant, after).await
    }

    pub async fn open_on(
        &self,
        shard: ShardIdentifier,
        participant: &str,
        after: Duration,
    ) -> ShardedId<Window> {
        let is_due = after.is_zero();
        let after = if is_due { Duration::from_secs(3_600) } else { after };
        let cutoff = self.now().await + TimeDelta::from_std(after).unwrap();
        let window = NewWindow::new(participant, "17h00", cutoff).on(shard);
        let id = Windows::new(Entries::default()).open(&self.executor, window).await.unwrap().id;
        if is_due {
            self.cut_off(id).await;
        }
        id
    }

    /// Lets the cutoff of a window come now.
    pub async fn cut_off(&self, window: ShardedId<Window>) {
        let windows = self.databases.repository::<Window>();
        let now = self.now().await;
        let due = windows.get(window).await.unwrap().apply(|window| window.cutoff = now);
        windows.update(due).await.unwrap();
    }

    pub async fn window(&self, window: ShardedId<Window>) -> Window {
        self.databases.repository::<Window>().get(window).await.unwrap().into_value()
    }

    pub async fn until_state(&self, window: ShardedId<Window>, state: WindowState) {
        until(&format!("the window is {state:?}"), async || {
            self.window(window).await.state == state
        })
        .await;
    }

    /// Adds entries, and answers how many of them were in time.
    pub async fn add(&self, window: ShardedId<Window>, count: usize) -> usize {
        let mut in_time = 0;
        for _ in 0..count {
            in_time += usize::from(add(&self.executor, window).await);
        }
        in_time
    }

    pub async fn entries(&self, window: ShardedId<Window>, state: EntryState) -> usize {
        let of_state = Entry::WINDOW.eq(window) & Entry::STATE.eq(state);
        let count = self.databases.repository::<Entry>().count_where(of_state).await.unwrap();
        usize::try_from(count).unwrap()
    }

    pub async fn batches(&self, window: ShardedId<Window>) -> Vec<Batch> {
        let batches = self.databases.repository::<Batch>();
        let mut batches: Vec<Batch> = batches
            .find_where(Batch::WINDOW.eq(window))
            .await
            .unwrap()
            .into_iter()
            .map(Stored::into_value)
            .collect();
        batches.sort_by_key(|batch| batch.number);
        batches
    }

    /// Asserts that a window is closed, and that what is batched is complete and says what it is.
    pub async fn assert_whole(&self, window: ShardedId<Window>, in_time: usize, late: usize) {
        let row = self.window(window).await;
        assert_eq!(row.state, WindowState::Closed);
        let closing = row.closing_date.unwrap();
        assert!(closing >= row.cutoff && row.closed_date.unwrap() >= closing, "{row:?}");
        let states = [EntryState::Pending, EntryState::Batched, EntryState::Refused];
        let mut counts = Vec::new();
        for state in states {
            counts.push(self.entries(window, state).await);
        }
        assert_eq!(counts, [0, in_time, late], "pending, batched, refused");
        let batches = self.batches(window).await;
        let numbers: Vec<i64> = batches.iter().map(|batch| batch.number).collect();
        assert_eq!(numbers, (0..batches.len() as i64).collect::<Vec<_>>(), "each chunk once");
        let rows: i64 = batches.iter().map(|batch| batch.entries).sum();
        assert_eq!((row.chunks, row.batched), (batches.len() as i64, rows));
        assert_eq!(rows, in_time as i64);
        let mut of_batch: HashMap<ShardedId<Batch>, (i64, i64)> = HashMap::new();
        for entry in self.databases.repository::<Entry>().find_all().await.unwrap() {
            if let Some(batch) = entry.batch {
                let sum = of_batch.entry(batch).or_default();
                *sum = (sum.0 + 1, sum.1 + entry.amount);
            }
        }
        for batch in batches {
            assert_eq!(of_batch.get(&batch.id), Some(&(batch.entries, batch.amount)));
        }
    }

    pub fn operations(&self) -> DeliveryOperations {
        DeliveryOperations::new(&self.databases, &self.databases.default_shard())
    }

    /// The names of the events of windows, in the order of the versions.
    pub async fn events(&self, window: ShardedId<Window>) -> Vec<String> {
        let events = self.scratch.eventlog("events");
        let tail = format!(
            "FROM {events} WHERE model_id = '{window}' AND event_type IS NOT NULL ORDER BY model_version"
        );
        let rows = self.scratch.select(&["event_type"], &tail).await;
        rows.into_iter().filter_map(|mut row| row.remove(0)).collect()
    }
}

pub async fn executor(databases: &Databases) -> ActionExecutor {
    let builder = ActionExecutor::builder(databases, "com.example.entries");
    let builder = builder.model::<Window>().model::<Entry>().model::<Batch>();
    builder.build().await.unwrap()
}

/// Adds an entry. Answers whether it was in time.
pub async fn add(executor: &ActionExecutor, window: ShardedId<Window>) -> bool {
    let adding = Adding { window, amount: fastrand::i64(1..1_000) };
    executor.execute(&AddEntry, adding).await.unwrap()
}

/// Nodes that find soon what is due, and that others miss soon.
pub async fn nodes(executor: &ActionExecutor, series: Entries) -> Nodes {
    Nodes { node: handlers(executor, series.clone()).await, jobs: jobs(executor, series).await }
}

const LEASE: Duration = Duration::from_secs(1);

pub async fn handlers(executor: &ActionExecutor, series: Entries) -> Node {
    let windows = Windows::new(series).handler_options(|options| {
        options.retry(Duration::from_millis(20), Duration::from_millis(200))
    });
    let node = Node::builder(executor).poll(Duration::from_millis(2), Duration::from_millis(50));
    windows.add_handlers(node.lease(LEASE)).start().await.unwrap()
}

pub async fn jobs(executor: &ActionExecutor, series: Entries) -> JobNode {
    let node = JobNode::builder(executor).poll(Duration::from_millis(20)).lease(LEASE);
    let schedule = Schedule::every(Duration::from_millis(50)).unwrap();
    Windows::new(series).add_job(node, schedule).start().await.unwrap()
}

/// A schedule that is never due: what runs is what a test asks for.
pub fn never() -> Schedule {
    Schedule::cron("0 0 29 2 *", "UTC").unwrap()
}

/// The name under which the job and the handler are stored.
pub const NAME: &str = SERIES;
