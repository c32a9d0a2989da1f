//! Actions that commit on only some of their shards: behaviour 59.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::{Budget, ErrorKind, Outcome, RetryPolicy};
use ekbatan::db::{CommitError, DbError, DbErrorKind};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::stored_instant;

use crate::actions::{Nothing, Take, route, stage};
use crate::models::{Account, note, quiet};
use crate::shards::{FIRST, SECOND, SHARDS, THIRD, TestShards, overtake};

on_every_layout! {
    a_stale_row_on_a_later_shard_is_not_retried,
    a_violation_on_the_second_shard_leaves_the_first_committed,
    no_policy_retries_a_partial_commit,
    a_partial_commit_is_listed_until_it_is_resolved,
    an_unreachable_shard_does_not_hide_a_partial_commit,
    effects_do_not_run_after_a_partial_commit,
    partial_commits_are_listed_oldest_first,
}

/// Returns an action whose row on the shard of `account` is stale at the commit.
pub fn made_stale_on(t: &TestShards, account: &Stored<Account>) -> Take {
    let shard = t.on(account.id.shard().unwrap());
    // A plain connection, so that the framework does not see the update.
    let (id, url) = (account.id, shard.url.clone());
    Take::with(move |_| {
        let url = url.clone();
        async move { overtake(&url, id).await }.boxed()
    })
}

async fn assert_versions(t: &TestShards, accounts: &[Stored<Account>], versions: &[i64]) {
    let mut found = Vec::new();
    for account in accounts {
        found.push(t.accounts().get(account.id).await.unwrap().version());
    }
    assert_eq!(found, versions);
}

async fn a_stale_row_on_a_later_shard_is_not_retried(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let action = made_stale_on(t, &accounts[1]);
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    let id = call.action_id();
    let error = call.await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("committed on 0/0 and not on 0/1: "), "{text}");
    match error {
        ExecuteError::PartlyCommitted { action, committed, failed, not_tried, source, .. } => {
            assert_eq!((action, failed), (id, SECOND));
            assert_eq!((&committed[..], &not_tried[..]), (&[FIRST][..], &[THIRD][..]));
            match source.unwrap() {
                CommitError::Stale(rows) => assert_eq!(rows[0].id, accounts[1].id.uuid()),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(action.runs(), 1);
    // The version of the second account is that of the other writer.
    assert_versions(t, &accounts, &[2, 2, 1]).await;
    assert_eq!(t.accounts().get(accounts[1].id).await.unwrap().balance, accounts[1].balance);
    assert_eq!(t.eventlog_counts("events").await, [1, 0, 0]);
    assert_eq!(t.eventlog_counts("cross_shard_parts").await, [1, 0, 0]);
    assert_eq!(executor.outcome(id).await.unwrap(), Outcome::PartlyCommitted);
    // Another process lists the same.
    let other = crate::shards::executor_on(&t.open_again().await).await;
    assert_eq!(other.outcome(id).await.unwrap(), Outcome::PartlyCommitted);
}

async fn a_violation_on_the_second_shard_leaves_the_first_committed(t: &TestShards) {
    let executor = t.executor().await;
    t.databases.repository().add(quiet(note(SECOND, "taken"))).await.unwrap();
    let action = stage(|ctx| {
        for shard in [FIRST, SECOND] {
            ctx.plan().add(quiet(note(shard, "free")));
            ctx.plan().add(quiet(note(shard, "taken")));
        }
    });
    let error = executor.execute(&action, Nothing {}).allow_cross_shard().await.unwrap_err();
    let kind = error.database_error().map(DbError::kind);
    assert_eq!(kind, Some(DbErrorKind::UniqueViolation));
    assert!(error.constraint().is_some() && !error.is_retryable(), "{error}");
    match error {
        ExecuteError::PartlyCommitted { committed, failed, not_tried, source, .. } => {
            assert_eq!((&committed[..], failed, not_tried.len()), (&[FIRST][..], SECOND, 0));
            match source.unwrap() {
                CommitError::Refused(error) => assert!(error.constraint().is_some(), "{error}"),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(t.counts("notes").await, [2, 1, 0], "the second shard rolled back everything");
    assert_eq!(t.eventlog_counts("events").await, [1, 0, 0]);
}

async fn no_policy_retries_a_partial_commit(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let budget = || Budget::new(9).base(Duration::ZERO);
    let everything = RetryPolicy::none()
        .with(ErrorKind::PartlyCommitted, budget())
        .with(ErrorKind::Stale, budget())
        .with(ErrorKind::Refused, budget());
    let action = made_stale_on(t, &accounts[2]);
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard().retry(everything);
    match call.await.unwrap_err() {
        ExecuteError::PartlyCommitted { committed, failed, .. } => {
            assert_eq!((&committed[..], failed), (&[FIRST, SECOND][..], THIRD));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(action.runs(), 1);
    assert_versions(t, &accounts, &[2, 2, 2]).await;
    assert_eq!(t.eventlog_counts("events").await, [1, 1, 0]);
}

async fn a_partial_commit_is_listed_until_it_is_resolved(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let action = made_stale_on(t, &accounts[1]);
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    let id = call.action_id();
    call.await.unwrap_err();
    for databases in [t.databases.clone(), t.open_again().await] {
        let listed = databases.partial_commits().await.unwrap();
        assert_eq!(listed.len(), 1);
        let partial = &listed[0];
        assert_eq!((partial.action, &*partial.action_name), (id, "sharding.take"));
        assert_eq!(partial.namespace, "com.example.sharding");
        assert_eq!((&partial.committed[..], &partial.missing[..]), (&[FIRST][..], &SHARDS[1..]));
        assert_eq!(partial.unreachable, []);
        assert_eq!(partial.committed_date, stored_instant(0));
    }
    t.databases.resolve_partial_commit(id).await.unwrap();
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
    assert_eq!(t.eventlog_counts("events").await, [1, 0, 0], "the events stay");
    t.databases.resolve_partial_commit(id).await.unwrap();
}

async fn an_unreachable_shard_does_not_hide_a_partial_commit(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let action = made_stale_on(t, &accounts[1]);
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    let id = call.action_id();
    call.await.unwrap_err();
    let hide = |shard| async move {
        let shard = t.on(shard);
        shard.hide(&shard.eventlog("cross_shard_parts")).await;
    };
    hide(SECOND).await;
    let listed = t.databases.partial_commits().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].missing[..], &listed[0].unreachable[..]), (&[THIRD][..], &[SECOND][..]));
    assert_eq!(executor.outcome(id).await.unwrap(), Outcome::PartlyCommitted);
    // Resolving fails because a shard is unreachable. It may be repeated.
    t.databases.resolve_partial_commit(id).await.unwrap_err();
    hide(FIRST).await;
    hide(THIRD).await;
    t.databases.partial_commits().await.unwrap_err();
}

async fn effects_do_not_run_after_a_partial_commit(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let ran = Arc::new(std::sync::atomic::AtomicBool::new(false));
    t.on(SECOND).overtake(accounts[1].id).await;
    let action = stage({
        let ran = ran.clone();
        move |ctx| {
            for account in accounts.clone() {
                ctx.plan().update(account.apply(|account| account.rank = 1));
            }
            let ran = ran.clone();
            ctx.plan().after_commit("note", move |_| async move {
                ran.store(true, std::sync::atomic::Ordering::SeqCst);
                Ok::<_, std::io::Error>(())
            });
        }
    });
    let error = executor.execute(&action, Nothing {}).allow_cross_shard().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PartlyCommitted);
    // Effects of a later action run after those that an earlier action left on its task.
    executor.execute(&stage(|_| ()), Nothing {}).await.unwrap();
    assert!(!ran.load(std::sync::atomic::Ordering::SeqCst));
    assert_eq!(executor.effect_failures(), 0);
}

async fn partial_commits_are_listed_oldest_first(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let mut expected = Vec::new();
    for seconds in [20, 10, 30] {
        t.set_clock(seconds);
        let now = [
            t.accounts().get(accounts[0].id).await.unwrap(),
            t.accounts().get(accounts[1].id).await.unwrap(),
        ];
        let action = made_stale_on(t, &now[1]);
        let call = executor.execute(&action, route(&now)).allow_cross_shard();
        expected.push((seconds, call.action_id()));
        assert_eq!(call.await.unwrap_err().kind(), ErrorKind::PartlyCommitted);
    }
    expected.sort();
    let listed = t.databases.partial_commits().await.unwrap();
    let found: Vec<_> = listed.iter().map(|partial| partial.action).collect();
    assert_eq!(found, expected.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
}
