//! The shard that a row is written to and read from: behaviours 49, 50 and 53 to 55.

use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;
use ekbatan::shard::ShardError;
use support::Recorder;

use crate::actions::{Nothing, Take, route, stage};
use crate::models::{Account, account, account_with, quiet};
use crate::shards::{FIRST, SECOND, SHARDS, THIRD, TestShards, UNKNOWN, executor_on};

on_every_layout! {
    a_row_is_written_only_to_the_shard_of_its_id,
    the_greatest_shard_is_read_back_from_a_stored_id,
    a_repository_refuses_rows_of_several_shards_in_one_batch,
    writing_to_an_unknown_shard_is_an_error_that_lists_the_known_shards,
    writing_a_uuid_without_a_shard_is_an_error,
    no_row_has_an_id_of_an_unknown_shard_or_of_none,
    the_configuration_may_map_unknown_shards_to_the_default_shard,
    unknown_shards_and_the_default_shard_may_be_written_together,
}

async fn a_row_is_written_only_to_the_shard_of_its_id(t: &TestShards) {
    let accounts = t.accounts();
    for (position, shard) in SHARDS.into_iter().enumerate() {
        let before = t.counts("accounts").await;
        let stored = accounts.add(quiet(account(shard, "somebody"))).await.unwrap();
        let mut expected = before;
        expected[position] += 1;
        assert_eq!(t.counts("accounts").await, expected);
        assert_eq!(accounts.get(stored.id).await.unwrap(), stored);
        let changed = stored.apply(|account| account.rank = 9);
        let updated = accounts.update(changed).await.unwrap();
        assert_eq!(accounts.get(updated.id).await.unwrap().rank, 9);
        accounts.delete(updated.clone()).await.unwrap();
        assert_eq!(accounts.find(updated.id).await.unwrap(), None);
        assert_eq!(t.counts("accounts").await, expected, "a delete is an update");
    }
}

async fn the_greatest_shard_is_read_back_from_a_stored_id(t: &TestShards) {
    let lenient = t.open_lenient().await;
    let greatest = ShardIdentifier::new(255, 63).unwrap();
    let accounts = lenient.repository::<Account>();
    let id = accounts.add(quiet(account(greatest, "a"))).await.unwrap().id;
    assert_eq!(accounts.get(id).await.unwrap().id.shard(), Some(greatest));
    assert!(ShardIdentifier::new(256, 0).is_err() && ShardIdentifier::new(0, 64).is_err());
}

async fn a_repository_refuses_rows_of_several_shards_in_one_batch(t: &TestShards) {
    let both = [quiet(account(THIRD, "a")), quiet(account(SECOND, "b"))];
    match t.accounts().add_all(both).await.unwrap_err() {
        WriteError::CrossShard { first, second, .. } => {
            assert_eq!((first, second), (THIRD, SECOND))
        }
        other => panic!("{other:?}"),
    }
    t.assert_nothing_written().await;
    let accounts = t.three_accounts().await;
    let changed = accounts.clone().into_iter().map(|account| account.apply(|a| a.rank = 1));
    let error = t.accounts().update_all(changed).await.unwrap_err();
    assert!(matches!(error, WriteError::CrossShard { .. }), "{error:?}");
    assert_eq!(t.accounts().find_all().await.unwrap(), accounts);
}

fn assert_unknown_shard(error: &ShardError) {
    match error {
        ShardError::Unknown { shard, known } => {
            assert_eq!((*shard, &known[..]), (UNKNOWN, &SHARDS[..]));
        }
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains("255/63"), "{error}");
    assert!(error.to_string().contains("0/0, 0/1, 3/7"), "{error}");
}

/// Clients send any id.
async fn no_row_has_an_id_of_an_unknown_shard_or_of_none(t: &TestShards) {
    let known = t.accounts().add(quiet(account(FIRST, "a"))).await.unwrap();
    let uuid = Uuid::from_u128(0x4 << 76 | 0b10 << 62);
    for id in [ShardedId::new(UNKNOWN), ShardedId::from_uuid(uuid)] {
        let accounts = t.accounts();
        let error = accounts.get(id).await.unwrap_err();
        assert!(matches!(error, ReadError::NotFound { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("there is no Account {id}"));
        let (recorder, guard) = Recorder::start();
        assert_eq!(accounts.find(id).await.unwrap(), None);
        drop(guard);
        let mut logged = recorder.all().into_iter();
        let logged = logged
            .find(|of| of.field("message") == Some("an id was read that no row has"))
            .unwrap();
        assert_eq!(
            (logged.field("model"), logged.field("id")),
            (Some("Account"), Some(&*id.to_string()))
        );
        assert!(!accounts.exists(id).await.unwrap());
        let found = accounts.find_by_ids(&[known.id, id]).await.unwrap();
        assert_eq!(found, std::slice::from_ref(&known));
        let transactions = t.databases.transactions();
        let found = transactions
            .in_transaction(async |transaction| accounts.within(&transaction).find(id).await)
            .await;
        assert_eq!(found.unwrap(), None);
    }
}

async fn writing_to_an_unknown_shard_is_an_error_that_lists_the_known_shards(t: &TestShards) {
    let accounts = t.accounts();
    let id = ShardedId::new(UNKNOWN);
    let known_and_unknown = [account(FIRST, "a"), account_with(id, "b")].map(quiet);
    match accounts.add_all(known_and_unknown).await.unwrap_err() {
        WriteError::Shard(error) => assert_unknown_shard(&error),
        other => panic!("{other:?}"),
    }
    let action = stage(move |ctx| {
        ctx.plan().add(quiet(account(FIRST, "a")));
        ctx.plan().add(quiet(account_with(id, "b")));
    });
    let executor = t.executor().await;
    match executor.execute(&action, Nothing {}).allow_cross_shard().await.unwrap_err() {
        ExecuteError::Shard(error) => assert_unknown_shard(&error),
        other => panic!("{other:?}"),
    }
    assert_eq!(action.runs(), 1, "the error is not retried");
    t.assert_nothing_written().await;
    assert!(matches!(t.databases.shard(UNKNOWN), Err(ShardError::Unknown { .. })));
}

async fn writing_a_uuid_without_a_shard_is_an_error(t: &TestShards) {
    let accounts = t.accounts();
    let uuid = Uuid::from_u128(0x4 << 76 | 0b10 << 62);
    let id = ShardedId::<Account>::from_uuid(uuid);
    match accounts.add(quiet(account_with(id, "a"))).await.unwrap_err() {
        WriteError::Shard(ShardError::NoShardInId { model, id, .. }) => {
            assert_eq!((model, id), ("Account", uuid));
        }
        other => panic!("{other:?}"),
    }
    let action = stage(move |ctx| drop(ctx.plan().add(quiet(account_with(id, "a")))));
    match t.executor().await.execute(&action, Nothing {}).await.unwrap_err() {
        ExecuteError::Shard(ShardError::NoShardInId { id, .. }) => assert_eq!(id, uuid),
        other => panic!("{other:?}"),
    }
    // A registry that maps unknown shards to the default shard refuses it as well.
    let lenient = t.open_lenient().await.repository::<Account>();
    assert!(lenient.add(quiet(account_with(id, "a"))).await.is_err());
    t.assert_nothing_written().await;
}

async fn the_configuration_may_map_unknown_shards_to_the_default_shard(t: &TestShards) {
    let lenient = t.open_lenient().await;
    let accounts = lenient.repository::<Account>();
    let stored = accounts.add(quiet(account(UNKNOWN, "a"))).await.unwrap();
    assert_eq!(t.counts("accounts").await, [1, 0, 0]);
    assert_eq!(accounts.get(stored.id).await.unwrap(), stored);
    assert_eq!(accounts.find_by_ids(&[stored.id]).await.unwrap(), std::slice::from_ref(&stored));
    assert!(accounts.exists(stored.id).await.unwrap());
    assert_eq!(accounts.count().await.unwrap(), 1, "counted once");
    assert_eq!(lenient.shard(UNKNOWN).unwrap().identifier(), FIRST);
    let executor = executor_on(&lenient).await;
    executor.execute(&Take::default(), route(std::slice::from_ref(&stored))).await.unwrap();
    assert_eq!(accounts.get(stored.id).await.unwrap().version(), 2);
    assert_eq!(t.eventlog_counts("events").await, [1, 0, 0]);
}

async fn unknown_shards_and_the_default_shard_may_be_written_together(t: &TestShards) {
    let lenient = t.open_lenient().await;
    let accounts = lenient.repository::<Account>();
    let together = [account(FIRST, "a"), account(UNKNOWN, "b")].map(quiet);
    accounts.add_all(together).await.unwrap();
    assert_eq!(t.counts("accounts").await, [2, 0, 0]);
    // An action on both is not a cross-shard action.
    let executor = executor_on(&lenient).await;
    let action = stage(|ctx| {
        ctx.plan().add(quiet(account(FIRST, "c")));
        ctx.plan().add(quiet(account(UNKNOWN, "d")));
    });
    executor.execute(&action, Nothing {}).await.unwrap();
    assert_eq!(t.counts("accounts").await, [4, 0, 0]);
    let apart = [account(SECOND, "e"), account(UNKNOWN, "f")].map(quiet);
    match accounts.add_all(apart).await.unwrap_err() {
        WriteError::CrossShard { first, second, .. } => {
            assert_eq!((first, second), (SECOND, FIRST))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(t.counts("accounts").await, [4, 0, 0]);
}
