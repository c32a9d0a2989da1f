//! The adaptive strategy: a key becomes hot, is reported, and cools down.

use std::future::IntoFuture;
use std::time::Duration;

use ekbatan::action::{Adaptive, Budget, ErrorKind, Handling, RetryPolicy};
use ekbatan::lock::{LockKey, LockProvider, ProcessBackend};
use ekbatan::prelude::*;
use futures_util::future::join_all;
use support::TestDatabase;
use support::things::Thing;

use crate::acts::{
    Act, Gate, Nothing, a_thing, enqueued, hold, together, touch, touch_after_reading,
};

on_every_database! {
    a_key_gets_hot_by_conflicts_and_cools_when_calls_come_alone,
    a_key_without_conflicts_is_never_hot,
    groups_that_another_process_overtakes_take_a_lease,
    a_call_that_lost_goes_before_those_that_came_after_its_loss,
}

fn key() -> LockKey {
    LockKey::named("the thing")
}

type Execution<'a> = ekbatan::action::Execution<'a, Act<Stored<Thing>>>;

fn adaptive<'a>(executor: &'a ActionExecutor, act: &'a Act<Stored<Thing>>) -> Execution<'a> {
    let call = executor.execute(act, crate::acts::Nothing {});
    call.contention(Contention::adaptive()).contention_keys([key()])
}

/// One call that another executor overtakes between its read and its commit, so that it is retried.
async fn conflict(db: &TestDatabase, executor: &ActionExecutor, id: Id<Thing>) {
    let (slow, has_read, may_go_on) = touch_after_reading(id);
    let outsider = async {
        has_read.pass().await;
        let elsewhere = touch(id);
        let call = db.executor().await;
        call.execute(&elsewhere, crate::acts::Nothing {}).await.unwrap();
        may_go_on.open();
    };
    let (slowly, ()) = tokio::join!(adaptive(executor, &slow).into_future(), outsider);
    slowly.unwrap();
    assert_eq!(slow.runs(), 2);
}

fn handling(executor: &ActionExecutor) -> Option<Handling> {
    executor.hot_keys().iter().find(|hot| hot.key == key()).map(|hot| hot.handling)
}

async fn a_key_gets_hot_by_conflicts_and_cools_when_calls_come_alone(db: &TestDatabase) {
    let (executor, id) = (db.executor().await, a_thing(db).await.id);
    // Conflicts heat a key only when they are close together, which they may not be on a slow machine.
    while handling(&executor).is_none() {
        conflict(db, &executor, id).await;
    }
    assert_eq!(handling(&executor), Some(Handling::Coalesced));
    let hot = &executor.hot_keys()[0];
    assert!(hot.temperature > 0.0);

    // Waiting calls keep the key hot: they run one after another, and none is retried.
    let touches: Vec<_> = (0..20).map(|_| touch(id)).collect();
    let calls = touches.iter().map(|touch| adaptive(&executor, touch).into_future());
    for touched in join_all(calls).await {
        touched.unwrap();
    }
    assert!(touches.iter().all(|touch| touch.runs() == 1));

    while handling(&executor).is_some() {
        adaptive(&executor, &touch(id)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(executor.hot_keys(), []);
}

async fn a_key_without_conflicts_is_never_hot(db: &TestDatabase) {
    let (executor, id) = (db.executor().await, a_thing(db).await.id);
    for _ in 0..50 {
        adaptive(&executor, &touch(id)).await.unwrap();
    }
    assert_eq!(executor.hot_keys(), []);
}

async fn groups_that_another_process_overtakes_take_a_lease(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let builder = ActionExecutor::builder(&db.databases, "tests").model::<Thing>();
    let leases = LockProvider::new(ProcessBackend::new(), "test");
    let executor = builder.leases(leases.clone()).build().await.unwrap();
    while handling(&executor) != Some(Handling::TakingTurns) {
        conflict(db, &executor, id).await;
    }
    // The group takes a lease: it waits while another holder has it.
    let lock = LockKey::named("the thing");
    let lease = leases.acquire(&lock, Duration::from_secs(3600)).await.unwrap();
    let act = touch(id);
    let mut call = adaptive(&executor, &act).into_future();
    let waiting = async {
        while leases.inspect(&lock).await.unwrap().is_none_or(|holder| holder.waiting_here == 0) {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        done = &mut call => panic!("it did not wait for its lease: {done:?}"),
        () = waiting => {}
    }
    lease.release().await;
    call.await.unwrap();
    assert_eq!(act.runs(), 1);
}

async fn a_call_that_lost_goes_before_those_that_came_after_its_loss(db: &TestDatabase) {
    let (executor, id) = (db.executor().await, a_thing(db).await.id);
    let pause = Duration::from_millis(50);
    let retries = Budget::new(100).base(pause).cap(pause);
    // On a slow machine the conflicts may not be close enough together to make the key hot.
    for _ in 0..20 {
        while handling(&executor).is_some() {
            tokio::time::sleep(pause).await;
        }
        conflict(db, &executor, id).await;
        if handling(&executor).is_some() {
            continue;
        }
        let gate = Gate::closed();
        let (holds, later, (lost, has_read, may_go_on)) =
            (hold(&gate), touch(id), touch_after_reading(id));
        let holding = executor.execute(&holds, Nothing {}).contention(together());
        let holding = enqueued(holding.contention_keys([key()])).await;
        let contention = Adaptive::default().coalesced(together());
        let losing = executor.execute(&lost, Nothing {}).contention(contention);
        let retry = RetryPolicy::none().with(ErrorKind::Stale, retries);
        let mut losing = losing.contention_keys([key()]).retry(retry).into_future();
        let overtaking = async {
            has_read.pass().await;
            db.executor().await.execute(&touch(id), Nothing {}).await.unwrap();
            may_go_on.open();
            while handling(&executor).is_none() && lost.runs() == 1 {
                tokio::task::yield_now().await;
            }
        };
        let is_hot = tokio::select! {
            biased;
            _ = &mut losing => false,
            () = overtaking => handling(&executor).is_some(),
        };
        if !is_hot {
            continue;
        }
        // The one that lost pauses, and nobody polls it.
        let later = executor.execute(&later, Nothing {}).contention(together());
        let later = enqueued(later.contention_keys([key()])).await;
        let entered = tokio::time::timeout(pause * 2, &mut losing).await.is_err();
        assert!(entered, "the key is held");
        gate.open();
        holding.await.unwrap();
        let (losing, later) = tokio::join!(losing, later);
        assert!(losing.unwrap().version() < later.unwrap().version());
        return;
    }
    panic!("the key was never hot when a call had lost");
}
