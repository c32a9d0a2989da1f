//! The registry of shards: behaviours 51, 60 and 61.

use ekbatan::config::{DataSourceConfig, ShardMemberConfig};
use ekbatan::db::{Route, TransactionError};
use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;
use ekbatan::shard::ConnectError;

use crate::models::{account, quiet};
use crate::shards::{FIRST, SECOND, SHARDS, THIRD, TestShards, UNKNOWN};

on_every_layout! {
    a_rollback_on_one_shard_does_not_affect_a_transaction_on_another,
    a_transaction_refuses_rows_of_another_shard,
    a_transaction_refuses_ids_of_another_shard,
    every_shard_has_its_own_pool,
    without_a_replica_both_routes_use_one_pool,
    an_unconfigured_default_shard_is_an_error_before_any_pool_opens,
    shards_that_cannot_be_opened_are_named,
    closing_twice_is_harmless,
    any_shard_may_be_the_default_shard,
}

async fn a_rollback_on_one_shard_does_not_affect_a_transaction_on_another(t: &TestShards) {
    let on = |shard| t.databases.shard(shard).unwrap().transactions();
    let committed: Result<(), TransactionError<WriteError>> = on(SECOND)
        .in_transaction(async |outer| {
            t.accounts().within(&outer).add(quiet(account(SECOND, "kept"))).await?;
            let rolled_back: Result<(), TransactionError<&str>> = on(THIRD)
                .in_transaction(async |inner| {
                    let lost = quiet(account(THIRD, "lost"));
                    t.accounts().within(&inner).add(lost).await.unwrap();
                    Err("rolled back")
                })
                .await;
            assert!(matches!(rolled_back, Err(TransactionError::Inner("rolled back"))));
            Ok(())
        })
        .await;
    committed.unwrap();
    assert_eq!(t.counts("accounts").await, [0, 1, 0]);
}

async fn a_transaction_refuses_rows_of_another_shard(t: &TestShards) {
    let refused = t
        .databases
        .shard(SECOND)
        .unwrap()
        .transactions()
        .in_transaction(async |transaction| {
            let accounts = t.accounts().within(&transaction);
            accounts.add(quiet(account(SECOND, "a"))).await?;
            accounts.add(quiet(account(THIRD, "b"))).await
        })
        .await;
    match refused.unwrap_err() {
        TransactionError::Inner(WriteError::OtherShard { row, transaction, .. }) => {
            assert_eq!((row, transaction), (THIRD, SECOND));
        }
        other => panic!("{other:?}"),
    }
    t.assert_nothing_written().await;
}

/// `NotFound` would be the answer of the wrong shard.
async fn a_transaction_refuses_ids_of_another_shard(t: &TestShards) {
    let stored = t.three_accounts().await;
    let shard = t.databases.shard(SECOND).unwrap();
    let read: Result<(), TransactionError<ReadError>> = shard
        .transactions()
        .in_transaction(async |transaction| {
            let accounts = t.accounts().within(&transaction);
            assert_eq!(accounts.get(stored[1].id).await?, stored[1]);
            let other = stored[2].id;
            for error in [
                accounts.find(other).await.map(drop).unwrap_err(),
                accounts.exists(other).await.map(drop).unwrap_err(),
                accounts.find_by_ids(&[stored[1].id, other]).await.map(drop).unwrap_err(),
            ] {
                match error {
                    ReadError::OtherShard { id, row, transaction, .. } => {
                        assert_eq!((id, row, transaction), (other.uuid(), THIRD, SECOND));
                    }
                    other => panic!("{other:?}"),
                }
            }
            Ok(())
        })
        .await;
    read.unwrap();
}

async fn every_shard_has_its_own_pool(t: &TestShards) {
    let held: Result<(), TransactionError<ReadError>> = t
        .databases
        .shard(SECOND)
        .unwrap()
        .transactions()
        .in_transaction(async |_| {
            let holders: Vec<usize> = t
                .databases
                .shards()
                .map(|shard| shard.pool_status(Route::Primary).holders.len())
                .collect();
            assert_eq!(holders, [0, 1, 0]);
            Ok(())
        })
        .await;
    held.unwrap();
    let addresses: std::collections::HashSet<String> =
        t.databases.shards().map(|shard| shard.address().to_owned()).collect();
    assert_eq!(addresses.len(), 3);
}

async fn without_a_replica_both_routes_use_one_pool(t: &TestShards) {
    let shard = t.databases.shard(THIRD).unwrap();
    let held: Result<(), TransactionError<ReadError>> = shard
        .transactions()
        .in_transaction(async |_| {
            assert_eq!(shard.pool_status(Route::Replica).holders.len(), 1);
            Ok(())
        })
        .await;
    held.unwrap();
}

async fn an_unconfigured_default_shard_is_an_error_before_any_pool_opens(t: &TestShards) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new.sqlite");
    let new = DataSourceConfig::new(format!("sqlite:{}", file.display()));
    let fourth = ShardIdentifier::new(7, 7).unwrap();
    let config = t.config().shard(fourth, ShardMemberConfig::new(7, new)).default_shard(UNKNOWN);
    let error = Databases::connect(&config).await.map(drop).unwrap_err();
    assert!(matches!(error, ConnectError::Config(_)), "{error:?}");
    assert!(error.to_string().contains("255"), "{error}");
    assert!(!file.exists(), "a database was opened");
}

async fn shards_that_cannot_be_opened_are_named(t: &TestShards) {
    let nowhere = |file: &str| DataSourceConfig::new(format!("sqlite:/no/such/folder/{file}"));
    let (fourth, fifth) =
        (ShardIdentifier::new(4, 0).unwrap(), ShardIdentifier::new(5, 1).unwrap());
    let config = t
        .config()
        .shard(fifth, ShardMemberConfig::new(1, nowhere("b")))
        .shard(fourth, ShardMemberConfig::new(0, nowhere("a")));
    let error = Databases::connect(&config).await.map(drop).unwrap_err();
    match &error {
        ConnectError::Shards(failures) => {
            let shards: Vec<_> = failures.iter().map(|(shard, _)| *shard).collect();
            assert_eq!(shards, [fourth, fifth]);
        }
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains("shard 5/1: sqlite:/no/such/folder/b"), "{error}");
}

async fn closing_twice_is_harmless(t: &TestShards) {
    let stored = t.three_accounts().await;
    let executor = t.executor().await;
    t.databases.close().await;
    t.databases.close().await;
    for account in &stored {
        let error = t.accounts().get(account.id).await.unwrap_err();
        assert!(error.to_string().contains("closed"), "{error}");
    }
    let route = crate::actions::route(&stored[..1]);
    let error = executor.execute(&crate::actions::Take::default(), route).await.unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
}

async fn any_shard_may_be_the_default_shard(t: &TestShards) {
    let databases = Databases::connect(&t.config().default_shard(THIRD)).await.unwrap();
    assert_eq!(databases.default_shard().identifier(), THIRD);
    let listed: Vec<_> = databases.shards().map(|shard| shard.identifier()).collect();
    assert_eq!(listed, SHARDS, "the order of the shards is the same");
    databases.repository().add(quiet(crate::models::order("x"))).await.unwrap();
    databases.repository().add(quiet(account(FIRST, "a"))).await.unwrap();
    assert_eq!(t.counts("orders").await, [0, 0, 1]);
    assert_eq!(t.counts("accounts").await, [1, 0, 0]);
    // The default shard gets the row of an action that changes nothing.
    let executor = ActionExecutor::builder(&databases, "a").record_reads(true).build().await;
    let nothing = crate::actions::stage(|_| ());
    executor.unwrap().execute(&nothing, crate::actions::Nothing {}).await.unwrap();
    assert_eq!(t.eventlog_counts("events").await, [0, 0, 1]);
}
