//! Tokens of commits, where no shard has a replica.

use std::time::Duration;

use ekbatan::prelude::*;

use crate::actions::{Take, route};
use crate::shards::TestShards;

on_every_layout! {
    without_a_replica_a_commit_has_no_token,
    a_read_behind_a_token_is_made_on_the_primary_where_there_is_no_replica,
}

async fn without_a_replica_a_commit_has_no_token(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    for accounts in [&accounts[..1], &accounts[1..]] {
        let action = Take::default();
        let call = executor.execute(&action, route(accounts)).allow_cross_shard();
        let (_, committed) = call.with_commit().await.unwrap();
        let committed = committed.unwrap();
        assert_eq!(committed.token, None);
        assert!(committed.round_trips > 0);
    }
}

async fn a_read_behind_a_token_is_made_on_the_primary_where_there_is_no_replica(t: &TestShards) {
    let accounts = t.three_accounts().await;
    // As it comes from a process that knows of replicas.
    let token: CommitToken = "0/0 F/FFFFFFFF; 0/1 F/FFFFFFFF; 9/9 0/1".parse().unwrap();
    for patience in [Duration::ZERO, Duration::from_secs(600)] {
        let behind = t.accounts().on_replica_after(&token, patience);
        assert_eq!(behind.find_all().await.unwrap(), accounts);
        for account in &accounts {
            assert_eq!(behind.get(account.id).await.unwrap(), *account);
        }
    }
    assert_eq!(t.accounts().on_replica().find_all().await.unwrap(), accounts);
}
