//! Reads over shards: behaviour 52.

use std::pin::pin;

use ekbatan::prelude::*;
use ekbatan::repository::{Column, Condition, Direction, PageRequest};
use futures_util::TryStreamExt;

use crate::models::{Account, account, quiet};
use crate::shards::{FIRST, SECOND, SHARDS, THIRD, TestShards};

on_every_layout! {
    reads_by_condition_query_every_shard,
    rows_are_returned_in_the_order_of_the_shards,
    deleted_rows_are_returned_from_no_shard,
    a_read_by_id_queries_one_shard,
    find_by_ids_queries_only_the_shards_of_the_ids,
    one_row_of_two_shards_is_not_unique,
    a_failed_shard_fails_the_read_and_is_named,
    find_where_reachable_returns_rows_of_reachable_shards,
    an_invalid_query_is_one_error_for_all_shards,
    a_transaction_reads_its_own_shard_only,
    the_last_call_says_where_a_repository_reads,
}

async fn reads_by_condition_query_every_shard(t: &TestShards) {
    let stored = t.three_accounts().await;
    let accounts = t.accounts();
    assert_eq!(accounts.count().await.unwrap(), 3);
    assert_eq!(accounts.count_where(Account::RANK.eq(0)).await.unwrap(), 3);
    for account in &stored {
        let owner = || Account::OWNER.eq(&*account.owner);
        assert_eq!(accounts.find_where(owner()).await.unwrap(), std::slice::from_ref(account));
        assert_eq!(accounts.find_one(owner()).await.unwrap().as_ref(), Some(account));
        assert!(accounts.exists_where(owner()).await.unwrap());
        assert_eq!(accounts.count_where(owner()).await.unwrap(), 1);
    }
    assert!(!accounts.exists_where(Account::OWNER.eq("nobody")).await.unwrap());
    assert_eq!(accounts.find_one(Account::OWNER.eq("nobody")).await.unwrap(), None);
    assert_eq!(accounts.find_by_ids(&[]).await.unwrap(), []);
}

async fn rows_are_returned_in_the_order_of_the_shards(t: &TestShards) {
    // The rows, and so their ids, are created in another order.
    for shard in [THIRD, FIRST, SECOND] {
        t.accounts().add(quiet(account(shard, "a"))).await.unwrap();
    }
    let shards = |accounts: Vec<Stored<Account>>| -> Vec<_> {
        accounts.iter().map(|account| account.id.shard().unwrap()).collect()
    };
    assert_eq!(shards(t.accounts().find_all().await.unwrap()), SHARDS);
    let found = t.accounts().find_where(Account::OWNER.eq("a")).await.unwrap();
    assert_eq!(shards(found), SHARDS);
    let listed: Vec<_> = t.databases.shards().map(|shard| shard.identifier()).collect();
    assert_eq!(listed, SHARDS);
}

async fn deleted_rows_are_returned_from_no_shard(t: &TestShards) {
    let accounts = t.accounts();
    for stored in t.three_accounts().await {
        accounts.delete(stored).await.unwrap();
    }
    assert_eq!(accounts.find_all().await.unwrap(), []);
    assert_eq!(accounts.count().await.unwrap(), 0);
    assert!(!accounts.exists_where(Condition::all()).await.unwrap());
    assert_eq!(accounts.page(PageRequest::first(5)).await.unwrap().rows, []);
    let mut streamed = pin!(accounts.stream(Condition::all()));
    assert_eq!(streamed.try_next().await.unwrap(), None);
}

/// Queries of the other shards would fail: a result shows that they were not queried.
async fn a_read_by_id_queries_one_shard(t: &TestShards) {
    let stored = t.three_accounts().await;
    for shard in [FIRST, THIRD] {
        t.on(shard).hide("accounts").await;
    }
    let (accounts, id) = (t.accounts(), stored[1].id);
    assert_eq!(accounts.get(id).await.unwrap(), stored[1]);
    assert_eq!(accounts.find(id).await.unwrap().as_ref(), Some(&stored[1]));
    assert!(accounts.exists(id).await.unwrap());
    assert!(!accounts.exists(ShardedId::new(SECOND)).await.unwrap());
    for other in [&stored[0], &stored[2]] {
        let error = accounts.exists(other.id).await.unwrap_err();
        assert!(matches!(error, ReadError::Database(_)), "one shard was queried: {error:?}");
    }
}

async fn find_by_ids_queries_only_the_shards_of_the_ids(t: &TestShards) {
    let stored = t.three_accounts().await;
    t.on(FIRST).hide("accounts").await;
    let ids = [stored[2].id, stored[1].id, stored[2].id, ShardedId::new(SECOND)];
    let found = t.accounts().find_by_ids(&ids).await.unwrap();
    assert_eq!(found, stored[1..], "each known id once");
    let error = t.accounts().find_by_ids(&[stored[0].id, stored[1].id]).await.unwrap_err();
    match error {
        ReadError::Shards { failed, answered, .. } => {
            assert_eq!((failed.len(), failed[0].shard), (1, FIRST));
            assert_eq!(answered, [SECOND], "the third shard has none of the ids");
        }
        other => panic!("{other:?}"),
    }
}

async fn one_row_of_two_shards_is_not_unique(t: &TestShards) {
    for shard in [FIRST, THIRD] {
        t.accounts().add(quiet(account(shard, "twin"))).await.unwrap();
    }
    let error = t.accounts().find_one(Account::OWNER.eq("twin")).await.unwrap_err();
    assert!(matches!(error, ReadError::NotUnique { model: "Account", .. }), "{error:?}");
}

fn assert_second_failed(error: &ReadError) {
    match error {
        ReadError::Shards { failed, answered, .. } => {
            let shards: Vec<_> = failed.iter().map(|failure| failure.shard).collect();
            assert_eq!((&shards[..], &answered[..]), (&[SECOND][..], &[FIRST, THIRD][..]));
        }
        other => panic!("{other:?}"),
    }
    assert!(error.database_error().is_some());
    let text = error.to_string();
    assert!(text.contains("shard 0/1: ") && text.contains("0/0, 3/7 answered"), "{text}");
}

async fn a_failed_shard_fails_the_read_and_is_named(t: &TestShards) {
    t.three_accounts().await;
    t.on(SECOND).hide("accounts").await;
    let accounts = t.accounts();
    for error in [
        accounts.find_all().await.map(drop).unwrap_err(),
        accounts.find_one(Account::RANK.gt(5)).await.map(drop).unwrap_err(),
        accounts.count().await.map(drop).unwrap_err(),
        accounts.exists_where(Condition::all()).await.map(drop).unwrap_err(),
        accounts.page(PageRequest::first(2)).await.map(drop).unwrap_err(),
        pin!(accounts.stream(Condition::all())).try_next().await.map(drop).unwrap_err(),
    ] {
        assert_second_failed(&error);
    }
    t.on(SECOND).show("accounts").await;
    assert_eq!(accounts.count().await.unwrap(), 3);
}

async fn find_where_reachable_returns_rows_of_reachable_shards(t: &TestShards) {
    let stored = t.three_accounts().await;
    let all = t.accounts().find_where_reachable(Condition::all()).await.unwrap();
    assert_eq!(all.rows, stored);
    assert!(all.unreachable.is_empty());
    t.on(SECOND).hide("accounts").await;
    let some = t.accounts().find_where_reachable(Condition::all()).await.unwrap();
    assert_eq!(some.rows, [stored[0].clone(), stored[2].clone()]);
    let shards: Vec<_> = some.unreachable.iter().map(|failure| failure.shard).collect();
    assert_eq!(shards, [SECOND]);
    t.on(FIRST).hide("accounts").await;
    t.on(THIRD).hide("accounts").await;
    let none = t.accounts().find_where_reachable(Condition::all()).await.unwrap();
    assert_eq!((none.rows.len(), none.unreachable.len()), (0, 3));
}

/// The table has no such column.
const ABSENT: Column<Account, i64> = Column::new("absent");

async fn an_invalid_query_is_one_error_for_all_shards(t: &TestShards) {
    let accounts = t.accounts();
    for error in [
        accounts.find_where(ABSENT.eq(1)).await.map(drop).unwrap_err(),
        accounts.find_where_reachable(ABSENT.eq(1)).await.map(drop).unwrap_err(),
        accounts
            .page(PageRequest::first(1).order_by(ABSENT, Direction::Ascending))
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        assert!(matches!(error, ReadError::Condition { model: "Account", .. }), "{error:?}");
    }
}

async fn a_transaction_reads_its_own_shard_only(t: &TestShards) {
    let stored = t.three_accounts().await;
    t.on(FIRST).hide("accounts").await;
    let transactions = t.databases.shard(SECOND).unwrap().transactions();
    let found: Result<_, _> = transactions
        .in_transaction(async |transaction| {
            let accounts = t.accounts().within(&transaction);
            assert_eq!(accounts.count().await?, 1);
            accounts.find_all().await
        })
        .await;
    assert_eq!(found.unwrap(), stored[1..2]);
}

async fn the_last_call_says_where_a_repository_reads(t: &TestShards) {
    let stored = t.three_accounts().await;
    let third = t.databases.shard(THIRD).unwrap();
    let transactions = t.databases.shard(SECOND).unwrap().transactions();
    let read: Result<(), _> = transactions
        .in_transaction(async |transaction| {
            let within = t.accounts().within(&transaction);
            assert_eq!(within.find_all().await?, stored[1..2]);
            assert_eq!(within.clone().on_shard(&third).find_all().await?, stored[2..]);
            assert_eq!(within.on_replica().find_all().await?, stored);
            Ok::<_, ReadError>(())
        })
        .await;
    read.unwrap();
}
