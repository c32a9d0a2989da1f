//! Callers that drop an execution while it commits on one shard after another.

use std::future::IntoFuture;
use std::time::Duration;

use ekbatan::action::{ErrorKind, Outcome};
use ekbatan::db::ActionId;
use ekbatan::prelude::*;
use ekbatan_testkit::drop_at_poll;
use support::until;

use crate::actions::{Take, route};
use crate::shards::{FIRST, SECOND, THIRD, TestShards};

on_every_layout! {
    a_call_dropped_at_any_poll_commits_on_all_shards_or_none,
    a_call_dropped_between_two_shards_completes,
    a_commit_completes_after_a_deadline_between_two_shards,
}

/// The number of rounds, and the most that the test tries until it met a late drop.
const ROUNDS: usize = 3;
const MOST_ROUNDS: usize = 100;

async fn a_call_dropped_at_any_poll_commits_on_all_shards_or_none(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let (mut complete, mut absent, mut dropped_late) = (0, 0, 0);
    for round in 0..MOST_ROUNDS {
        if round >= ROUNDS && absent > 0 && dropped_late > 0 {
            break;
        }
        for polls in 0.. {
            let before = versions(t).await;
            let action = Take::default();
            let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
            let id = call.action_id();
            let mut call = call.into_future();
            let finished = drop_at_poll(polls, &mut call).await.finished();
            // The batch of a caller who has gone leaves the queue. In every second round the
            // lanes may take it before the caller goes.
            if round % 2 == 1 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            drop(call);
            let outcome = executor.outcome(id).await.unwrap();
            let change = versions(t).await.map(|version| version - before[0]);
            match outcome {
                Outcome::Committed => {
                    assert_eq!(change, [1, 1, 1], "after {polls} polls");
                    complete += 1;
                    dropped_late += usize::from(finished.is_none());
                }
                Outcome::NotCommitted => {
                    assert_eq!(change, [0, 0, 0], "after {polls} polls");
                    absent += 1;
                }
                other => panic!("{other:?} after {polls} polls"),
            }
            if let Some(answer) = finished {
                answer.unwrap();
                break;
            }
        }
    }
    println!("{complete} complete, {dropped_late} of them without a caller; {absent} absent");
    assert!(absent > 0 && dropped_late > 0);
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
    until("the cross-shard records are removed", async || {
        t.eventlog_counts("cross_shard_parts").await == [0; 3]
    })
    .await;
    assert_eq!(t.eventlog_counts("events").await, [complete; 3]);
}

async fn versions(t: &TestShards) -> [i64; 3] {
    let mut versions = [0; 3];
    for account in t.accounts().find_all().await.unwrap() {
        let shard = account.id.shard().unwrap();
        let position = [FIRST, SECOND, THIRD].iter().position(|other| *other == shard).unwrap();
        versions[position] = account.version();
    }
    versions
}

/// Waits until the first shard has committed. The writers of the second shard are blocked.
async fn commit_first(t: &TestShards) {
    until("the first shard commits", async || t.eventlog_counts("events").await == [1, 0, 0]).await;
}

async fn assert_complete(t: &TestShards, executor: &ActionExecutor, id: ActionId) {
    assert_eq!(executor.outcome(id).await.unwrap(), Outcome::Committed);
    assert_eq!(versions(t).await, [2, 2, 2]);
    assert_eq!(t.eventlog_counts("events").await, [1, 1, 1]);
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
}

async fn a_call_dropped_between_two_shards_completes(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    // The call waits for the second shard only for a while, in which a busy machine may not connect.
    let other_process = t.open_again().await;
    let held = t.on(SECOND).hold_writers().await;
    let action = Take::default();
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    let id = call.action_id();
    tokio::select! {
        biased;
        () = commit_first(t) => {}
        answer = call.into_future() => panic!("{answer:?}"),
    }
    // This process knows that the action still runs. Another process may see a partial commit.
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
    let seen = other_process.partial_commits().await.unwrap();
    assert_eq!((seen.len(), seen[0].action, seen[0].missing.len()), (1, id, 2));
    drop(held);
    assert_complete(t, &executor, id).await;
}

async fn a_commit_completes_after_a_deadline_between_two_shards(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let held = t.on(SECOND).hold_writers().await;
    let action = Take::default();
    let mut deadline = Duration::from_secs(1);
    let id = loop {
        let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
        let id = call.action_id();
        let error = call.deadline(deadline).await.unwrap_err();
        if error.kind() == ErrorKind::CommitUnknown {
            break id;
        }
        // On a slow machine the deadline passes before the commit starts.
        assert_eq!(error.kind(), ErrorKind::Deadline, "{error}");
        deadline *= 4;
    };
    drop(held);
    assert_complete(t, &executor, id).await;
}
