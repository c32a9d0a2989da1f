//! Strategies that acquire leases.

use std::time::Duration;

use ekbatan::action::{ErrorKind, LeaseError, Pessimistic};
use ekbatan::lock::{LockKey, LockProvider, ProcessBackend};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use futures_util::future::join_all;
use support::TestDatabase;
use support::things::{Thing, quiet, thing};

use crate::acts::{Gate, Groups, a_thing, act, enqueued, event_versions, hold, in_queue, touch};
use crate::acts::{poll_once, together, touch_after_reading};

on_every_database! {
    a_pessimistic_call_excludes_others_and_is_fenced_by_its_lease,
    a_busy_lease_is_an_error_that_names_the_key,
    a_group_under_a_lease_excludes_others_and_is_fenced_by_it,
    a_call_with_a_lease_of_its_own_skips_the_queue,
    a_call_that_runs_alone_does_not_wait_for_the_lease_of_its_own_queue,
}

fn locks() -> LockProvider {
    LockProvider::new(ProcessBackend::default(), "test")
}

async fn executor_with(db: &TestDatabase, locks: &LockProvider) -> ActionExecutor {
    let builder = ActionExecutor::builder(&db.databases, "com.example.contention");
    builder.model::<Thing>().leases(locks.clone()).build().await.unwrap()
}

async fn a_pessimistic_call_excludes_others_and_is_fenced_by_its_lease(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let locks = locks();
    let executor = executor_with(db, &locks).await;
    let (slow, read, gate) = touch_after_reading(id);
    let others = [touch(id), touch(id), touch(id)];
    let pessimistic = Contention::pessimistic();
    let slow = in_queue(&executor, &slow).contention(pessimistic.clone());
    let others = others
        .iter()
        .map(|other| in_queue(&executor, other).contention(pessimistic.clone()).into_future());
    let held = async {
        read.pass().await;
        let key = LockKey::named("the queue");
        let holder = locks.inspect(&key).await.unwrap();
        assert!(holder.is_some());
        gate.open();
    };
    let slow = async { slow.await };
    let (slow, answers, ()) = tokio::join!(slow, join_all(others), held);
    assert!(slow.is_ok() && answers.iter().all(Result::is_ok), "{slow:?} {answers:?}");
    assert_eq!(event_versions(db, id).await, [2, 3, 4, 5]);
    assert!(locks.inspect(&LockKey::named("the queue")).await.unwrap().is_none());
    assert_eq!(db.count(&db.eventlog("lock_fences")).await, 1);
}

async fn a_busy_lease_is_an_error_that_names_the_key(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let locks = locks();
    let executor = executor_with(db, &locks).await;
    let key = LockKey::named("the queue");
    let lease = locks.acquire(&key, Duration::from_secs(60)).await.unwrap();
    let soon = Pessimistic::default().wait(Duration::from_millis(1));
    let act = touch(id);
    for contention in [soon.into(), together().under_lease(soon).into()] {
        let contention: Contention = contention;
        let error = in_queue(&executor, &act).contention(contention).await.unwrap_err();
        match error {
            ExecuteError::Lease(LeaseError::Busy { key, .. }) => assert_eq!(key.id(), "the queue"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(act.runs(), 0);
    lease.release().await;
    in_queue(&executor, &act).contention(soon.wait(Duration::from_secs(60))).await.unwrap();
}

async fn a_group_under_a_lease_excludes_others_and_is_fenced_by_it(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let id = a_thing(db).await.id;
    let locks = locks();
    let executor = executor_with(db, &locks).await;
    let gate = Gate::closed();
    let leased = together().under_lease(Pessimistic::default());
    let holds = hold(&gate);
    let acts = [touch(id), touch(id), touch(id)];
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let mut calls = Vec::new();
    for act in &acts {
        calls.push(enqueued(in_queue(&executor, act).contention(leased)).await);
    }
    let lease = locks.acquire(&LockKey::named("the queue"), Duration::from_secs(60)).await.unwrap();
    gate.open();
    holding.await.unwrap();
    let mut answers = join_all(calls);
    assert!(poll_once(&mut answers).await.is_pending());
    assert_eq!(acts[0].runs(), 0, "it reads only under the lease");
    lease.release().await;
    let answers = answers.await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(groups.sizes(), [3]);
    // A call that commits alone is fenced as well.
    in_queue(&executor, &acts[0]).contention(leased).await.unwrap();
    assert_eq!(event_versions(db, id).await, [2, 3, 4, 5]);
    let again = locks.acquire(&LockKey::named("the queue"), Duration::from_secs(60)).await;
    drop(again.unwrap());
    assert_eq!(db.count(&db.eventlog("lock_fences")).await, 1);
}

async fn a_call_with_a_lease_of_its_own_skips_the_queue(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let locks = locks();
    let executor = executor_with(db, &locks).await;
    let gate = Gate::closed();
    let (holds, act) = (hold(&gate), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let lease = locks.acquire(&LockKey::named("the queue"), Duration::from_secs(60)).await.unwrap();
    in_queue(&executor, &act).fenced_by(&lease).await.unwrap();
    gate.open();
    holding.await.unwrap();
}

async fn a_call_that_runs_alone_does_not_wait_for_the_lease_of_its_own_queue(db: &TestDatabase) {
    a_thing(db).await;
    let executor = executor_with(db, &locks()).await;
    let leased = || together().under_lease(Pessimistic::default());
    let gate = Gate::closed();
    // Its label is taken: the commit of its group fails, and it runs alone.
    let same = thing("the thing");
    let same_id = same.id;
    let again = act(move |ctx| {
        let same = same.clone();
        async move { Ok(ctx.plan().add(quiet(same))) }.boxed()
    });
    // It reads the pending row; its count then commits the group, which fails, so it is queued again.
    let counts = act(move |ctx| {
        async move {
            let things = ctx.repository::<Thing>();
            let pending = things.exists(same_id).await.unwrap();
            Ok((pending, things.count().await.unwrap()))
        }
        .boxed()
    });
    let holds = hold(&gate);
    let holding = enqueued(in_queue(&executor, &holds).contention(leased())).await;
    let again_call = enqueued(in_queue(&executor, &again).contention(leased())).await;
    let counting = enqueued(in_queue(&executor, &counts).contention(leased())).await;
    gate.open();
    let (held, added, counted) = tokio::join!(holding, again_call, counting);
    held.unwrap();
    assert_eq!(added.unwrap_err().kind(), ErrorKind::Unique);
    assert_eq!(counted.unwrap(), (false, 1));
    assert_eq!(counts.runs(), 2);
}
