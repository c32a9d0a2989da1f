//! Calls that leave the queue or their group: by a panic, by being dropped, by their deadline.

use std::future::IntoFuture;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use ekbatan::action::{ErrorKind, Outcome};
use ekbatan::prelude::*;
use ekbatan_testkit::drop_at_poll;
use futures_util::FutureExt;
use support::TestDatabase;

use crate::acts::{Gate, Refused, a_thing, act, enqueued, event_versions, hold, in_queue};
use crate::acts::{poll_once, touch, touch_after_reading};

on_every_database! {
    a_call_that_panics_does_not_affect_its_group,
    a_call_dropped_at_any_poll_commits_all_or_nothing_and_blocks_nobody,
    a_turn_granted_to_a_dropped_call_passes_on,
    a_deadline_in_the_queue_leaves_nothing,
    a_deadline_after_joining_a_group_is_unknown,
}

async fn a_call_that_panics_does_not_affect_its_group(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let panics = act::<()>(move |ctx| {
        async move {
            let thing = ctx.get(id).await.unwrap();
            ctx.plan().update(thing.apply(|thing| thing.small = 0));
            assert_eq!(ctx.attempt(), 0, "this action panics");
            Ok(())
        }
        .boxed()
    });
    let (holds, first, last) = (hold(&gate), touch(id), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let first = enqueued(in_queue(&executor, &first)).await;
    let panicking = enqueued(in_queue(&executor, &panics)).await;
    let last = enqueued(in_queue(&executor, &last)).await;
    gate.open();
    let panicking = AssertUnwindSafe(panicking).catch_unwind();
    let (_, first, panicked, last) = tokio::join!(holding, first, panicking, last);
    assert!(panicked.is_err());
    assert_eq!((first.unwrap().small, last.unwrap().small), (-6, -5));
    assert_eq!(event_versions(db, id).await, [2, 3]);
}

async fn a_call_dropped_at_any_poll_commits_all_or_nothing_and_blocks_nobody(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let (mut version, mut dropped) = (1, 0);
    for polls in 0..200 {
        let gate = Gate::closed();
        let (holds, before, middle, after) = (hold(&gate), touch(id), touch(id), touch(id));
        let holding = enqueued(in_queue(&executor, &holds)).await;
        let before = enqueued(in_queue(&executor, &before)).await;
        let middle = in_queue(&executor, &middle);
        let action = middle.action_id();
        let mut middle = Box::pin(drop_at_poll(polls, middle.into_future()));
        let early = poll_once(&mut middle).await.is_ready();
        let after = enqueued(in_queue(&executor, &after)).await;
        gate.open();
        let middle = async { if early { None } else { middle.await.finished() } };
        let (_, before, middle, after) = tokio::join!(holding, before, middle, after);
        let outcome = executor.outcome(action).await.unwrap();
        let (before, after) = (before.unwrap(), after.unwrap());
        let middle_counts = i64::from(outcome == Outcome::Committed);
        assert_eq!(before.version(), version + 1, "poll {polls}");
        assert_eq!(after.version(), version + 2 + middle_counts, "poll {polls}");
        version = after.version();
        assert_eq!(db.things().get(id).await.unwrap(), after, "poll {polls}");
        match middle {
            Some(finished) => {
                assert_eq!(finished.unwrap().version(), version - 1);
                assert!(dropped >= 3, "dropped at {dropped} polls only");
                assert_eq!(event_versions(db, id).await, (2..=version).collect::<Vec<i64>>());
                return;
            }
            None => dropped += 1,
        }
    }
    panic!("the call never finished");
}

/// A call is granted the turn, and is dropped before it is polled again.
async fn a_turn_granted_to_a_dropped_call_passes_on(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let (holds, first, last) = (hold(&gate), touch(id), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let first = enqueued(in_queue(&executor, &first)).await;
    let last = enqueued(in_queue(&executor, &last)).await;
    gate.open();
    holding.await.unwrap(); // which grants the turn to the first call
    drop(first);
    assert_eq!(last.await.unwrap().version(), 2);
}

async fn a_deadline_in_the_queue_leaves_nothing(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let (holds, late, other) = (hold(&gate), touch(id), touch(id));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let late = in_queue(&executor, &late).deadline(Duration::from_millis(1)).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Deadline);
    let other = enqueued(in_queue(&executor, &other)).await;
    gate.open();
    let (_, other) = tokio::join!(holding, other);
    assert_eq!(other.unwrap().version(), 2);
}

async fn a_deadline_after_joining_a_group_is_unknown(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let start = Gate::closed();
    let (holds, early) = (hold(&start), touch(id));
    let (slow, read, gate) = touch_after_reading(id);
    let refuses = act::<()>(|_| async { Err(Refused("late".to_owned())) }.boxed());
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let early = in_queue(&executor, &early);
    let action = early.action_id();
    let early = enqueued(early.deadline(Duration::from_millis(500))).await;
    let slow = enqueued(in_queue(&executor, &slow)).await;
    let refuses = enqueued(in_queue(&executor, &refuses)).await;
    start.open();
    let in_the_end = async {
        let answer = early.await;
        read.pass().await;
        gate.open();
        answer
    };
    let (_, early, slow, refuses) = tokio::join!(holding, in_the_end, slow, refuses);
    refuses.unwrap_err();
    match early {
        // The first call joined the group before its deadline.
        Err(ExecuteError::CommitUnknown { action: named, .. }) => {
            assert_eq!(named, action);
            assert_eq!(executor.outcome(action).await.unwrap(), Outcome::Committed);
            assert_eq!(slow.unwrap().version(), 3);
        }
        // On a slow machine the deadline came first.
        Err(ExecuteError::Deadline { .. }) => {
            assert_eq!(executor.outcome(action).await.unwrap(), Outcome::NotCommitted);
            assert_eq!(slow.unwrap().version(), 2);
        }
        other => panic!("{other:?}"),
    }
}
