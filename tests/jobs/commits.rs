//! What a run commits: nothing once another node has taken it over.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use ekbatan::action::ErrorKind;
use ekbatan::events::Retention;
use ekbatan::jobs::{JobOptions, RunContext, RunState};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, mpsc};

use crate::scene::{Failure, REPORT, Report, Scene, WriteLine, Writing, node, rarely};

on_every_database! {
    a_run_that_was_taken_over_commits_nothing,
    a_run_that_was_taken_over_is_refused_also_if_it_changes_nothing,
    several_actions_commit_under_one_run,
    a_step_commits_once_however_often_the_run_is_begun,
    the_last_action_ends_the_run_with_its_commit,
    a_job_that_fails_after_its_last_action_is_done,
}

/// Lets a run stand still after it has begun, as a process does that is stopped.
struct Frozen {
    stopped: Arc<Notify>,
    go_on: Arc<Notify>,
    answers: mpsc::UnboundedReceiver<Option<ErrorKind>>,
}

type Attempt = for<'a> fn(&'a mut RunContext<'_>) -> BoxFuture<'a, Option<ErrorKind>>;

/// A job that stands still, then executes an action and says how that went.
fn frozen(attempt: Attempt) -> (Report, Frozen) {
    let (stopped, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (sender, answers) = mpsc::unbounded_channel();
    let frozen = Frozen { stopped: stopped.clone(), go_on: go_on.clone(), answers };
    let job = Report::new(move |ctx| {
        let (stopped, go_on, sender) = (stopped.clone(), go_on.clone(), sender.clone());
        async move {
            stopped.notify_one();
            go_on.notified().await;
            let answer = attempt(ctx).await;
            sender.send(answer).map_err(|_| "the test has ended")?;
            Ok(())
        }
        .boxed()
    });
    (job, frozen)
}

/// Lets another node take over the run of a node that stands still, and end it by `job`. Then the
/// former node goes on. Returns how its action went.
async fn take_over(scene: &Scene, attempt: Attempt, job: Report) -> Option<ErrorKind> {
    let (frozen_job, mut frozen) = frozen(attempt);
    // It does not notice by itself that it is dead.
    let day = Duration::from_secs(24 * 60 * 60);
    let stopped_node = scene.node().lease(day).job(rarely(), frozen_job).start().await.unwrap();
    scene.operations().run_now(REPORT, "alice", "a test").await.unwrap();
    frozen.stopped.notified().await;
    scene.declare_nodes_dead().await;
    let other = scene.open_again(TimeDelta::zero()).await;
    let other = node(&other).job(rarely(), job.clone()).start().await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    assert_eq!(job.seen()[0].attempt, 2);
    frozen.go_on.notify_one();
    let answer = frozen.answers.recv().await.unwrap();
    stopped_node.drain(Duration::MAX).await;
    other.drain(Duration::MAX).await;
    let run = scene.history(REPORT).await.remove(0);
    assert_eq!((run.state, run.attempts), (RunState::Done, 2), "the later attempt decides");
    answer
}

fn kind<T>(answer: Result<T, ExecuteError<std::convert::Infallible>>) -> Option<ErrorKind> {
    answer.err().map(|error| error.kind())
}

async fn a_run_that_was_taken_over_commits_nothing(scene: &Scene) {
    let attempts: [Attempt; 3] = [
        |ctx| async move { kind(ctx.execute(&WriteLine, Writing::of(ctx)).await) }.boxed(),
        |ctx| {
            async move { kind(ctx.step("of the former", &WriteLine, Writing::of(ctx)).await) }
                .boxed()
        },
        |ctx| {
            async move {
                let writing = Writing::of(ctx);
                kind(ctx.finish(&WriteLine, writing).await)
            }
            .boxed()
        },
    ];
    for (n, attempt) in attempts.into_iter().enumerate() {
        scene.scratch.execute(&format!("DELETE FROM {}", scene.scratch.eventlog("job_runs"))).await;
        let answer = take_over(scene, attempt, Report::writing()).await;
        assert_eq!(answer, Some(ErrorKind::RunLost));
        assert_eq!(scene.lines().await.len(), n + 1, "only what the later node wrote");
    }
}

/// Changes nothing.
struct Look;

impl Action for Look {
    const NAME: &'static str = "journal.look";
    type Params = Writing;
    type Output = ();
    type Error = std::convert::Infallible;

    async fn perform(&self, _: &mut ActionContext<'_>, _: &Writing) -> Result<(), Self::Error> {
        Ok(())
    }
}

async fn a_run_that_was_taken_over_is_refused_also_if_it_changes_nothing(scene: &Scene) {
    let attempt: Attempt =
        |ctx| async move { kind(ctx.execute(&Look, Writing::of(ctx)).await) }.boxed();
    let looks =
        Report::new(|ctx| async move { Ok(ctx.execute(&Look, Writing::of(ctx)).await?) }.boxed());
    let answer = take_over(scene, attempt, looks).await;
    assert_eq!(answer, Some(ErrorKind::RunLost));
}

async fn several_actions_commit_under_one_run(scene: &Scene) {
    let (answers, mut answered) = mpsc::unbounded_channel();
    let job = Report::new(move |ctx| {
        let answers = answers.clone();
        async move {
            let run: &RunContext<'_> = ctx;
            let write = || run.execute(&WriteLine, Writing::of(run));
            futures_util::future::try_join3(write(), write(), write()).await?;
            let writing = Writing::of(ctx);
            ctx.finish(&WriteLine, writing.clone()).await?;
            let late = [
                ctx.execute(&WriteLine, writing.clone()).await,
                ctx.step("late", &WriteLine, writing.clone()).await,
                ctx.finish(&WriteLine, writing).await,
            ];
            for answer in late {
                let why = answer.expect_err("it follows the last action").to_string();
                answers.send(why)?;
            }
            Ok(())
        }
        .boxed()
    });
    let node = scene.node().job(rarely(), job).start().await.unwrap();
    scene.operations().run_now(REPORT, "alice", "a test").await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    for _ in 0..3 {
        let why = answered.recv().await.unwrap();
        assert!(why.starts_with("`report` has called `finish` already"), "{why}");
    }
    node.drain(Duration::MAX).await;
    assert_eq!(scene.lines().await.len(), 4);
    assert_eq!(scene.in_state(REPORT, RunState::Done).await.len(), 1);
}

async fn a_step_commits_once_however_often_the_run_is_begun(scene: &Scene) {
    let begun = Arc::new(Notify::new());
    let job = {
        let begun = begun.clone();
        Report::new(move |ctx| {
            let begun = begun.clone();
            async move {
                ctx.step("first", &WriteLine, Writing::of(ctx)).await?;
                ctx.step("second", &WriteLine, Writing::of(ctx)).await?;
                if ctx.attempt() == 1 {
                    begun.notify_one();
                    std::future::pending::<()>().await;
                }
                Ok::<_, Failure>(())
            }
            .boxed()
        })
    };
    let dying = scene.node().job(rarely(), job.clone()).start().await.unwrap();
    scene.operations().run_now(REPORT, "alice", "a test").await.unwrap();
    begun.notified().await;
    drop(dying);
    // As if the job had been paused for a month before it is begun again.
    let keys = scene.scratch.eventlog("idempotency_keys");
    let long_ago = scene.literal(scene.now().await - TimeDelta::days(30));
    scene.scratch.execute(&format!("UPDATE {keys} SET created_date = {long_ago}")).await;
    let retention = Retention::new().keys(Retention::LEAST);
    assert_eq!(retention.run(&scene.databases).await.unwrap().keys, 0);
    scene.declare_nodes_dead().await;
    let _other = scene.node().job(rarely(), job.clone()).start().await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    let seen = job.seen();
    assert_eq!((seen.len(), seen[0].id, seen[1].attempt), (2, seen[1].id, 2));
    assert_eq!(scene.lines().await.len(), 2);
    assert_eq!(retention.run(&scene.databases).await.unwrap().keys, 2, "the run has ended");
    assert_eq!(scene.scratch.count(&keys).await, 0);
}

async fn the_last_action_ends_the_run_with_its_commit(scene: &Scene) {
    let written = Arc::new(Notify::new());
    let job = {
        let written = written.clone();
        Report::new(move |ctx| {
            let written = written.clone();
            async move {
                let writing = Writing::of(ctx);
                ctx.finish(&WriteLine, writing).await?;
                written.notify_one();
                std::future::pending().await
            }
            .boxed()
        })
    };
    let dying = scene.node().job(rarely(), job.clone()).start().await.unwrap();
    scene.operations().run_now(REPORT, "alice", "a test").await.unwrap();
    written.notified().await;
    assert_eq!(scene.in_state(REPORT, RunState::Done).await.len(), 1, "before the job returns");
    drop(dying);
    scene.declare_nodes_dead().await;
    let other = scene.node().job(rarely(), job.clone()).start().await.unwrap();
    // It finds nothing to take over.
    scene.operations().run_now(REPORT, "alice", "a test").await.unwrap();
    written.notified().await;
    other.drain(Duration::ZERO).await;
    let attempts: Vec<_> = job.seen().iter().map(|seen| seen.attempt).collect();
    assert_eq!((attempts, scene.lines().await.len()), (vec![1, 1], 2));
}

async fn a_job_that_fails_after_its_last_action_is_done(scene: &Scene) {
    let job = Report::new(|ctx| {
        async move {
            let writing = Writing::of(ctx);
            ctx.finish(&WriteLine, writing).await?;
            Err("after the commit".into())
        }
        .boxed()
    });
    let options = JobOptions::default();
    let node = scene.node().job_with(rarely(), job, options).start().await.unwrap();
    scene.operations().run_now(REPORT, "alice", "a test").await.unwrap();
    scene.until_in_state(REPORT, RunState::Done, 1).await;
    node.drain(Duration::MAX).await;
    let run = scene.history(REPORT).await.remove(0);
    assert_eq!((run.state, run.error), (RunState::Done, None));
}
