//! A plan that expects a row of another shard to be unchanged touches that shard.

use ekbatan::action::RetryPolicy;
use ekbatan::prelude::*;

use crate::actions::{Nothing, stage};
use crate::shards::{FIRST, SECOND, TestShards};

on_every_layout! {
    a_row_expected_on_another_shard_must_be_allowed,
    a_row_expected_on_another_shard_is_checked_before_anything_is_written,
}

async fn a_row_expected_on_another_shard_must_be_allowed(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let action = stage(move |ctx| {
        ctx.plan().expect(&accounts[1]);
        ctx.plan().update(accounts[0].clone().apply(|_| ()));
    });
    match executor.execute(&action, Nothing {}).await.unwrap_err() {
        ExecuteError::CrossShard { shards, .. } => assert_eq!(shards, [FIRST, SECOND]),
        other => panic!("{other:?}"),
    }
    executor.execute(&action, Nothing {}).allow_cross_shard().await.unwrap();
    // Only the first shard was written to.
    assert_eq!(t.eventlog_counts("events").await, [1, 0, 0]);
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
}

async fn a_row_expected_on_another_shard_is_checked_before_anything_is_written(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    // The shard of the stale row comes after the shard of the changed row.
    t.accounts().update(accounts[1].clone().apply(|_| ())).await.unwrap();
    let action = stage(move |ctx| {
        ctx.plan().expect(&accounts[1]);
        ctx.plan().update(accounts[0].clone().apply(|_| ()));
    });
    let call = executor.execute(&action, Nothing {}).retry(RetryPolicy::none());
    match call.allow_cross_shard().await.unwrap_err() {
        ExecuteError::Stale { rows, .. } => assert_eq!(rows[0].expected_version, 1),
        other => panic!("{other:?}"),
    }
    assert_eq!(t.eventlog_counts("events").await, [0, 0, 0]);
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
}
