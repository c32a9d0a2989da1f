//! Strategies that acquire leases.

use std::future::IntoFuture;
use std::time::Duration;

use ekbatan::action::{
    Adaptive, Budget, Coalesced, ErrorKind, LeaseError, Pessimistic, RetryPolicy,
};
use ekbatan::lock::{LockKey, LockProvider, ProcessBackend};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use futures_util::future::join_all;
use support::things::{Thing, quiet, thing};
use support::{PlainConnection, Recorder, TestDatabase, until};

use crate::acts::{
    Gate, Groups, Refused, a_thing, act, enqueued, event_versions, hold, in_queue, poll_once,
    together, touch, touch_after_reading,
};

on_every_database! {
    a_pessimistic_call_excludes_others_and_is_fenced_by_its_lease,
    a_busy_lease_is_an_error_that_names_the_key,
    a_busy_lease_names_the_whole_wait,
    a_group_under_a_lease_excludes_others_and_is_fenced_by_it,
    a_call_with_a_lease_of_its_own_skips_the_queue,
    a_call_that_runs_alone_does_not_wait_for_the_lease_of_its_own_queue,
    a_lease_that_ended_fails_only_the_call_that_held_it_for_too_long,
    the_members_of_a_group_whose_lease_ended_run_again_under_another_one,
    no_time_of_a_strategy_is_too_long,
}

on_every_database! {
    on_sqlite_only:
    an_effect_of_a_call_that_commits_alone_may_use_its_lease,
    a_call_that_runs_alone_keeps_its_turn_while_it_waits_for_its_lease,
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
        assert!(error.is_retryable(), "{error}");
        match error {
            ExecuteError::Lease(LeaseError::Busy { key, .. }) => assert_eq!(key.id(), "the queue"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(act.runs(), 0);
    lease.release().await;
    in_queue(&executor, &act).contention(soon.wait(Duration::from_secs(60))).await.unwrap();
}

/// The call waits in the queue for longer than it would wait for the lease.
async fn a_busy_lease_names_the_whole_wait(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let locks = locks();
    let executor = executor_with(db, &locks).await;
    let _lease = locks.acquire(&LockKey::named("the queue"), Duration::from_secs(60)).await;
    let (wait, gate) = (Duration::from_millis(20), Gate::closed());
    let leased = together().under_lease(Pessimistic::default().wait(wait));
    let (holds, waits) = (hold(&gate), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let waiting = enqueued(in_queue(&executor, &waits).contention(leased)).await;
    tokio::time::sleep(wait).await;
    gate.open();
    holding.await.unwrap();
    match waiting.await.unwrap_err() {
        ExecuteError::Lease(LeaseError::Busy { waited, .. }) => assert!(waited >= wait),
        other => panic!("{other:?}"),
    }
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

async fn an_effect_of_a_call_that_commits_alone_may_use_its_lease(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = executor_with(db, &locks()).await;
    let hold = Duration::from_secs(600);
    let lease = Pessimistic::default().hold(hold).wait(Duration::from_secs(20));
    let leased = together().under_lease(lease);
    let with_follower = {
        let executor = executor.clone();
        act(move |ctx| {
            let executor = executor.clone();
            async move {
                let thing = ctx.get(id).await.unwrap();
                ctx.plan().after_commit("follower", move |_| async move {
                    in_queue(&executor, &touch(id)).contention(leased).await.map(drop)
                });
                Ok(ctx.plan().update(thing.apply(|thing| thing.small += 1)))
            }
            .boxed()
        })
    };
    in_queue(&executor, &with_follower).contention(leased).await.unwrap();
    assert_eq!(executor.effect_failures(), 0);
    assert_eq!(db.things().get(id).await.unwrap().version(), 3);
}

/// Waits until the lease on the key of the queue has ended.
async fn lease_ends(locks: &LockProvider) {
    until("the key is free", async || {
        locks.inspect(&LockKey::named("the queue")).await.unwrap().is_none()
    })
    .await;
}

async fn a_lease_that_ended_fails_only_the_call_that_held_it_for_too_long(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let locks = locks();
    let executor = executor_with(db, &locks).await;
    let short = Pessimistic::default().hold(Duration::from_secs(3));
    let (long, leased) = (Pessimistic::default(), |lease| together().under_lease(lease));
    let (slow, read, gate) = touch_after_reading(id);
    let others: Vec<_> = (0..10).map(|_| touch(id)).collect();
    let slow_call = enqueued(in_queue(&executor, &slow).contention(leased(short))).await;
    let mut calls = Vec::new();
    for other in &others {
        calls.push(enqueued(in_queue(&executor, other).contention(leased(long))).await);
    }
    let held_too_long = async {
        read.pass().await;
        lease_ends(&locks).await;
        gate.open();
    };
    let (slow, answers, ()) = tokio::join!(slow_call, join_all(calls), held_too_long);
    assert_eq!(slow.unwrap_err().kind(), ErrorKind::FenceLost);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(event_versions(db, id).await, (2..12).collect::<Vec<i64>>());
}

async fn the_members_of_a_group_whose_lease_ended_run_again_under_another_one(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let locks = locks();
    let executor = executor_with(db, &locks).await;
    let mut last = None;
    for _ in 0..5 {
        let before = db.things().get(id).await.unwrap().version();
        let answers = group_whose_lease_ends(&executor, &locks, id).await;
        let mut errors = answers.iter().flat_map(|answer| answer.as_ref().err());
        // A busy machine may take longer than the other lease, too.
        if errors.all(|error| error.kind() != ErrorKind::FenceLost) {
            let mut versions = answers.map(|answer| answer.unwrap().version());
            versions.sort_unstable();
            return assert_eq!(versions, [before + 1, before + 2, before + 3]);
        }
        last = Some(answers);
    }
    panic!("in every round a member lost its lease: {last:?}");
}

/// The first call joins its group in time; a later one keeps the group until the lease has ended.
async fn group_whose_lease_ends(
    executor: &ActionExecutor,
    locks: &LockProvider,
    id: Id<Thing>,
) -> [Result<Stored<Thing>, ExecuteError<Refused>>; 3] {
    let start = Gate::closed();
    let (holds, first) = (hold(&start), touch(id));
    let (read, gate) = (Gate::closed(), Gate::closed());
    let (has_read, may_go_on) = (read.clone(), gate.clone());
    // It is slow only once.
    let slow = act(move |ctx| {
        let (read, gate) = (has_read.clone(), may_go_on.clone());
        async move {
            let thing = ctx.get(id).await?;
            read.open();
            gate.pass().await;
            Ok(ctx.plan().update(thing.apply(|thing| thing.small += 1)))
        }
        .boxed()
    });
    let last = touch(id);
    let leased = together().under_lease(Pessimistic::default().hold(Duration::from_secs(3)));
    let holding = enqueued(in_queue(executor, &holds)).await;
    let first = enqueued(in_queue(executor, &first).contention(leased)).await;
    let slow = enqueued(in_queue(executor, &slow).contention(leased)).await;
    let last = enqueued(in_queue(executor, &last).contention(leased)).await;
    start.open();
    let held_too_long = async {
        read.pass().await;
        lease_ends(locks).await;
        gate.open();
    };
    let (held, first, slow, last, ()) = tokio::join!(holding, first, slow, last, held_too_long);
    held.unwrap();
    [first, slow, last]
}

async fn no_time_of_a_strategy_is_too_long(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = executor_with(db, &locks()).await;
    let (max, acts) = (Duration::MAX, [touch(id), touch(id), touch(id)]);
    let lease = Pessimistic::default().wait(max).hold(max);
    let coalesced = Coalesced::default().time(max).turn(max);
    let policy = RetryPolicy::default().with(ErrorKind::Stale, Budget::new(3).base(max).cap(max));
    let strategies: [Contention; 4] = [
        lease.into(),
        coalesced.into(),
        coalesced.under_lease(lease).into(),
        Adaptive::default().coalesced(coalesced.under_lease(lease)).into(),
    ];
    let mut version = 1;
    for contention in strategies {
        let calls = acts.iter().map(|act| {
            let call = in_queue(&executor, act).contention(contention.clone());
            call.retry(policy.clone()).into_future()
        });
        // Adaptive calls begin as optimistic ones, which conflict: each of them by itself.
        let answers = if matches!(contention, Contention::Adaptive(_)) {
            vec![in_queue(&executor, &acts[0]).contention(contention.clone()).await]
        } else {
            join_all(calls).await
        };
        version += answers.len() as i64;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
    assert_eq!(db.things().get(id).await.unwrap().version(), version);
}

/// A call that conflicts twice in its group, and runs alone then.
async fn a_call_that_runs_alone_keeps_its_turn_while_it_waits_for_its_lease(db: &TestDatabase) {
    let (recorder, _guard) = Recorder::start();
    let id = a_thing(db).await.id;
    let locks = locks();
    let executor = executor_with(db, &locks).await;
    let (runs, gate) = (Gate::closed(), Gate::closed());
    let (has_read, may_go_on, url) = (runs.clone(), gate.clone(), db.url.clone());
    let overtaken = act(move |ctx| {
        let (runs, gate, url) = (has_read.clone(), may_go_on.clone(), url.clone());
        async move {
            let thing = ctx.get(id).await.unwrap();
            if ctx.attempt() <= 2 {
                let overtakes =
                    format!("UPDATE things SET version = version + 1 WHERE id = '{id}'");
                PlainConnection::connect(&url).await.execute(&overtakes).await;
            }
            if ctx.attempt() == 2 {
                runs.open();
                gate.pass().await;
            }
            Ok(ctx.plan().update(thing.apply(|thing| thing.small += 1)))
        }
        .boxed()
    });
    let lease = Pessimistic::default().wait(Duration::MAX).hold(Duration::from_secs(600));
    let soon = Duration::from_millis(20);
    let policy = RetryPolicy::none().with(ErrorKind::Stale, Budget::new(9).base(Duration::ZERO));
    let call = in_queue(&executor, &overtaken).retry(policy).deadline(Duration::MAX);
    let call = call.contention(together().turn(soon).under_lease(lease));
    let mut alone = call.into_future();
    let key = LockKey::named("the queue");
    let mut locking = std::pin::pin!(locks.acquire(&key, Duration::from_secs(600)));
    tokio::select! {
        _ = &mut alone => panic!("the gate is closed"),
        () = runs.pass() => {}
    }
    assert!(poll_once(&mut locking).await.is_pending(), "the call has the lease");
    gate.open();
    let lease = tokio::select! {
        _ = &mut alone => panic!("the lease goes to the one that waits for it"),
        lease = &mut locking => lease.unwrap(),
    };
    until("the call runs alone", async || {
        assert!(poll_once(&mut alone).await.is_pending(), "the lease is held");
        !recorder.of("alone").is_empty()
    })
    .await;
    let next = touch(id);
    let mut next = in_queue(&executor, &next).into_future();
    tokio::select! {
        _ = &mut alone => panic!("the lease is held"),
        _ = &mut next => panic!("the call has kept its turn"),
        () = tokio::time::sleep(Duration::from_secs(1)) => {}
    }
    drop(next);
    lease.release().await;
    alone.await.unwrap();
}
