//! Calls and writes inside `perform` are refused, because they would commit whatever becomes of the
//! action around them. Effects may call and write.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ekbatan::action::{Contention, ErrorKind};
use ekbatan::db::TransactionOptions;
use ekbatan::lock::{LockKey, LockProvider, ProcessBackend};
use ekbatan::prelude::*;
use support::TestDatabase;
use support::things::{Thing, quiet, thing};

use crate::actions::{Nothing, Refused};

on_every_database! {
    a_call_inside_perform_is_refused_and_writes_nothing,
    a_call_inside_perform_with_the_same_idempotency_key_does_not_wait_for_itself,
    an_effect_may_repeat_the_idempotency_key_of_its_action,
    a_call_after_a_refused_one_is_not_nested,
}

on_every_database! { on_sqlite_only: writes_beside_the_plan_are_refused_inside_perform }

/// Calls [`AddOne`] inside its `perform`, and refuses.
struct CallsInside {
    executor: ActionExecutor,
    contention: Contention,
    key: Option<&'static str>,
}

/// Adds a thing.
#[derive(Default)]
struct AddOne(AtomicU32);

impl Action for AddOne {
    const NAME: &'static str = "nested.inner";
    type Params = Nothing;
    type Output = ();
    type Error = Refused;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Nothing) -> Result<(), Refused> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let id = ctx.new_id();
        ctx.plan().add(quiet(Thing { id, ..thing("inner") }));
        Ok(())
    }
}

impl Action for CallsInside {
    const NAME: &'static str = "nested.outer";
    type Params = Nothing;
    type Output = ();
    type Error = Refused;

    async fn perform(&self, _: &mut ActionContext<'_>, _: &Nothing) -> Result<(), Refused> {
        let inner = AddOne::default();
        let mut call = self.executor.execute(&inner, Nothing {});
        if let Some(key) = self.key {
            call = call.idempotency_key(key);
        }
        let error = call.await.expect_err("a call inside `perform` is refused");
        assert_eq!(error.kind(), ErrorKind::Nested);
        assert_eq!(
            error.to_string(),
            "`nested.inner` was called inside `perform` of `nested.outer`, and would commit even \
             if `nested.outer` does not; nothing was written. Stage its changes in the plan of \
             `nested.outer`, call it in an effect (`ctx.plan().after_commit(..)`), or let the \
             caller of `nested.outer` call it"
        );
        assert_eq!(inner.0.load(Ordering::SeqCst), 0);
        Err(Refused)
    }
}

async fn a_call_inside_perform_is_refused_and_writes_nothing(db: &TestDatabase) {
    let locks = LockProvider::new(ProcessBackend::new(), "test");
    let builder = ActionExecutor::builder(&db.databases, "tests").model::<Thing>().leases(locks);
    let executor = builder.build().await.unwrap();
    let strategies = [Contention::Optimistic, Contention::pessimistic(), Contention::coalesced()];
    for contention in strategies {
        let outer = CallsInside { executor: executor.clone(), contention, key: None };
        let call = executor.execute(&outer, Nothing {}).contention(outer.contention.clone());
        let refused = call.contention_keys([LockKey::named("outer")]).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Domain);
    }
    assert_eq!(db.count("things").await, 0);
}

async fn a_call_inside_perform_with_the_same_idempotency_key_does_not_wait_for_itself(
    db: &TestDatabase,
) {
    let executor = db.executor().await;
    let (contention, key) = (Contention::Optimistic, Some("k"));
    let outer = CallsInside { executor: executor.clone(), contention, key };
    let call = executor.execute(&outer, Nothing {}).idempotency_key("k").into_future();
    let refused = tokio::time::timeout(Duration::from_secs(20), call).await;
    let refused = refused.expect("the inner call waits for the outer one");
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Domain);
    assert_eq!(db.count("things").await, 0);
}

/// Adds a thing, and calls itself again in an effect, with the same idempotency key.
#[derive(Clone)]
struct Repeats(ActionExecutor);

impl Action for Repeats {
    const NAME: &'static str = "nested.repeats";
    type Params = Nothing;
    type Output = i64;
    type Error = Refused;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Nothing) -> Result<i64, Refused> {
        let id = ctx.new_id();
        ctx.plan().add(quiet(Thing { id, ..thing("once") }));
        let again = self.clone();
        ctx.plan().after_commit("again", move |_| async move {
            let call = again.0.execute(&again, Nothing {}).idempotency_key("k");
            match call.await {
                Ok(7) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        Ok(7)
    }
}

/// The effect gets the stored output at once, although the outer call waits for the effect. A call
/// waits for another one with its key for 30 s.
async fn an_effect_may_repeat_the_idempotency_key_of_its_action(db: &TestDatabase) {
    let executor = db.executor().await;
    let action = Repeats(executor.clone());
    for contention in [Contention::Optimistic, Contention::coalesced()] {
        let call = executor.execute(&action, Nothing {}).contention(contention);
        let call = call.contention_keys([LockKey::named("a")]).idempotency_key("k").into_future();
        let answer = tokio::time::timeout(Duration::from_secs(20), call).await;
        assert_eq!(answer.expect("the effect waits for its own action").unwrap(), 7);
    }
    assert_eq!(db.count("things").await, 1);
    assert_eq!(executor.effect_failures(), 0);
}

async fn a_call_after_a_refused_one_is_not_nested(db: &TestDatabase) {
    let executor = db.executor().await;
    let contention = Contention::Optimistic;
    let outer = CallsInside { executor: executor.clone(), contention, key: None };
    executor.execute(&outer, Nothing {}).await.unwrap_err();
    executor.execute(&AddOne::default(), Nothing {}).await.unwrap();
    assert_eq!(db.count("things").await, 1);
}

/// Writes beside its plan, and adds a thing in an effect.
struct WritesBeside(Databases);

impl Action for WritesBeside {
    const NAME: &'static str = "nested.writes";
    type Params = Nothing;
    type Output = ();
    type Error = Refused;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Nothing) -> Result<(), Refused> {
        let things = self.0.repository::<Thing>();
        for repository in [things.clone(), things.clone().outside_transaction()] {
            let error = repository.add(quiet(thing("beside"))).await.unwrap_err().to_string();
            let why = "a repository wrote Thing inside `perform` of `nested.writes`";
            assert!(error.starts_with(why), "{error}");
        }
        let transactions = self.0.transactions();
        let writing = async |_| -> Result<(), Refused> { panic!("the transaction must not run") };
        let error = transactions.in_transaction(writing).await.unwrap_err().to_string();
        let why = "a transaction was begun inside `perform` of `nested.writes`";
        assert!(error.starts_with(why), "{error}");
        // One that only reads leaves nothing behind.
        let reading = async |tx| things.within(&tx).count().await;
        let read_only = TransactionOptions::default().read_only();
        assert_eq!(transactions.in_transaction_with(read_only, reading).await.unwrap(), 0);
        ctx.plan().after_commit("write", move |_| async move {
            things.add(quiet(thing("in the effect"))).await.map(drop)
        });
        Ok(())
    }
}

async fn writes_beside_the_plan_are_refused_inside_perform(db: &TestDatabase) {
    let executor = db.executor().await;
    let action = WritesBeside(db.databases.clone());
    executor.execute(&action, Nothing {}).await.unwrap();
    assert_eq!(executor.effect_failures(), 0);
    assert_eq!(db.count("things").await, 1);
}
