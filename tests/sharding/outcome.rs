//! The outcome of a cross-shard action while it runs, while its records are being removed, and
//! while a shard is unreachable.

use std::future::IntoFuture;
use std::sync::Arc;

use ekbatan::action::Outcome;
use ekbatan::db::ActionId;
use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::{Dialect, until};
use tokio::sync::Notify;

use crate::actions::{Take, route};
use crate::shards::{FIRST, SECOND, SHARDS, THIRD, TestShards, executor_on};

on_every_layout! {
    the_outcome_of_a_running_action_is_awaited,
    partly_removed_cross_shard_records_mean_a_complete_action,
    an_unreachable_shard_hides_only_outcomes_that_depend_on_it,
}

// The test asks the server of the shard whether the lane waits.
support::test_matrix! {
    #[tokio::test]
    |layout| &crate::shards::TestShards::start(layout).await;
    [
        postgres_lane = crate::shards::Layout::Postgres,
        mariadb_lane = crate::shards::Layout::Mixed,
    ]
    [the_outcome_of_a_dropped_call_waits_for_the_lane_of_its_shard]
}

async fn the_outcome_of_a_running_action_is_awaited(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    // On one shard other than the default shard, and on several shards.
    for accounts in [&accounts[2..], &accounts[1..]] {
        let (reached, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let action = Take::with({
            let (reached, go_on) = (reached.clone(), go_on.clone());
            move |_| {
                let (reached, go_on) = (reached.clone(), go_on.clone());
                async move {
                    reached.notify_one();
                    go_on.notified().await;
                }
                .boxed()
            }
        });
        let mut now = Vec::new();
        for account in accounts {
            now.push(t.accounts().get(account.id).await.unwrap());
        }
        let call = executor.execute(&action, route(&now)).allow_cross_shard();
        let id = call.action_id();
        let asking = async {
            reached.notified().await;
            let mut outcome = Box::pin(executor.outcome(id));
            // The query has reached the shards long before the action continues.
            let early = tokio::time::timeout(std::time::Duration::from_millis(100), &mut outcome);
            assert!(early.await.is_err(), "the action still runs");
            go_on.notify_one();
            outcome.await.unwrap()
        };
        let (answer, outcome) = tokio::join!(call.into_future(), asking);
        answer.unwrap();
        assert_eq!(outcome, Outcome::Committed);
    }
}

/// The caller is gone while a lane of another shard than the default one commits.
async fn the_outcome_of_a_dropped_call_waits_for_the_lane_of_its_shard(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let second = t.on(SECOND);
    let held = second.hold_writers().await;
    let id = Uuid::now_v7();
    let caller = tokio::spawn({
        let (executor, route) = (executor.clone(), route(&accounts[1..2]));
        async move { executor.execute(&Take::default(), route).with_action_id(id).await }
    });
    until("a lane commits", async || second.has_blocked_writer().await).await;
    caller.abort();
    let _ = caller.await;
    let mut outcome = Box::pin(executor.outcome(ActionId(id)));
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), &mut outcome).await;
    assert!(early.is_err(), "the lane still commits: {early:?}");
    drop(held);
    assert_eq!(outcome.await.unwrap(), Outcome::Committed);
    assert_eq!(t.accounts().get(accounts[1].id).await.unwrap().version(), 2);
}

/// A process that dies while it removes the records leaves some of them.
async fn partly_removed_cross_shard_records_mean_a_complete_action(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let action = Take::default();
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    let call = call.idempotency_key("one");
    let id = call.action_id();
    call.await.unwrap();
    until("the cross-shard records are removed", async || {
        t.eventlog_counts("cross_shard_parts").await == [0; 3]
    })
    .await;
    for databases in [t.databases.clone(), t.open_again().await] {
        for shard in [SECOND, THIRD] {
            insert_cross_shard_part(t, shard, id).await;
        }
        let executor = executor_on(&databases).await;
        assert_eq!(executor.outcome(id).await.unwrap(), Outcome::Committed);
        let again = executor.execute(&action, route(&accounts)).allow_cross_shard();
        assert_eq!(again.idempotency_key("one").await.unwrap(), 1, "the stored output");
        assert_eq!(databases.partial_commits().await.unwrap(), []);
        assert_eq!(t.eventlog_counts("cross_shard_parts").await, [0; 3]);
    }
    assert_eq!(action.runs(), 1);
}

/// Inserts the record of one shard for an action on all three.
pub async fn insert_cross_shard_part(t: &TestShards, shard: ShardIdentifier, id: ActionId) {
    let shards = SHARDS.map(|shard| shard.to_string()).join(", ");
    let on = t.on(shard);
    // The format in which each database stores dates.
    let date = match on.dialect {
        Dialect::Sqlite => "2026-01-02T03:04:05.000000Z",
        _ => "2026-01-02 03:04:05.000000",
    };
    on.execute(&format!(
        "INSERT INTO {} (action_id, shard, shards, namespace, action_name, committed_date) \
         VALUES ('{id}', '{shard}', '{shards}', 'a', 'b', '{date}')",
        on.eventlog("cross_shard_parts")
    ))
    .await;
}

async fn an_unreachable_shard_hides_only_outcomes_that_depend_on_it(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let mut ids = Vec::new();
    for accounts in [&accounts[..1], &accounts[2..]] {
        let action = Take::default();
        let call = executor.execute(&action, route(accounts));
        ids.push(call.action_id());
        call.await.unwrap();
    }
    let (on_first, on_third) = (ids[0], ids[1]);
    let third = t.on(THIRD);
    third.hide(&third.eventlog("events")).await;
    assert_eq!(executor.outcome(on_first).await.unwrap(), Outcome::Committed);
    executor.outcome(on_third).await.unwrap_err();
    // If the records name the unreachable shard, the outcome is unknown. If a reachable shard has
    // no record, it is known.
    insert_cross_shard_part(t, FIRST, on_first).await;
    assert_eq!(executor.outcome(on_first).await.unwrap(), Outcome::PartlyCommitted);
    third.show(&third.eventlog("events")).await;
    assert_eq!(executor.outcome(on_third).await.unwrap(), Outcome::Committed);
}
