//! Idempotency keys where there are several shards.

use std::future::IntoFuture;

use ekbatan::action::ErrorKind;
use ekbatan::db::ActionId;
use ekbatan::prelude::*;
use futures_util::FutureExt;

use crate::actions::{Nothing, Take, route, stage};
use crate::models::Account;
use crate::shards::{FIRST, SECOND, THIRD, TestShards, executor_on, overtake};

on_every_layout! {
    a_complete_call_is_answered_again_whichever_shard_kept_its_key,
    a_call_over_shards_keeps_its_key_on_the_first_of_them,
    a_partial_commit_is_answered_again_as_one_and_runs_nothing,
    a_resolved_partial_commit_is_answered_by_its_stored_output,
    a_key_that_is_found_is_answered_though_another_shard_is_silent,
    equal_calls_of_several_processes_commit_once,
}

async fn a_complete_call_is_answered_again_whichever_shard_kept_its_key(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    for (n, account) in accounts.iter().enumerate() {
        let key = format!("key {n}");
        let (action, route) = (Take::default(), route(std::slice::from_ref(account)));
        for executor in [&executor, &executor, &executor_on(&t.open_again().await).await] {
            let call = executor.execute(&action, route.clone()).idempotency_key(&*key);
            assert_eq!(call.await.unwrap(), 1);
        }
        assert_eq!(action.runs(), 1);
        assert_eq!(t.accounts().get(account.id).await.unwrap().version(), 2);
    }
    assert_eq!(t.eventlog_counts("idempotency_keys").await, [1, 1, 1]);
}

async fn a_call_over_shards_keeps_its_key_on_the_first_of_them(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let action = Take::default();
    let turned = [accounts[2].clone(), accounts[1].clone()];
    for _ in 0..3 {
        let call = executor.execute(&action, route(&turned)).allow_cross_shard();
        assert_eq!(call.idempotency_key("key").await.unwrap(), 1);
    }
    assert_eq!(action.runs(), 1);
    assert_eq!(t.eventlog_counts("idempotency_keys").await, [0, 1, 0]);
    assert_eq!(t.eventlog_counts("events").await, [0, 1, 1]);
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    let error = call.idempotency_key("key").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KeyReused);
}

/// Takes from all three accounts, and has committed on the first shard only.
async fn commit_in_part(
    t: &TestShards,
    executor: &ActionExecutor,
    accounts: &[Stored<Account>],
) -> ActionId {
    let second = t.on(SECOND);
    let (url, id) = (second.url.clone(), accounts[1].id);
    let action = Take::with(move |_| {
        let url = url.clone();
        async move { overtake(&url, id).await }.boxed()
    });
    let call = executor.execute(&action, route(accounts)).allow_cross_shard();
    let action = call.action_id();
    let error = call.idempotency_key("key").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PartlyCommitted);
    action
}

async fn a_partial_commit_is_answered_again_as_one_and_runs_nothing(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let id = commit_in_part(t, &executor, &accounts).await;
    let again = Take::default();
    for executor in [&executor, &executor_on(&t.open_again().await).await] {
        let call = executor.execute(&again, route(&accounts)).allow_cross_shard();
        match call.idempotency_key("key").await.unwrap_err() {
            ExecuteError::PartlyCommitted { action, committed, failed, not_tried, source } => {
                assert_eq!((action, failed), (id, SECOND));
                assert_eq!((&committed[..], &not_tried[..]), (&[FIRST][..], &[THIRD][..]));
                assert!(source.is_none());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(again.runs(), 0);
    assert_eq!(t.eventlog_counts("events").await, [1, 0, 0]);
}

async fn a_resolved_partial_commit_is_answered_by_its_stored_output(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let id = commit_in_part(t, &executor, &accounts).await;
    t.databases.resolve_partial_commit(id).await.unwrap();
    let again = Take::default();
    let call = executor.execute(&again, route(&accounts)).allow_cross_shard();
    assert_eq!(call.idempotency_key("key").await.unwrap(), 1);
    assert_eq!(again.runs(), 0);
}

async fn a_key_that_is_found_is_answered_though_another_shard_is_silent(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let action = Take::default();
    let call = || executor.execute(&action, route(&accounts[1..2]));
    call().idempotency_key("known").await.unwrap();
    let third = t.on(THIRD);
    third.hide(&third.eventlog("idempotency_keys")).await;
    assert_eq!(call().idempotency_key("known").await.unwrap(), 1);
    assert_eq!(action.runs(), 1);
    // Of another key the silent shard may know; nobody guesses.
    call().idempotency_key("other").await.unwrap_err();
    assert_eq!(action.runs(), 1);
    third.show(&third.eventlog("idempotency_keys")).await;
    call().idempotency_key("other").await.unwrap();
    assert_eq!(action.runs(), 2);
}

async fn equal_calls_of_several_processes_commit_once(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let mut executors = Vec::new();
    for _ in 0..4 {
        executors.push(executor_on(&t.open_again().await).await);
    }
    let action = Take::default();
    let calls = executors.iter().map(|executor| {
        let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
        call.idempotency_key("key").into_future()
    });
    for answer in futures_util::future::join_all(calls).await {
        match answer {
            Ok(_) => {}
            // The one that commits has not yet reached its last shard.
            Err(error) => assert_eq!(error.kind(), ErrorKind::PartlyCommitted, "{error}"),
        }
    }
    for account in &accounts {
        assert_eq!(t.accounts().get(account.id).await.unwrap().version(), 2);
    }
    assert_eq!(t.eventlog_counts("events").await, [1, 1, 1]);
    assert_eq!(t.eventlog_counts("idempotency_keys").await, [1, 0, 0]);
    // Without a row to be stale, the key alone keeps them apart.
    let counted = stage(|_| 7);
    let calls = executors
        .iter()
        .map(|executor| executor.execute(&counted, Nothing {}).idempotency_key("8").into_future());
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.unwrap(), 7);
    }
    assert_eq!(t.eventlog_counts("idempotency_keys").await, [2, 0, 0]);
}
