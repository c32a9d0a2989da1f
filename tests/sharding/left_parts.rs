//! Records of cross-shard actions that were not deleted, because a shard or the process went away: they
//! say what the action is, also when its events are gone.

use ekbatan::action::{ErrorKind, Outcome};
use ekbatan::db::ActionId;
use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use support::until;

use crate::actions::{Take, route};
use crate::outcome::insert_cross_shard_part;
use crate::partial::made_stale_on;
use crate::shards::{FIRST, SECOND, SHARDS, THIRD, TestShards, key_at};

// The policy does not depend on the database.
support::test_matrix! {
    #[tokio::test]
    |layout| &crate::shards::TestShards::start(layout).await;
    [on_sqlite_only = crate::shards::Layout::Sqlite]
    [
        a_complete_action_stays_complete_after_its_events,
        the_record_of_the_last_shard_is_deleted_last,
        a_shard_that_is_away_keeps_the_last_record,
        a_resolved_action_keeps_its_last_record_until_the_others_are_gone,
        the_shards_before_the_last_record_have_committed,
    ]
}

/// Commits an action on all shards, and waits until its records are deleted.
async fn complete_action(t: &TestShards, executor: &ActionExecutor) -> ActionId {
    let accounts = t.three_accounts().await;
    let action = Take::default();
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    let id = call.action_id();
    call.await.unwrap();
    until("the records are deleted", async || parts(t).await == [0; 3]).await;
    id
}

async fn parts(t: &TestShards) -> [usize; 3] {
    t.eventlog_counts("cross_shard_parts").await
}

/// Has the deletion of records on this shard fail, or succeed again.
async fn refuse_deletion(t: &TestShards, shard: ShardIdentifier, refused: bool) {
    let sql = if refused {
        "CREATE TRIGGER keep_parts BEFORE DELETE ON eventlog_cross_shard_parts \
         BEGIN SELECT RAISE(ABORT, 'kept on purpose'); END"
    } else {
        "DROP TRIGGER keep_parts"
    };
    t.on(shard).execute(sql).await;
}

/// Deletes the events of all shards, as a retention does when they are old.
async fn prune_events(t: &TestShards) {
    for shard in SHARDS {
        let old = "UPDATE eventlog_events SET delivered = 1, completion_date = '2020-01-02T03:04:05.000000Z'";
        t.on(shard).execute(old).await;
    }
    t.databases.prune_outbox(Databases::OUTBOX_KEPT).await.unwrap();
    assert_eq!(t.eventlog_counts("events").await, [0; 3]);
}

async fn a_complete_action_stays_complete_after_its_events(t: &TestShards) {
    let executor = t.executor().await;
    let id = complete_action(t, &executor).await;
    insert_cross_shard_part(t, THIRD, id).await;
    prune_events(t).await;
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
    assert_eq!(parts(t).await, [0; 3], "what was left is deleted");
}

/// While the record of the first shard cannot be deleted, that of the last one stays.
async fn the_record_of_the_last_shard_is_deleted_last(t: &TestShards) {
    let executor = t.executor().await;
    let id = complete_action(t, &executor).await;
    for shard in SHARDS {
        insert_cross_shard_part(t, shard, id).await;
    }
    prune_events(t).await;
    refuse_deletion(t, FIRST, true).await;
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
    assert_eq!(parts(t).await, [1, 0, 1]);
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
    refuse_deletion(t, FIRST, false).await;
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
    assert_eq!(parts(t).await, [0; 3]);
}

/// The same for the deletion that follows the commit.
async fn a_shard_that_is_away_keeps_the_last_record(t: &TestShards) {
    let executor = t.executor().await;
    let accounts = t.three_accounts().await;
    refuse_deletion(t, FIRST, true).await;
    executor.execute(&Take::default(), route(&accounts)).allow_cross_shard().await.unwrap();
    until("the others are deleted", async || parts(t).await[1] == 0).await;
    prune_events(t).await;
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
    assert_eq!(parts(t).await, [1, 0, 1]);
}

async fn a_resolved_action_keeps_its_last_record_until_the_others_are_gone(t: &TestShards) {
    let executor = t.executor().await;
    let accounts = t.three_accounts().await;
    let action = made_stale_on(t, &accounts[2]);
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    let id = call.action_id();
    assert_eq!(call.await.unwrap_err().kind(), ErrorKind::PartlyCommitted);
    refuse_deletion(t, FIRST, true).await;
    t.databases.resolve_partial_commit(id).await.unwrap_err();
    assert_eq!(parts(t).await, [1, 1, 0]);
    prune_events(t).await;
    let listed = t.databases.partial_commits().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].committed[..], &listed[0].missing[..]), (&SHARDS[..2], &[THIRD][..]));
    refuse_deletion(t, FIRST, false).await;
    t.databases.resolve_partial_commit(id).await.unwrap();
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
    assert_eq!(parts(t).await, [0; 3]);
}

/// The home of a key commits before the other shards, which are in their order.
async fn the_shards_before_the_last_record_have_committed(t: &TestShards) {
    let executor = t.executor().await;
    let accounts = t.three_accounts().await;
    let action = made_stale_on(t, &accounts[1]);
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    let call = call.idempotency_key(key_at(&executor, THIRD));
    let id = call.action_id();
    assert_eq!(call.await.unwrap_err().kind(), ErrorKind::PartlyCommitted);
    assert_eq!(parts(t).await, [1, 0, 1]);
    assert_eq!(executor.outcome(id).await.unwrap(), Outcome::PartlyCommitted);
    prune_events(t).await;
    for left in [[1, 0, 1], [1, 0, 0]] {
        if left[2] == 0 {
            t.on(THIRD).execute("DELETE FROM eventlog_cross_shard_parts").await;
        }
        assert_eq!(parts(t).await, left);
        let listed = t.databases.partial_commits().await.unwrap();
        assert_eq!(listed.len(), 1);
        let (committed, missing) = (&listed[0].committed[..], &listed[0].missing[..]);
        assert_eq!((committed, missing), (&[FIRST, THIRD][..], &[SECOND][..]));
    }
}
