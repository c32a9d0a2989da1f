//! Idempotency keys: a repeated call returns the stored output.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ekbatan::action::{ErrorKind, KeyScope, PlanError};
use ekbatan::prelude::*;
use support::TestDatabase;
use support::things::{THINGS, Thing, as_stored, quiet, thing};
use tokio::sync::Barrier;

use crate::actions::{Nothing, Number, Refused, Stage, stage};

on_every_database! {
    a_repeated_call_returns_the_stored_output_without_running,
    a_repeated_call_is_recognized_by_every_process,
    a_key_is_refused_for_other_parameters,
    a_key_is_refused_for_another_action,
    a_key_belongs_to_a_namespace,
    a_key_belongs_to_a_principal,
    the_scope_of_keys_may_be_the_namespace,
    a_nested_call_with_the_same_key_is_refused,
    concurrent_calls_in_one_process_commit_once,
    concurrent_calls_in_two_processes_commit_once,
    a_refusing_call_returns_the_output_of_the_call_that_committed_first,
    a_failed_call_leaves_its_key_unused,
    a_call_that_changes_nothing_stores_its_output,
    a_key_has_1_to_255_bytes,
}

on_every_database! {
    on_sqlite_only:
    an_output_that_could_not_be_read_back_is_refused,
}

type AddNumbered = fn(&mut ActionContext<'_>, &Number) -> Result<Stored<Thing>, Refused>;

/// Adds a thing whose label is the number.
fn add_numbered(ctx: &mut ActionContext<'_>, params: &Number) -> Result<Stored<Thing>, Refused> {
    let value = Thing { id: ctx.new_id(), ..thing(&params.number.to_string()) };
    Ok(ctx.plan().add(quiet(value)))
}

fn adding() -> Stage<AddNumbered, Stored<Thing>, Number> {
    Stage::with_params(add_numbered as AddNumbered)
}

async fn assert_one_commit(db: &TestDatabase) {
    assert_eq!((db.count("things").await, db.count_events().await), (1, 1));
    assert_eq!(db.count(&db.eventlog("idempotency_keys")).await, 1);
}

async fn a_repeated_call_returns_the_stored_output_without_running(db: &TestDatabase) {
    let (executor, action) = (db.executor().await, adding());
    let call = || executor.execute(&action, Number { number: 1 }).idempotency_key("k");
    let first = call().await.unwrap();
    assert_eq!(call().await.unwrap(), first);
    assert_eq!(as_stored(thing("1")).settings, first.settings);
    assert_eq!(action.runs(), 1);
    assert_one_commit(db).await;
}

async fn a_repeated_call_is_recognized_by_every_process(db: &TestDatabase) {
    let (first, second) = (adding(), adding());
    let elsewhere = THINGS.executor_on(&db.open_again().await).await;
    let params = Number { number: 1 };
    let stored = db.executor().await.execute(&first, params.clone()).idempotency_key("k").await;
    let repeated = elsewhere.execute(&second, params).idempotency_key("k").await;
    assert_eq!(repeated.unwrap(), stored.unwrap());
    assert_eq!(second.runs(), 0);
    assert_one_commit(db).await;
}

async fn a_key_is_refused_for_other_parameters(db: &TestDatabase) {
    let (executor, action) = (db.executor().await, adding());
    let call = |number| executor.execute(&action, Number { number }).idempotency_key("k");
    call(1).await.unwrap();
    match call(2).await.unwrap_err() {
        error @ ExecuteError::KeyReused { .. } => assert_eq!(
            error.to_string(),
            "the idempotency key `k` was used with other parameters of `conformance.stage`; use a new key for a new call"
        ),
        other => panic!("{other:?}"),
    }
    assert_eq!(action.runs(), 1);
    assert_one_commit(db).await;
}

struct Other;

impl Action for Other {
    const NAME: &'static str = "conformance.other";
    type Params = Number;
    type Output = ();
    type Error = Refused;

    async fn perform(&self, _: &mut ActionContext<'_>, _: &Number) -> Result<(), Refused> {
        panic!("the action must not run")
    }
}

async fn a_key_is_refused_for_another_action(db: &TestDatabase) {
    let (executor, action) = (db.executor().await, adding());
    executor.execute(&action, Number { number: 1 }).idempotency_key("k").await.unwrap();
    match executor.execute(&Other, Number { number: 1 }).idempotency_key("k").await.unwrap_err() {
        error @ ExecuteError::KeyReused { .. } => assert_eq!(
            error.to_string(),
            "the idempotency key `k` was used for another action, `conformance.stage`; use a new key for a new call"
        ),
        other => panic!("{other:?}"),
    }
}

async fn a_key_belongs_to_a_namespace(db: &TestDatabase) {
    let action = adding();
    for (number, namespace) in [(1, "a"), (2, "b")] {
        let executor = ActionExecutor::builder(&db.databases, namespace).build().await.unwrap();
        executor.execute(&action, Number { number }).idempotency_key("k").await.unwrap();
    }
    assert_eq!((action.runs(), db.count("things").await), (2, 2));
}

async fn a_key_belongs_to_a_principal(db: &TestDatabase) {
    let (executor, action) = (db.executor().await, adding());
    let call = |number, principal: Option<&str>| {
        let call = executor.execute(&action, Number { number }).idempotency_key("k");
        match principal {
            Some(principal) => call.principal(principal),
            None => call,
        }
    };
    let mut outputs = Vec::new();
    // The label of a thing is unique, so the numbers differ.
    for (number, principal) in [(1, Some("alice")), (2, Some("bob")), (3, None)] {
        let output = call(number, principal).await.unwrap();
        assert_eq!(call(number, principal).await.unwrap(), output);
        outputs.push(output.id);
    }
    outputs.dedup();
    assert_eq!((outputs.len(), action.runs()), (3, 3));
    let error = call(1, Some("bob")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KeyReused);
}

async fn the_scope_of_keys_may_be_the_namespace(db: &TestDatabase) {
    let builder = ActionExecutor::builder(&db.databases, "a").key_scope(KeyScope::Namespace);
    let (executor, action) = (builder.build().await.unwrap(), adding());
    let call = || executor.execute(&action, Number { number: 1 }).idempotency_key("k");
    let output = call().principal("alice").await.unwrap();
    assert_eq!(call().principal("bob").await.unwrap(), output);
    assert_eq!(call().await.unwrap(), output);
    assert_eq!(action.runs(), 1);
}

/// Calls itself with the same key.
struct CallItself {
    executor: ActionExecutor,
}

impl Action for CallItself {
    const NAME: &'static str = "conformance.call_itself";
    type Params = Number;
    type Output = String;
    type Error = Refused;

    async fn perform(&self, _: &mut ActionContext<'_>, params: &Number) -> Result<String, Refused> {
        let call = Box::pin(
            self.executor.execute(self, params.clone()).idempotency_key("k").into_future(),
        );
        match call.await.map_err(|error| (error.kind(), error.to_string())) {
            Err((ErrorKind::Nested, message)) => Ok(message),
            _ => Err(Refused),
        }
    }
}

async fn a_nested_call_with_the_same_key_is_refused(db: &TestDatabase) {
    let action = CallItself { executor: db.executor().await };
    let call = action.executor.execute(&action, Number { number: 1 }).idempotency_key("k");
    let answer = tokio::time::timeout(Duration::from_secs(60), call.into_future()).await;
    let message = answer.expect("the call waits for itself").unwrap();
    assert!(message.contains("inside `perform`"), "{message}");
}

async fn concurrent_calls_in_one_process_commit_once(db: &TestDatabase) {
    let (executor, action) = (db.executor().await, adding());
    let call = || executor.execute(&action, Number { number: 1 }).idempotency_key("k");
    let (one, other) = tokio::join!(call().into_future(), call().into_future());
    assert_eq!(one.unwrap(), other.unwrap());
    assert_eq!(action.runs(), 1);
    assert_one_commit(db).await;
}

/// Adds a thing after all callers of the barrier have started.
struct MeetAndAdd {
    barrier: Barrier,
    runs: AtomicU32,
}

impl Action for MeetAndAdd {
    const NAME: &'static str = "conformance.meet_and_add";
    type Params = Number;
    type Output = Stored<Thing>;
    type Error = Refused;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Number,
    ) -> Result<Stored<Thing>, Refused> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        self.barrier.wait().await;
        Ok(ctx.plan().add(quiet(thing(&params.number.to_string()))))
    }
}

/// The second commit violates both the key and the unique label; the server reports either.
async fn concurrent_calls_in_two_processes_commit_once(db: &TestDatabase) {
    let here = db.executor().await;
    let there = THINGS.executor_on(&db.open_again().await).await;
    let action = MeetAndAdd { barrier: Barrier::new(2), runs: AtomicU32::new(0) };
    let call = |executor: &ActionExecutor| {
        let (executor, action) = (executor.clone(), &action);
        async move { executor.execute(action, Number { number: 1 }).idempotency_key("k").await }
    };
    let (one, other) = tokio::join!(call(&here), call(&there));
    assert_eq!(one.unwrap(), other.unwrap());
    assert_eq!(action.runs.load(Ordering::SeqCst), 2, "both calls ran");
    assert_one_commit(db).await;
}

/// Adds a thing if there is none, and refuses otherwise.
struct AddTheOnlyOne {
    overtaken_by: Option<ActionExecutor>,
}

impl Action for AddTheOnlyOne {
    const NAME: &'static str = "conformance.add_the_only_one";
    type Params = Number;
    type Output = Stored<Thing>;
    type Error = Refused;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Number,
    ) -> Result<Stored<Thing>, Refused> {
        if let Some(quicker) = self.overtaken_by.clone() {
            let params = params.clone();
            let quicker = tokio::spawn(async move {
                let action = AddTheOnlyOne { overtaken_by: None };
                quicker.execute(&action, params).idempotency_key("k").await.map(drop)
            });
            quicker.await.expect("it does not panic").map_err(|_| Refused)?;
        }
        if ctx.repository::<Thing>().count().await.map_err(|_| Refused)? > 0 {
            return Err(Refused);
        }
        Ok(ctx.plan().add(quiet(thing("the only one"))))
    }
}

async fn a_refusing_call_returns_the_output_of_the_call_that_committed_first(db: &TestDatabase) {
    let elsewhere = THINGS.executor_on(&db.open_again().await).await;
    let action = AddTheOnlyOne { overtaken_by: Some(elsewhere) };
    let executor = db.executor().await;
    let answer = executor.execute(&action, Number { number: 1 }).idempotency_key("k").await;
    assert_eq!(answer.unwrap(), db.things().find_all().await.unwrap()[0]);
    assert_one_commit(db).await;
}

async fn a_failed_call_leaves_its_key_unused(db: &TestDatabase) {
    let executor = db.executor().await;
    let refusing =
        Stage::with_params(|_: &mut ActionContext<'_>, _: &Number| Err::<(), _>(Refused));
    let error = executor.execute(&refusing, Number { number: 2 }).idempotency_key("k").await;
    assert!(matches!(error, Err(ExecuteError::Domain(Refused))));
    let taken = db.things().add(quiet(thing("2"))).await.unwrap();
    let action = adding();
    let error = executor.execute(&action, Number { number: 2 }).idempotency_key("k").await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unique);
    db.things().update(taken.apply(|thing| thing.label = "free".to_owned())).await.unwrap();
    executor.execute(&action, Number { number: 2 }).idempotency_key("k").await.unwrap();
    assert_eq!(db.count_events().await, 1);
}

async fn a_call_that_changes_nothing_stores_its_output(db: &TestDatabase) {
    let executor = db.executor().await;
    let action = Stage::with_params(|_: &mut ActionContext<'_>, params: &Number| Ok(params.number));
    let call = || executor.execute(&action, Number { number: 42 }).idempotency_key("k");
    assert_eq!((call().await.unwrap(), call().await.unwrap(), action.runs()), (42, 42, 1));
}

async fn a_key_has_1_to_255_bytes(db: &TestDatabase) {
    let (executor, action) = (db.executor().await, adding());
    let longest = "ü".repeat(127) + "k";
    for (key, bytes) in [(String::new(), 0), ("ü".repeat(128), 256)] {
        let call = executor.execute(&action, Number { number: 1 }).idempotency_key(key.clone());
        match call.await.unwrap_err() {
            ExecuteError::Plan(PlanError::Key(named, length)) => {
                assert_eq!((named, length), (key, bytes));
            }
            other => panic!("{other:?}"),
        }
    }
    let error = executor.execute(&action, Number { number: 1 }).idempotency_key("a\0b").await;
    assert_eq!(
        error.unwrap_err().to_string(),
        r#"the idempotency key "a\0b" holds the character 0, which not every database stores; remove it"#
    );
    assert_eq!(action.runs(), 0);
    let call = || executor.execute(&action, Number { number: 1 }).idempotency_key(longest.clone());
    assert_eq!(call().await.unwrap(), call().await.unwrap());
    assert_eq!(action.runs(), 1);
}

/// JSON has no NaN: a repeated call could not answer it.
async fn an_output_that_could_not_be_read_back_is_refused(db: &TestDatabase) {
    let executor = db.executor().await;
    let action = stage(|ctx| {
        ctx.plan().add(quiet(thing("a")));
        Ok(f64::NAN)
    });
    match executor.execute(&action, Nothing {}).idempotency_key("k").await.unwrap_err() {
        ExecuteError::Plan(PlanError::Output(error)) => {
            assert!(error.to_string().contains("could not be read back"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(db.count("things").await, 0);
    assert!(executor.execute(&action, Nothing {}).await.unwrap().is_nan());
}
