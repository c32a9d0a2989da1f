//! Effects: they run after a commit, and only then.

use std::future::IntoFuture;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::action::{ActionPlan, Budget, ErrorKind, Outcome, RetryPolicy};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::TestDatabase;
use support::things::{quiet, thing};
use tokio::sync::oneshot;

use crate::actions::{Nothing, Refused, stage};

on_every_database! {
    effects_do_not_run_when_the_action_or_the_commit_fails,
    effects_run_once_when_a_retry_commits,
    an_effect_completes_when_its_caller_is_dropped,
}

on_every_database! {
    on_sqlite_only:
    effects_run_in_order_after_the_commit,
    effects_run_for_an_action_that_changes_nothing,
    a_commit_that_ends_with_its_runtime_is_unknown,
    a_failing_effect_is_counted_and_changes_nothing,
}

type Log = Arc<Mutex<Vec<String>>>;

fn note(plan: &mut ActionPlan, log: &Log, text: impl Into<String>) {
    let (log, text) = (log.clone(), text.into());
    plan.after_commit(text.clone(), move |_| async move {
        log.lock().unwrap().push(text);
        Ok::<_, io::Error>(())
    });
}

async fn effects_run_in_order_after_the_commit(db: &TestDatabase) {
    let log = Log::default();
    let things = db.things();
    let action = stage(|ctx| {
        let stored = ctx.plan().add(quiet(thing("a")));
        let (log_of_first, things, id) = (log.clone(), things.clone(), stored.id);
        ctx.plan().after_commit("first", move |committed| async move {
            let found = things.exists(id).await.unwrap();
            log_of_first.lock().unwrap().push(format!("{} {found}", committed.action));
            Ok::<_, io::Error>(())
        });
        note(ctx.plan(), &log, "second");
        note(ctx.plan(), &log, "third");
        Ok(())
    });
    let executor = db.executor().await;
    let call = executor.execute(&action, Nothing {});
    let first = format!("{} true", call.action_id());
    call.await.unwrap();
    assert_eq!(*log.lock().unwrap(), [first.as_str(), "second", "third"]);
    assert_eq!(executor.effect_failures(), 0);
}

async fn effects_run_for_an_action_that_changes_nothing(db: &TestDatabase) {
    let log = Log::default();
    let action = stage(|ctx| {
        note(ctx.plan(), &log, "ran");
        Ok(())
    });
    db.executor().await.execute(&action, Nothing {}).await.unwrap();
    assert_eq!(*log.lock().unwrap(), ["ran"]);
    assert_eq!(db.count_events().await, 0);
}

async fn effects_do_not_run_when_the_action_or_the_commit_fails(db: &TestDatabase) {
    db.things().add(quiet(thing("taken"))).await.unwrap();
    let log = Log::default();
    let executor = db.executor().await;
    for refuses in [true, false] {
        let action = stage(|ctx| {
            note(ctx.plan(), &log, "ran");
            ctx.plan().add(quiet(thing("taken")));
            if refuses { Err(Refused) } else { Ok(()) }
        });
        executor.execute(&action, Nothing {}).await.unwrap_err();
    }
    // An effect would have run before the call returned.
    assert_eq!(*log.lock().unwrap(), [""; 0]);
}

async fn effects_run_once_when_a_retry_commits(db: &TestDatabase) {
    let old = db.things().add(quiet(thing("a"))).await.unwrap();
    let new = db.things().update(old.clone().apply(|_| ())).await.unwrap();
    let log = Log::default();
    let action = stage(|ctx| {
        let attempt = ctx.attempt();
        note(ctx.plan(), &log, attempt.to_string());
        let read = if attempt == 1 { &old } else { &new };
        Ok(ctx.plan().update(read.clone().apply(|_| ())))
    });
    let policy = RetryPolicy::none().with(ErrorKind::Stale, Budget::new(1).base(Duration::ZERO));
    db.executor().await.execute(&action, Nothing {}).retry(policy).await.unwrap();
    assert_eq!(*log.lock().unwrap(), ["2"]);
}

async fn a_failing_effect_is_counted_and_changes_nothing(db: &TestDatabase) {
    let log = Log::default();
    let action = stage(|ctx| {
        ctx.plan().after_commit("fails", |_| async { Err(io::Error::other("the mail is down")) });
        ctx.plan().after_commit("panics", |committed| async move {
            assert_eq!(committed.folded, usize::MAX, "this effect panics");
            Ok::<_, io::Error>(())
        });
        ctx.plan().after_commit("cannot say why", |_| async { Err::<(), _>(NoText) });
        note(ctx.plan(), &log, "after them");
        Ok(ctx.plan().add(quiet(thing("a"))))
    });
    let executor = db.executor().await;
    let stored = executor.execute(&action, Nothing {}).await.unwrap();
    assert_eq!(executor.effect_failures(), 3);
    assert_eq!(*log.lock().unwrap(), ["after them"]);
    assert_eq!(db.things().get(stored.id).await.unwrap(), stored);
}

/// An error whose text panics.
#[derive(Debug)]
struct NoText;

impl std::fmt::Display for NoText {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("this error has no text")
    }
}

impl std::error::Error for NoText {}

async fn an_effect_completes_when_its_caller_is_dropped(db: &TestDatabase) {
    let (has_begun, begun) = oneshot::channel();
    let (go_on, may_go_on) = oneshot::channel::<()>();
    let (has_ended, ended) = oneshot::channel();
    let channels = Mutex::new(Some((has_begun, may_go_on, has_ended)));
    let action = stage(|ctx| {
        let (has_begun, may_go_on, has_ended) = channels.lock().unwrap().take().unwrap();
        ctx.plan().after_commit("waits", move |committed| async move {
            has_begun.send(()).unwrap();
            may_go_on.await?;
            has_ended.send(committed.action).unwrap();
            Ok::<_, oneshot::error::RecvError>(())
        });
        Ok(ctx.plan().add(quiet(thing("a"))))
    });
    let executor = db.executor().await;
    let call = executor.execute(&action, Nothing {});
    let id = call.action_id();
    let mut running = call.into_future();
    tokio::select! {
        answer = &mut running => panic!("returned before its effect completed: {answer:?}"),
        answer = begun => answer.unwrap(),
    }
    drop(running);
    go_on.send(()).unwrap();
    assert_eq!(ended.await.unwrap(), id);
    assert_eq!(executor.outcome(id).await.unwrap(), Outcome::Committed);
}

async fn a_commit_that_ends_with_its_runtime_is_unknown(db: &TestDatabase) {
    let executor = db.executor().await;
    let action = stage(|ctx| {
        note(ctx.plan(), &Log::default(), "effect");
        Ok(())
    });
    let mut call = executor.execute(&action, Nothing {}).into_future();
    // Nothing runs in it: it is only there for the task of the commit to be spawned.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let entered = runtime.enter();
    assert!((&mut call).now_or_never().is_none());
    drop(entered);
    runtime.shutdown_background();
    match call.await {
        Err(ExecuteError::CommitUnknown { why, .. }) => {
            assert_eq!(why, "the task that committed it was stopped");
        }
        other => panic!("{other:?}"),
    }
}
