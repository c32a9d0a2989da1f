//! Calls that name neither a key nor a strategy: the rows on which they meet become their keys.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ekbatan::action::{Budget, ErrorKind, Handling, HotKey, RetryPolicy};
use ekbatan::prelude::*;
use ekbatan::repository::Condition;
use futures_util::future::join_all;
use futures_util::{FutureExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use support::things::{Thing, ThingEvent, quiet, thing};
use support::{Recorder, TestDatabase};

use crate::acts::{
    Act, Call, Gate, Nothing, Refused, a_thing, act, event_versions, poll_once, touch,
    touch_after_reading, touch_at,
};

on_every_database! {
    calls_on_one_row_all_commit_and_none_is_left_behind,
    a_call_that_met_another_waits_in_the_queue_of_the_row_without_a_pause,
    a_call_that_reads_a_hot_row_begins_again_when_it_is_its_turn,
    a_row_that_is_found_by_a_condition_is_waited_for_too,
    a_stream_waits_for_no_hot_row,
    a_run_that_is_given_up_at_a_hot_row_is_no_retry,
    an_action_that_only_reads_a_hot_row_does_not_wait,
    a_read_in_a_task_of_its_own_goes_on_when_its_attempt_is_given_up,
    a_dropped_call_leaves_the_queue_of_its_row,
    calls_that_choose_to_be_optimistic_make_no_row_hot,
}

on_every_database! {
    on_sqlite_only:
    a_row_that_cools_without_a_call_is_logged,
}

type Execution<'a> = ekbatan::action::Execution<'a, Act<Stored<Thing>>>;

fn call<'a>(executor: &'a ActionExecutor, act: &'a Act<Stored<Thing>>) -> Execution<'a> {
    executor.execute(act, Nothing {})
}

/// One call that another executor overtakes between its read and its commit.
async fn conflict(db: &TestDatabase, executor: &ActionExecutor, id: Id<Thing>) {
    let (slow, has_read, may_go_on) = touch_after_reading(id);
    let outsider = async {
        has_read.pass().await;
        call(&db.executor().await, &touch(id)).await.unwrap();
        may_go_on.open();
    };
    let (slowly, ()) = tokio::join!(call(executor, &slow).into_future(), outsider);
    slowly.unwrap();
}

/// Lets calls conflict until the row is hot. Conflicts heat a row only when they are close
/// together, which they may not be on a slow machine.
async fn heat(db: &TestDatabase, executor: &ActionExecutor, id: Id<Thing>) -> HotKey {
    loop {
        if let Some(hot) = executor.hot_keys().into_iter().next() {
            return hot;
        }
        conflict(db, executor, id).await;
    }
}

/// How often a row may cool before a call reads it.
const ROUNDS: usize = 5;

/// As many actions as [`holding`] may need.
fn touches_at(gate: &Gate, id: Id<Thing>) -> Vec<Act<Stored<Thing>>> {
    (0..ROUNDS).map(|_| touch_at(gate, id)).collect()
}

/// Returns the call of one of the actions when it holds the hot row: it gives up its first run at
/// the read, and holds the row in its second one. On a busy machine the row may cool before the
/// read, so that the next action begins.
async fn holding<'a>(
    db: &TestDatabase,
    executor: &'a ActionExecutor,
    id: Id<Thing>,
    acts: &'a [Act<Stored<Thing>>],
) -> (&'a Act<Stored<Thing>>, Call<'a, Stored<Thing>>) {
    for act in acts {
        heat(db, executor, id).await;
        let mut holding = call(executor, act).into_future();
        while act.runs() < 2 && !executor.hot_keys().is_empty() {
            assert!(poll_once(&mut holding).await.is_pending());
            tokio::task::yield_now().await;
        }
        if act.runs() == 2 {
            return (act, holding);
        }
    }
    panic!("the row cooled before each of the calls had read it");
}

async fn small(db: &TestDatabase, id: Id<Thing>) -> i32 {
    db.things().get(id).await.unwrap().small
}

async fn calls_on_one_row_all_commit_and_none_is_left_behind(db: &TestDatabase) {
    const TASKS: i32 = 16;
    const CALLS: i32 = 20;
    let (executor, id) = (db.executor().await, a_thing(db).await.id);
    let before = small(db, id).await;
    let tasks = (0..TASKS).map(|_| async {
        let act = touch(id);
        for _ in 0..CALLS {
            // Three retries are the default; 16 optimistic tasks would use them up.
            call(&executor, &act).await.unwrap();
        }
    });
    join_all(tasks).await;
    assert_eq!(small(db, id).await - before, TASKS * CALLS);
    let versions = event_versions(db, id).await;
    assert!(versions.windows(2).all(|pair| pair[1] == pair[0] + 1), "{versions:?}");
}

async fn a_call_that_met_another_waits_in_the_queue_of_the_row_without_a_pause(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let long = Budget::new(1).base(Duration::from_secs(100_000)).cap(Duration::MAX);
    let builder = ActionExecutor::builder(&db.databases, "tests").model::<Thing>();
    let policy = RetryPolicy::none().with(ErrorKind::Stale, long);
    let executor = builder.retry(policy).deadline(Duration::from_secs(60));
    let executor = executor.build().await.unwrap();
    // One conflict does not make a row hot, yet the call that met it waits there.
    conflict(db, &executor, id).await;
}

async fn a_call_that_reads_a_hot_row_begins_again_when_it_is_its_turn(db: &TestDatabase) {
    let (executor, id) = (db.executor().await, a_thing(db).await.id);
    let hot = heat(db, &executor, id).await;
    assert_eq!(hot.handling, Handling::Coalesced);
    assert!(hot.key.id().contains(&id.to_string()), "{}", hot.key);
    let gate = Gate::closed();
    let (firsts, second) = (touches_at(&gate, id), touch(id));
    let (first, first_call) = holding(db, &executor, id, &firsts).await;
    let mut second_call = call(&executor, &second).into_future();
    assert!(poll_once(&mut second_call).await.is_pending());
    assert_eq!(second.runs(), 1, "it gave up its first run, and waits");
    gate.open();
    let (first_done, second_done) = tokio::join!(first_call, second_call);
    let (first_done, second_done) = (first_done.unwrap(), second_done.unwrap());
    assert_eq!((first.runs(), second.runs()), (2, 2));
    assert_eq!(second_done.version(), first_done.version() + 1);
    assert_eq!(small(db, id).await, second_done.small);
}

async fn a_row_that_is_found_by_a_condition_is_waited_for_too(db: &TestDatabase) {
    let (executor, id) = (db.executor().await, a_thing(db).await.id);
    let gate = Gate::closed();
    let (firsts, second) = (touches_at(&gate, id), touch_found());
    let (_, first_call) = holding(db, &executor, id, &firsts).await;
    let mut second_call = call(&executor, &second).into_future();
    let opened = async {
        while second.runs() < 1 {
            tokio::task::yield_now().await;
        }
        gate.open();
    };
    let second_call = async { (&mut second_call).await };
    let (first_done, second_done, ()) = tokio::join!(first_call, second_call, opened);
    assert_eq!(second_done.unwrap().version(), first_done.unwrap().version() + 1);
    // It never came to a commit that was refused.
    assert_eq!(second.runs(), 2);
}

/// Like [`touch`], but finds the only row by a condition.
fn touch_found() -> Act<Stored<Thing>> {
    act(move |ctx| {
        async move {
            let found =
                ctx.repository::<Thing>().find_one(Thing::LABEL.eq("the thing")).await.unwrap();
            Ok(ctx.plan().update(found.unwrap().apply(|thing| {
                thing.small += 1;
                ThingEvent::Touched
            })))
        }
        .boxed()
    })
}

/// A stream reads many rows: its call is not about one of them.
async fn a_stream_waits_for_no_hot_row(db: &TestDatabase) {
    let (executor, id) = (db.executor().await, a_thing(db).await.id);
    let gate = Gate::closed();
    let holds = touches_at(&gate, id);
    let (_, mut holding) = holding(db, &executor, id, &holds).await;
    let streams = act(|ctx| {
        async move {
            let things = ctx.repository::<Thing>();
            Ok(things.stream(Condition::all()).try_collect::<Vec<_>>().await.unwrap().len())
        }
        .boxed()
    });
    tokio::select! {
        _ = &mut holding => panic!("the gate is closed"),
        found = executor.execute(&streams, Nothing {}) => assert_eq!(found.unwrap(), 1),
    }
    assert_eq!(streams.runs(), 1);
    gate.open();
    holding.await.unwrap();
}

/// The first run is given up at the read, and the second one is refused.
async fn a_run_that_is_given_up_at_a_hot_row_is_no_retry(db: &TestDatabase) {
    let (executor, id) = (db.executor().await, a_thing(db).await.id);
    for _ in 0..ROUNDS {
        heat(db, &executor, id).await;
        let refused = act(move |ctx| {
            async move {
                let thing = ctx.get(id).await?;
                if ctx.attempt() == 2 {
                    return Err(Refused("for now".to_owned()));
                }
                Ok(ctx.plan().update(thing.apply(|thing| thing.small += 1)))
            }
            .boxed()
        });
        let (recorder, _guard) = Recorder::start();
        let policy = RetryPolicy::default().with(ErrorKind::Domain, Budget::new(1));
        call(&executor, &refused).retry(policy).retry_if(|_| true).await.unwrap();
        // On a busy machine the row may cool before the call reads it.
        if refused.runs() == 3 {
            let span = recorder.one("ekbatan.action.execute");
            return assert_eq!(span.field("ekbatan.action.retry.count"), Some("1"));
        }
    }
    panic!("the row cooled before each of the calls had read it");
}

/// Reads a thing, and changes nothing. Counts its runs.
struct Look(AtomicU32);

#[derive(Debug, Serialize, Deserialize)]
struct LookAt {
    thing: Id<Thing>,
}

impl Action for Look {
    const NAME: &'static str = "contention.look";
    type Params = LookAt;
    type Output = i32;
    type Error = Refused;

    async fn perform(&self, ctx: &mut ActionContext<'_>, at: &LookAt) -> Result<i32, Refused> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(ctx.get(at.thing).await.unwrap().small)
    }
}

async fn an_action_that_only_reads_a_hot_row_does_not_wait(db: &TestDatabase) {
    let (executor, id) = (db.executor().await, a_thing(db).await.id);
    let gate = Gate::closed();
    let holds = touches_at(&gate, id);
    let (_, mut holding) = holding(db, &executor, id, &holds).await;
    let before = small(db, id).await;
    let look = Look(AtomicU32::new(0));
    tokio::select! {
        _ = &mut holding => panic!("the gate is closed"),
        looked = executor.execute(&look, LookAt { thing: id }) => assert_eq!(looked.unwrap(), before),
    }
    assert_eq!(look.0.into_inner(), 1);
    gate.open();
    holding.await.unwrap();
}

/// Like [`touch`], but reads in a task of its own. Counts the reads that ended.
fn touch_from_a_task(finished: &Arc<AtomicU32>, id: Id<Thing>) -> Act<Stored<Thing>> {
    let finished = finished.clone();
    act(move |ctx| {
        let (things, finished) = (ctx.repository::<Thing>(), finished.clone());
        async move {
            let reading = tokio::spawn(async move {
                let thing = things.get(id).await.unwrap();
                finished.fetch_add(1, Ordering::SeqCst);
                thing
            });
            Ok(ctx.plan().update(reading.await.unwrap().apply(|thing| {
                thing.small += 1;
                ThingEvent::Touched
            })))
        }
        .boxed()
    })
}

async fn a_read_in_a_task_of_its_own_goes_on_when_its_attempt_is_given_up(db: &TestDatabase) {
    let (executor, id) = (db.executor().await, a_thing(db).await.id);
    let (mut finished, mut runs) = (Arc::new(AtomicU32::new(0)), 0);
    for _ in 0..ROUNDS {
        heat(db, &executor, id).await;
        finished = Arc::default();
        let spawning = touch_from_a_task(&finished, id);
        call(&executor, &spawning).await.unwrap();
        runs = spawning.runs();
        // On a busy machine the row may cool before the call reads it.
        if !executor.hot_keys().is_empty() {
            break;
        }
    }
    assert_eq!(runs, 2);
    let both = async {
        while finished.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), both).await.expect("both reads end");
}

async fn a_dropped_call_leaves_the_queue_of_its_row(db: &TestDatabase) {
    let (executor, id) = (db.executor().await, a_thing(db).await.id);
    let gate = Gate::closed();
    let (holds, waits) = (touches_at(&gate, id), [touch(id), touch(id), touch(id)]);
    let (_, holding) = holding(db, &executor, id, &holds).await;
    let before = small(db, id).await;
    let mut calls = vec![holding];
    for act in &waits {
        let mut waiting = call(&executor, act).into_future();
        assert!(poll_once(&mut waiting).await.is_pending());
        calls.push(waiting);
    }
    drop(calls.remove(2));
    gate.open();
    for done in join_all(calls).await {
        done.unwrap();
    }
    assert_eq!(small(db, id).await, before + 3);
}

async fn calls_that_choose_to_be_optimistic_make_no_row_hot(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let builder = ActionExecutor::builder(&db.databases, "tests").model::<Thing>();
    let executor = builder.contention(Contention::Optimistic).build().await.unwrap();
    for _ in 0..5 {
        conflict(db, &executor, id).await;
    }
    assert_eq!(executor.hot_keys(), []);
}

/// A call on another row notices it.
async fn a_row_that_cools_without_a_call_is_logged(db: &TestDatabase) {
    let (recorder, _guard) = Recorder::start();
    let (executor, id) = (db.executor().await, a_thing(db).await.id);
    let other = db.things().add(quiet(thing("other"))).await.unwrap().id;
    let hot = heat(db, &executor, id).await;
    while !executor.hot_keys().is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    call(&executor, &touch(other)).await.unwrap();
    let changes = recorder.of("contention");
    let last = changes.last().expect("it was hot");
    let (key, to) = (last.field("key"), last.field("to"));
    assert_eq!((key, to), (Some(hot.key.id()), Some("Optimistic")), "{changes:#?}");
}
