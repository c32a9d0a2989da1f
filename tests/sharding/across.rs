//! Cross-shard actions that commit on every shard: behaviours 56 to 58.

use std::sync::{Arc, Mutex};

use ekbatan::action::{Budget, ErrorKind, Outcome, RetryPolicy};
use ekbatan::db::Committed;
use ekbatan::domain::New;
use ekbatan::prelude::*;
use support::until;

use crate::actions::{Nothing, Take, route, stage};
use crate::models::{AccountEvent, account, note, order, quiet};
use crate::shards::{FIRST, SECOND, SHARDS, THIRD, TestShards, UNKNOWN, executor_on};

on_every_layout! {
    events_are_written_only_to_the_shard_of_their_model,
    a_cross_shard_action_is_refused_before_anything_is_sent,
    an_allowed_cross_shard_action_commits_on_each_shard,
    events_are_numbered_across_the_shards_of_an_action,
    an_entity_writes_a_sentinel_event_on_its_shard,
    the_cross_shard_records_are_removed_after_every_shard_committed,
    a_stale_row_on_the_first_shard_is_retried,
    a_permanently_stale_row_leaves_nothing_on_any_shard,
    rows_of_unknown_shards_that_map_to_the_default_shard_are_not_cross_shard,
    effects_run_after_every_shard_committed,
}

async fn events_are_written_only_to_the_shard_of_their_model(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    executor.execute(&Take::default(), route(&accounts[1..2])).await.unwrap();
    assert_eq!(t.eventlog_counts("events").await, [0, 1, 0]);
    let second = t.on(SECOND);
    let events = second
        .select(&["event_type", "model_id"], &format!("FROM {}", second.eventlog("events")))
        .await;
    let id = accounts[1].id.to_string();
    assert_eq!(events, [[Some("AccountChanged".to_owned()), Some(id)]]);
}

async fn a_cross_shard_action_is_refused_before_anything_is_sent(t: &TestShards) {
    let executor = t.executor().await;
    let action = stage(|ctx| {
        for shard in [THIRD, FIRST, THIRD] {
            ctx.plan().add(quiet(account(shard, "a")));
        }
    });
    // A write would block here, and the call would not return.
    let held = [t.on(FIRST).hold_writers().await, t.on(THIRD).hold_writers().await];
    let call = executor.execute(&action, Nothing {});
    let id = call.action_id();
    match call.await.unwrap_err() {
        ExecuteError::CrossShard { shards, .. } => assert_eq!(shards, [FIRST, THIRD]),
        other => panic!("{other:?}"),
    }
    drop(held);
    assert_eq!(action.runs(), 1);
    assert_eq!(executor.outcome(id).await.unwrap(), Outcome::NotCommitted);
    t.assert_nothing_written().await;
    // A policy that retries every kind does not help.
    let budget = Budget::new(5).base(std::time::Duration::ZERO);
    let eager = RetryPolicy::none().with(ErrorKind::CrossShard, budget).without(ErrorKind::Stale);
    let error = executor.execute(&action, Nothing {}).retry(eager).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CrossShard);
    t.assert_nothing_written().await;
}

async fn an_allowed_cross_shard_action_commits_on_each_shard(t: &TestShards) {
    let executor = t.executor().await;
    let action = stage(|ctx| {
        SHARDS.map(|shard| {
            let opened = AccountEvent::Opened { owner: "a".to_owned() };
            ctx.plan().add(New::new(account(shard, "a"), opened))
        })
    });
    let call = executor.execute(&action, Nothing {}).principal("alice").allow_cross_shard();
    let id = call.action_id();
    let (stored, committed) = call.with_commit().await.unwrap();
    assert_eq!(committed.unwrap().action, id);
    assert_eq!(t.counts("accounts").await, [1, 1, 1]);
    for account in &stored {
        assert_eq!(t.accounts().get(account.id).await.unwrap(), *account);
    }
    for (shard, account) in SHARDS.into_iter().zip(&stored) {
        let shard = t.on(shard);
        let columns = ["action_id", "model_id", "principal"];
        let events = shard.select(&columns, &format!("FROM {}", shard.eventlog("events"))).await;
        let own = [id.to_string(), account.id.to_string(), "alice".to_owned()];
        assert_eq!(events, [own.map(Some)]);
    }
    assert_eq!(executor.outcome(id).await.unwrap(), Outcome::Committed);
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
}

async fn events_are_numbered_across_the_shards_of_an_action(t: &TestShards) {
    let executor = t.executor().await;
    let action = stage(|ctx| {
        let opened = || AccountEvent::Opened { owner: "a".to_owned() };
        ctx.plan().add(New::new(account(THIRD, "a"), [opened(), opened()]));
        ctx.plan().add(New::new(account(FIRST, "a"), opened()));
        ctx.plan().add(New::new(account(THIRD, "a"), opened()));
    });
    executor.execute(&action, Nothing {}).allow_cross_shard().await.unwrap();
    for (shard, expected) in [(FIRST, vec!["2"]), (SECOND, vec![]), (THIRD, vec!["0", "1", "3"])] {
        let shard = t.on(shard);
        let tail = format!("FROM {} ORDER BY event_index", shard.eventlog("events"));
        let found: Vec<_> = shard.select(&["event_index"], &tail).await.concat();
        assert_eq!(found.into_iter().flatten().collect::<Vec<_>>(), expected);
    }
}

async fn an_entity_writes_a_sentinel_event_on_its_shard(t: &TestShards) {
    let executor = t.executor().await;
    let action = stage(|ctx| {
        let opened = AccountEvent::Opened { owner: "a".to_owned() };
        ctx.plan().add(New::new(account(FIRST, "a"), opened));
        ctx.plan().add(quiet(note(SECOND, "a")));
        ctx.plan().add(quiet(order("x")));
    });
    let call = executor.execute(&action, Nothing {}).allow_cross_shard();
    let id = call.action_id();
    call.await.unwrap();
    assert_eq!(t.counts("notes").await, [0, 1, 0]);
    assert_eq!(t.counts("orders").await, [1, 0, 0]);
    assert_eq!(t.eventlog_counts("events").await, [1, 1, 0]);
    let second = t.on(SECOND);
    let columns = ["action_id", "event_type", "model_id", "model_type", "payload"];
    let events = second.select(&columns, &format!("FROM {}", second.eventlog("events"))).await;
    assert_eq!(events, [[Some(id.to_string()), None, None, None, None]]);
}

async fn the_cross_shard_records_are_removed_after_every_shard_committed(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    for _ in 0..3 {
        let action = Take::default();
        let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
        let id = call.action_id();
        call.await.unwrap();
        // The outcome stays `Committed` while the records are removed.
        assert_eq!(executor.outcome(id).await.unwrap(), Outcome::Committed);
        assert_eq!(t.databases.partial_commits().await.unwrap(), []);
    }
    until("the cross-shard records are removed", async || {
        t.eventlog_counts("cross_shard_parts").await == [0; 3]
    })
    .await;
}

async fn a_stale_row_on_the_first_shard_is_retried(t: &TestShards) {
    let accounts = Arc::new(t.three_accounts().await);
    let executor = t.executor().await;
    let (other, seen) = (t.open_again().await, accounts.clone());
    let action = Take::with(move |attempt| {
        let (other, first) = (other.clone(), seen[0].id);
        Box::pin(async move {
            if attempt == 1 {
                let accounts = other.repository::<crate::models::Account>();
                let overtaken = accounts.get(first).await.unwrap();
                let overtaken = overtaken.apply(|account| account.rank = 7);
                // A task of its own may write inside `perform`.
                let overtaking = tokio::spawn(async move { accounts.update(overtaken).await });
                overtaking.await.unwrap().unwrap();
            }
        })
    });
    let call = executor.execute(&action, route(&accounts[..2])).allow_cross_shard();
    assert_eq!(call.await.unwrap(), 2);
    for (account, version) in accounts[..2].iter().zip([3, 2]) {
        let now = t.accounts().get(account.id).await.unwrap();
        assert_eq!((now.version(), now.balance), (version, Decimal::from(99)));
    }
    assert_eq!(t.eventlog_counts("events").await, [1, 1, 0]);
}

async fn a_permanently_stale_row_leaves_nothing_on_any_shard(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let action = stage({
        let accounts = accounts.clone();
        move |ctx| {
            for account in accounts.clone() {
                ctx.plan().update(account.apply(|account| account.rank = 1));
            }
        }
    });
    t.on(FIRST).overtake(accounts[0].id).await;
    let call = executor.execute(&action, Nothing {}).allow_cross_shard();
    let error = call.retry(RetryPolicy::none()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale);
    assert_eq!(t.accounts().count_where(crate::models::Account::RANK.eq(0)).await.unwrap(), 3);
    for table in ["events", "cross_shard_parts"] {
        assert_eq!(t.eventlog_counts(table).await, [0; 3], "{table}");
    }
}

async fn rows_of_unknown_shards_that_map_to_the_default_shard_are_not_cross_shard(t: &TestShards) {
    let executor = executor_on(&t.open_lenient().await).await;
    let action = stage(|ctx| {
        ctx.plan().add(quiet(account(UNKNOWN, "a")));
        ctx.plan().add(quiet(account(SECOND, "a")));
    });
    match executor.execute(&action, Nothing {}).await.unwrap_err() {
        ExecuteError::CrossShard { shards, .. } => assert_eq!(shards, [FIRST, SECOND]),
        other => panic!("{other:?}"),
    }
    executor.execute(&action, Nothing {}).allow_cross_shard().await.unwrap();
    assert_eq!(t.counts("accounts").await, [1, 1, 0]);
}

async fn effects_run_after_every_shard_committed(t: &TestShards) {
    let executor = t.executor().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let action = stage({
        let (seen, executor, databases) = (seen.clone(), executor.clone(), t.databases.clone());
        move |ctx| {
            for shard in SHARDS {
                ctx.plan().add(quiet(account(shard, "a")));
            }
            let (seen, executor, databases) = (seen.clone(), executor.clone(), databases.clone());
            ctx.plan().after_commit("look", move |committed: Committed| async move {
                let count = databases.repository::<crate::models::Account>().count().await?;
                let outcome = executor.outcome(committed.action).await.unwrap();
                seen.lock().unwrap().push((count, outcome));
                Ok::<_, ReadError>(())
            });
        }
    });
    executor.execute(&action, Nothing {}).allow_cross_shard().await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [(3, Outcome::Committed)]);
    assert_eq!(executor.effect_failures(), 0);
    // No effect runs for an action that did not commit.
    executor.execute(&action, Nothing {}).await.unwrap_err();
    assert_eq!(seen.lock().unwrap().len(), 1);
}
