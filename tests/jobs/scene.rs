//! A journal in which jobs write, and jobs that a test scripts.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use chrono::{TimeDelta, Timelike};
use ekbatan::action::BuildError;
use ekbatan::clock::Clock;
use ekbatan::db::Dialect as Sql;
use ekbatan::domain::New;
use ekbatan::jobs::{
    Job, JobNode, JobNodeBuilder, JobOperations, RunContext, RunRecord, RunState, Schedule,
};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use support::{Dialect, ScratchDatabase, until};

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The name of the job of most tests.
pub const REPORT: &str = "report";

/// One line of the journal: the effect of one run.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "journal")]
pub struct Line {
    pub id: Id<Line>,
    pub run: String,
    pub slot: String,
    pub state: LineState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
pub enum LineState {
    Written,
}

/// Writes a line.
pub struct WriteLine;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Writing {
    pub run: String,
    pub slot: String,
}

impl Writing {
    pub fn of(ctx: &RunContext<'_>) -> Self {
        Self { run: ctx.id().to_string(), slot: ctx.slot().to_rfc3339() }
    }
}

impl Action for WriteLine {
    const NAME: &'static str = "journal.write_line";
    type Params = Writing;
    type Output = ();
    type Error = std::convert::Infallible;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        writing: &Writing,
    ) -> Result<(), Self::Error> {
        let Writing { run, slot } = writing.clone();
        let line = Line { id: ctx.new_id(), run, slot, state: LineState::Written };
        ctx.plan().add(New::new(line, ()));
        Ok(())
    }
}

type Work =
    dyn for<'a> Fn(&'a mut RunContext<'_>) -> BoxFuture<'a, Result<(), Failure>> + Send + Sync;

/// A run that a job has seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    pub id: Uuid,
    pub slot: DateTime<Utc>,
    pub attempt: u32,
}

/// A job that does what a test says, and notes each run before.
#[derive(Clone)]
pub struct Scripted<const N: u8> {
    work: Arc<Work>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// The job of most tests.
pub type Report = Scripted<0>;
/// Another job.
pub type Sweep = Scripted<1>;
/// Further ones.
pub type Archive = Scripted<2>;
pub type Digest = Scripted<3>;

impl<const N: u8> Scripted<N> {
    pub fn new<W>(work: W) -> Self
    where
        W: for<'a> Fn(&'a mut RunContext<'_>) -> BoxFuture<'a, Result<(), Failure>>
            + Send
            + Sync
            + 'static,
    {
        Self { work: Arc::new(work), seen: Arc::default() }
    }

    /// Writes a line for each run, by the action that ends it.
    pub fn writing() -> Self {
        Self::new(|ctx| write(ctx))
    }

    /// Does nothing.
    pub fn idle() -> Self {
        Self::new(|_| async { Ok(()) }.boxed())
    }

    /// What it has seen, also after it was given to a node.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

/// Writes a line by the action that ends the run.
pub fn write<'a>(ctx: &'a mut RunContext<'_>) -> BoxFuture<'a, Result<(), Failure>> {
    async move {
        let writing = Writing::of(ctx);
        Ok(ctx.finish(&WriteLine, writing).await?)
    }
    .boxed()
}

impl<const N: u8> Job for Scripted<N> {
    const NAME: &'static str = match N {
        0 => REPORT,
        1 => "sweep",
        2 => "archive",
        _ => "digest",
    };
    type Error = Failure;

    async fn run(&self, ctx: &mut RunContext<'_>) -> Result<(), Failure> {
        let seen = Seen { id: ctx.id(), slot: ctx.slot(), attempt: ctx.attempt() };
        self.seen.lock().unwrap().push(seen);
        (self.work)(ctx).await
    }
}

/// A clock that is wrong by a constant.
struct WrongClock(TimeDelta);

impl Clock for WrongClock {
    fn now(&self) -> DateTime<Utc> {
        Utc::now() + self.0
    }
}

/// A database with a journal.
pub struct Scene {
    pub databases: Databases,
    pub executor: ActionExecutor,
    pub scratch: ScratchDatabase,
}

impl Scene {
    pub async fn start(dialect: Dialect) -> Self {
        let scratch = ScratchDatabase::create(dialect).await;
        let databases = Databases::connect(&scratch.config().into()).await.unwrap();
        databases.migrate(&migrations()).await.unwrap();
        let executor = executor(&databases).await;
        Self { databases, executor, scratch }
    }

    /// The same database, as another process opens it whose clock is wrong.
    pub async fn open_again(&self, wrong_by: TimeDelta) -> ActionExecutor {
        let databases = Databases::connect(&self.scratch.config().into()).await.unwrap();
        executor(&databases.with_clock(Arc::new(WrongClock(wrong_by)))).await
    }

    pub fn node(&self) -> JobNodeBuilder {
        node(&self.executor)
    }

    pub fn operations(&self) -> JobOperations {
        JobOperations::new(&self.databases)
    }

    /// The time of the database.
    pub async fn now(&self) -> DateTime<Utc> {
        self.databases.default_shard().database_time().await.unwrap()
    }

    /// Stores a job whose slots never come by themselves, and no node runs it.
    pub async fn store<J: Job>(&self, job: J, options: ekbatan::jobs::JobOptions) {
        let node = self.node().job_with(rarely(), job, options).start().await.unwrap();
        node.drain(Duration::MAX).await;
    }

    /// Sets the first slot that is not decided on, as if no node had run since.
    pub async fn set_next_slot(&self, job: &str, slot: DateTime<Utc>) {
        let jobs = self.scratch.eventlog("jobs");
        let slot = self.literal(slot);
        let update = format!(
            "UPDATE {jobs} SET next_slot = {slot}, version = version + 1 WHERE name = '{job}'"
        );
        self.scratch.execute(&update).await;
    }

    /// A date, in SQL.
    pub fn literal(&self, date: DateTime<Utc>) -> String {
        match self.scratch.dialect {
            Dialect::Sqlite => date.format("'%Y-%m-%dT%H:%M:%S%.6fZ'").to_string(),
            _ => date.format("'%Y-%m-%d %H:%M:%S%.6f'").to_string(),
        }
    }

    /// The last runs of a job in the order of their slots.
    pub async fn history(&self, job: &str) -> Vec<RunRecord> {
        let mut history = self.operations().history(job, 100_000).await.unwrap();
        history.sort_by_key(|run| (run.slot, run.id));
        history
    }

    /// The runs of a job in one state.
    pub async fn in_state(&self, job: &str, state: RunState) -> Vec<RunRecord> {
        let mut history = self.history(job).await;
        history.retain(|run| run.state == state);
        history
    }

    /// Waits until a job has this many runs in a state.
    pub async fn until_in_state(&self, job: &str, state: RunState, count: usize) {
        until(&format!("{count} runs of {job} are {state:?}"), async || {
            self.in_state(job, state).await.len() >= count
        })
        .await;
    }

    /// The lines of the journal.
    pub async fn lines(&self) -> Vec<Line> {
        let lines = self.databases.repository::<Line>().find_all().await.unwrap();
        lines.into_iter().map(|line| line.into_value()).collect()
    }

    /// Deletes the rows of all nodes, as others do once their leases are over.
    pub async fn declare_nodes_dead(&self) {
        let nodes = self.scratch.eventlog("job_nodes");
        self.scratch.execute(&format!("DELETE FROM {nodes}")).await;
    }
}

pub async fn executor(databases: &Databases) -> ActionExecutor {
    try_executor(databases).await.unwrap()
}

pub async fn try_executor(databases: &Databases) -> Result<ActionExecutor, BuildError> {
    let builder = ActionExecutor::builder(databases, "com.example.jobs");
    builder.model::<Line>().build().await
}

/// A node that finds soon what others do.
pub fn node(executor: &ActionExecutor) -> JobNodeBuilder {
    JobNode::builder(executor).poll(Duration::from_millis(20))
}

/// A schedule whose next slot no test lives to see.
pub fn rarely() -> Schedule {
    Schedule::cron("0 0 0 1 1 * 4000", "UTC").unwrap()
}

/// Every hour, half an hour from now: no slot comes by itself during a test.
pub fn hourly() -> Schedule {
    static MINUTE: LazyLock<u32> = LazyLock::new(|| (Utc::now().minute() + 30) % 60);
    Schedule::cron(&format!("{} * * * *", *MINUTE), "UTC").unwrap()
}

pub fn migrations() -> Migrations {
    let journal = |uuid: &str| {
        format!(
            "CREATE TABLE journal (id {uuid} PRIMARY KEY, run varchar(64) NOT NULL, \
             slot varchar(64) NOT NULL, state varchar(16) NOT NULL, version bigint NOT NULL)"
        )
    };
    let ascii = "char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL";
    let sqlite = journal("TEXT NOT NULL")
        .replace("bigint", "INTEGER")
        .replace("varchar(64)", "TEXT")
        .replace("varchar(16)", "TEXT");
    Migrations::none()
        .script_for(Sql::Sqlite, 1, "journal", sqlite)
        .script_for(Sql::Postgres, 1, "journal", journal("uuid"))
        .script_for(Sql::MySql, 1, "journal", journal(ascii))
        .script_for(Sql::MariaDb, 1, "journal", journal("uuid"))
}
