//! A run whose actions write to another shard than that of its row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan::action::ErrorKind;
use ekbatan::config::{EkbatanConfig, ShardMemberConfig};
use ekbatan::domain::{New, ShardIdentifier};
use ekbatan::jobs::{JobOperations, RunContext, RunState};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use support::{Dialect, ScratchDatabase, until};
use tokio::sync::mpsc;

use crate::scene::{Failure, REPORT, Report, rarely};

#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "stamps")]
struct Stamp {
    id: ShardedId<Stamp>,
    state: StampState,
}

#[derive(Debug, Clone, Copy, PartialEq, State)]
enum StampState {
    Put,
}

/// Adds a stamp on a shard.
struct PutStamp;

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct On {
    member: u32,
}

impl Action for PutStamp {
    const NAME: &'static str = "stamps.put";
    type Params = On;
    type Output = ();
    type Error = std::convert::Infallible;

    async fn perform(&self, ctx: &mut ActionContext<'_>, on: &On) -> Result<(), Self::Error> {
        let id = ctx.new_sharded_id(shard(on.member));
        ctx.plan().add(New::new(Stamp { id, state: StampState::Put }, ()));
        Ok(())
    }
}

/// Checks a stamp, and has another one put later on its shard.
struct PutAnother;

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct After {
    stamp: ShardedId<Stamp>,
}

impl Action for PutAnother {
    const NAME: &'static str = "stamps.put_another";
    type Params = After;
    type Output = ();
    type Error = ReadError;

    async fn perform(&self, ctx: &mut ActionContext<'_>, after: &After) -> Result<(), ReadError> {
        let stamp = ctx.get(after.stamp).await?;
        ctx.plan().expect(&stamp);
        ctx.plan().enqueue(&PutStamp, OTHER).unique("another");
        Ok(())
    }
}

fn shard(member: u32) -> ShardIdentifier {
    ShardIdentifier::new(0, member).expect("the test names a shard")
}

const HOME: On = On { member: 0 };
const OTHER: On = On { member: 1 };

/// Executes all kinds of actions, the last one after somebody else has taken the run.
async fn put_stamps(
    ctx: &mut RunContext<'_>,
    home: &ScratchDatabase,
) -> Result<[Option<ErrorKind>; 3], Failure> {
    ctx.execute(&PutStamp, HOME).await?;
    ctx.execute(&PutStamp, OTHER).await?;
    ctx.step("again", &PutStamp, OTHER).await?;
    ctx.step("again", &PutStamp, OTHER).await?;
    let elsewhere = ctx.finish(&PutStamp, OTHER).await.err().map(|error| error.kind());
    let runs = home.eventlog("job_runs");
    home.execute(&format!("UPDATE {runs} SET version = version + 1")).await;
    let lost = ctx.execute(&PutStamp, OTHER).await.err().map(|error| error.kind());
    let lost_step = ctx.step("late", &PutStamp, OTHER).await.err().map(|error| error.kind());
    Ok([elsewhere, lost, lost_step])
}

/// Stamps on SQLite, the default shard, and on PostgreSQL.
async fn two_shards() -> (ActionExecutor, ScratchDatabase, ScratchDatabase) {
    let home = ScratchDatabase::create(Dialect::Sqlite).await;
    let other = ScratchDatabase::create(Dialect::Postgres).await;
    let config = EkbatanConfig::from(home.config());
    let config = config.shard(shard(1), ShardMemberConfig::new(0, other.config()));
    let databases = Databases::connect(&config).await.unwrap();
    let stamps = |uuid: &str| {
        format!(
            "CREATE TABLE stamps (id {uuid} PRIMARY KEY, state varchar(16) NOT NULL, version bigint NOT NULL)"
        )
    };
    let sqlite =
        stamps("TEXT NOT NULL").replace("varchar(16)", "TEXT").replace("bigint", "INTEGER");
    let migrations = Migrations::none()
        .script_for(ekbatan::db::Dialect::Sqlite, 1, "stamps", sqlite)
        .script_for(ekbatan::db::Dialect::Postgres, 1, "stamps", stamps("uuid"));
    databases.migrate(&migrations).await.unwrap();
    let builder = ActionExecutor::builder(&databases, "com.example.stamps").model::<Stamp>();
    (builder.build().await.unwrap(), home, other)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_checked_before_its_actions_commit_on_another_shard() {
    let (executor, home, other) = two_shards().await;
    let (sender, mut answers) = mpsc::unbounded_channel();
    let url = home.url.clone();
    let begun = Arc::new(AtomicBool::new(false));
    let job = Report::new(move |ctx| {
        let (sender, url, begun) = (sender.clone(), url.clone(), begun.clone());
        async move {
            // The run that was lost is begun again.
            if begun.swap(true, Ordering::SeqCst) {
                return Ok(());
            }
            let answer = put_stamps(ctx, &ScratchDatabase::at(&url)).await;
            sender.send(answer).map_err(|_| "the test has ended")?;
            Ok(())
        }
        .boxed()
    });
    let node = crate::scene::node(&executor).job(rarely(), job).start().await.unwrap();
    JobOperations::new(executor.databases()).run_now(REPORT, "alice", "a test").await.unwrap();
    let answer = answers.recv().await.unwrap().unwrap();
    let lost = Some(ErrorKind::RunLost);
    assert_eq!(answer, [Some(ErrorKind::CrossShard), lost, lost]);
    assert_eq!((home.count("stamps").await, other.count("stamps").await), (1, 2));
    node.drain(Duration::ZERO).await;
}

/// Runs the job now, until the run is done.
async fn run_once(executor: &ActionExecutor, job: Report) {
    let node = crate::scene::node(executor).job(rarely(), job).start().await.unwrap();
    let operations = JobOperations::new(executor.databases());
    let run = operations.run_now(REPORT, "alice", "a test").await.unwrap();
    until("the run is done", async || {
        operations.run(run).await.unwrap().is_some_and(|run| run.state == RunState::Done)
    })
    .await;
    node.drain(Duration::ZERO).await;
}

/// A job enqueues a call by an action that writes nothing and checks a row of another shard.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_run_is_on_the_shard_of_the_row_that_its_action_checks() {
    let (executor, home, other) = two_shards().await;
    executor.execute(&PutStamp, OTHER).await.unwrap();
    let stamps = executor.databases().repository::<Stamp>().find_all().await.unwrap();
    let stamp = stamps[0].id;
    let job = Report::new(move |ctx| {
        async move { Ok(ctx.execute(&PutAnother, After { stamp }).await?) }.boxed()
    });
    run_once(&executor, job).await;
    let waiting = async |of: &ScratchDatabase| of.count(&of.eventlog("deliveries")).await;
    assert_eq!((waiting(&home).await, waiting(&other).await), (0, 1));
}

/// Keys of an application have their homes on all shards.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_steps_are_on_the_shard_of_the_run() {
    const STEPS: usize = 12;
    let (executor, home, other) = two_shards().await;
    let job = Report::new(move |ctx| {
        async move {
            for step in 0..STEPS {
                ctx.step(&step.to_string(), &PutStamp, OTHER).await?;
            }
            Ok::<_, Failure>(())
        }
        .boxed()
    });
    run_once(&executor, job).await;
    let keys = async |of: &ScratchDatabase| of.count(&of.eventlog("idempotency_keys")).await;
    assert_eq!((keys(&home).await, keys(&other).await), (STEPS, 0));
}
