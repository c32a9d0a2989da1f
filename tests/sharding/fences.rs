//! A lease that ends on one of several shards.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::Fence;
use ekbatan::db::CommitError;
use ekbatan::prelude::*;
use futures_util::FutureExt;
use tokio::sync::Mutex;

use crate::actions::{Take, route};
use crate::shards::{FIRST, SECOND, THIRD, TestShards, executor_on, hold_writers, until};

on_every_layout! {
    a_lease_that_holds_commits_on_every_shard,
    a_lease_that_was_overtaken_on_one_shard_commits_on_none,
    a_successor_that_begins_during_perform_shuts_out_every_shard,
    a_fence_that_falls_between_two_shards_is_a_partial_commit,
}

fn lease(token: i64) -> Fence {
    Fence { key: "account".into(), token, remaining: Duration::from_secs(600) }
}

async fn a_lease_that_holds_commits_on_every_shard(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    for token in [1, 1, 3] {
        let action = Take::default();
        let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
        call.fenced_by(&lease(token)).await.unwrap();
    }
    for account in &accounts {
        assert_eq!(t.accounts().get(account.id).await.unwrap().version(), 4);
    }
}

async fn a_lease_that_was_overtaken_on_one_shard_commits_on_none(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let action = Take::default();
    // The successor worked on the third shard alone.
    executor.execute(&action, route(&accounts[2..])).fenced_by(&lease(2)).await.unwrap();
    forget_on_first(t).await;
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    match call.fenced_by(&lease(1)).await.unwrap_err() {
        ExecuteError::FenceLost { key } => assert_eq!(key, "account"),
        other => panic!("{other:?}"),
    }
    assert_eq!(t.eventlog_counts("events").await, [0, 0, 1]);
    assert_eq!(t.eventlog_counts("cross_shard_parts").await, [0; 3]);
}

/// So that what the third shard knows of a fence is known nowhere else.
async fn forget_on_first(t: &TestShards) {
    let first = t.on(FIRST);
    first.execute(&format!("DELETE FROM {}", first.eventlog("lock_fences"))).await;
}

async fn a_successor_that_begins_during_perform_shuts_out_every_shard(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let (successor, other) = (executor_on(&t.open_again().await).await, accounts[1].clone());
    let action = Take::with(move |_| {
        let (successor, other) = (successor.clone(), other.clone());
        async move {
            let call = Take::default();
            let call = successor.execute(&call, route(&[other])).fenced_by(&lease(2));
            call.await.unwrap();
        }
        .boxed()
    });
    let others = [accounts[0].clone(), accounts[2].clone()];
    let call = executor.execute(&action, route(&others)).allow_cross_shard();
    let error = call.fenced_by(&lease(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FenceLost);
    assert_eq!(t.eventlog_counts("events").await, [0, 1, 0]);
}

/// The first shard's writers are held while the second one's fence falls.
async fn a_fence_that_falls_between_two_shards_is_a_partial_commit(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let held = Arc::new(Mutex::new(None));
    let (dialect, url) = (t.on(FIRST).dialect, t.on(FIRST).url.clone());
    let action = Take::with({
        let held = held.clone();
        move |_| {
            let (held, url) = (held.clone(), url.clone());
            async move { *held.lock().await = Some(hold_writers(dialect, &url).await) }.boxed()
        }
    });
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    let call = call.fenced_by(&lease(1)).into_future();
    let second = t.on(SECOND);
    let fences = second.eventlog("lock_fences");
    let falling = async {
        let raised = async || second.count(&fences).await == 1;
        until("the fence is raised on the second shard", raised).await;
        second.execute(&format!("UPDATE {fences} SET token = 9")).await;
        drop(held.lock().await.take());
    };
    match tokio::join!(call, falling).0.unwrap_err() {
        ExecuteError::PartlyCommitted { committed, failed, not_tried, source, .. } => {
            assert_eq!(
                (&committed[..], failed, &not_tried[..]),
                (&[FIRST][..], SECOND, &[THIRD][..])
            );
            assert!(matches!(source.unwrap(), CommitError::FenceLost(key) if key == "account"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(t.eventlog_counts("events").await, [1, 0, 0]);
}
