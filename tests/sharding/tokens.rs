//! Tokens of commits, and reads behind them: where no shard has a replica, and where one lags.

use std::time::Duration;

use ekbatan::config::{DataSourceConfig, ShardMemberConfig};
use ekbatan::db::{CommitToken, Route};
use ekbatan::prelude::*;
use ekbatan::repository::Repository;
use ekbatan_testkit::{PostgresServer, TempSqlite};
use support::until;

use crate::actions::{Take, route};
use crate::models::{Account, account, migrations, quiet};
use crate::shards::{FIRST, SECOND, TestShards, executor_on};

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

/// Shard 0/0 on a server of its own with a replica of its own, shard 0/1 in a file.
struct Replicated {
    replica: PostgresServer,
    databases: Databases,
    account: Stored<Account>,
    _primary: PostgresServer,
    _second: TempSqlite,
}

impl Replicated {
    /// With an account that the replica shows, too.
    async fn start() -> Self {
        let primary = PostgresServer::start().await.unwrap();
        let url = primary.create_database().await.unwrap();
        let replica = primary.start_replica().await.unwrap();
        let copy = replica.url(url.rsplit('/').next().unwrap());
        let second = TempSqlite::new().unwrap();
        let config = EkbatanConfig::from(DataSourceConfig::new(url).maximum_pool_size(1))
            .replica(DataSourceConfig::new(copy))
            .shard(SECOND, ShardMemberConfig::new(1, DataSourceConfig::new(second.url())));
        let databases = Databases::connect(&config).await.unwrap();
        databases.migrate(&migrations()).await.unwrap();
        let accounts = databases.repository::<Account>();
        let account = accounts.add(quiet(account(FIRST, "a"))).await.unwrap();
        let shown = async || {
            // The replica may not even have the table yet.
            accounts.clone().on_replica().find(account.id).await.is_ok_and(|found| found.is_some())
        };
        until("the replica shows the account", shown).await;
        Self { replica, databases, account, _primary: primary, _second: second }
    }

    async fn take(&self, accounts: &[Stored<Account>]) -> CommitToken {
        let executor = executor_on(&self.databases).await;
        let action = Take::default();
        let call = executor.execute(&action, route(accounts)).allow_cross_shard();
        let (_, committed) = call.with_commit().await.unwrap();
        let token = committed.unwrap().token.unwrap();
        assert_eq!(token.to_string().parse::<CommitToken>().unwrap(), token);
        token
    }

    async fn version(&self, accounts: Repository<Account>) -> i64 {
        accounts.get(self.account.id).await.unwrap().version()
    }
}

#[tokio::test]
async fn a_replica_that_lags_is_left_for_the_primary_and_read_once_it_has_caught_up() {
    let t = Replicated::start().await;
    let accounts = t.databases.repository::<Account>();
    t.replica.pause_replay().await.unwrap();
    let token = t.take(std::slice::from_ref(&t.account)).await;
    assert_eq!(token.shards().collect::<Vec<_>>(), [FIRST]);
    assert_eq!(t.version(accounts.clone().on_replica()).await, 1, "the replica lags");
    let at_once = accounts.clone().on_replica_after(&token, Duration::ZERO);
    assert_eq!(t.version(at_once.clone()).await, 2, "so that the primary answers");
    assert_eq!(at_once.find_all().await.unwrap()[0].version(), 2);

    // From here on the primary can answer nobody: its only connection is held.
    let shard = t.databases.shard(FIRST).unwrap();
    let held = shard.postgres().await.unwrap();
    let patient = accounts.clone().on_replica_after(&token, Duration::from_secs(600));
    let resumed = async {
        let waits = async || !shard.pool_status(Route::Replica).holders.is_empty();
        until("the reader waits at the replica", waits).await;
        t.replica.resume_replay().await.unwrap();
    };
    let (version, ()) = tokio::join!(t.version(patient), resumed);
    assert_eq!(version, 2);
    assert_eq!(t.version(at_once).await, 2, "the replica has it now");
    held.release().await.unwrap();
    // A token that this replica will never reach ends the waiting, not the read.
    let far: CommitToken = "0/0 F/FFFFFFFF".parse().unwrap();
    let far = accounts.on_replica_after(&far, Duration::from_millis(50));
    assert_eq!(t.version(far).await, 2);
}

#[tokio::test]
async fn a_token_of_an_action_over_shards_is_about_those_with_a_replica() {
    let t = Replicated::start().await;
    let accounts = t.databases.repository::<Account>();
    let other = accounts.add(quiet(account(SECOND, "b"))).await.unwrap();
    t.replica.pause_replay().await.unwrap();
    let token = t.take(&[t.account.clone(), other]).await;
    assert_eq!(token.shards().collect::<Vec<_>>(), [FIRST]);
    let versions =
        |rows: Vec<Stored<Account>>| -> Vec<i64> { rows.iter().map(Stored::version).collect() };
    let lagging = accounts.clone().on_replica().find_all().await.unwrap();
    assert_eq!(versions(lagging), [1, 2], "the second shard has but a primary");
    let behind = accounts.on_replica_after(&token, Duration::ZERO).find_all().await.unwrap();
    assert_eq!(versions(behind), [2, 2]);
}

#[tokio::test]
async fn a_replica_has_a_pool_of_its_own() {
    let t = Replicated::start().await;
    let shard = t.databases.shard(FIRST).unwrap();
    let held = shard.postgres().await.unwrap();
    let holders = |route| shard.pool_status(route).holders.len();
    assert_eq!((holders(Route::Primary), holders(Route::Replica)), (1, 0));
    // With the primary's only connection held, the replica still answers.
    let accounts = t.databases.repository::<Account>();
    assert_eq!(t.version(accounts.on_replica()).await, 1);
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_replica_that_is_gone_is_left_for_the_primary_behind_a_token() {
    let t = Replicated::start().await;
    let token = t.take(std::slice::from_ref(&t.account)).await;
    t.replica.kill().await.unwrap();
    let accounts = t.databases.repository::<Account>();
    let behind = accounts.clone().on_replica_after(&token, Duration::from_secs(600));
    assert_eq!(t.version(behind).await, 2);
    accounts.on_replica().get(t.account.id).await.unwrap_err();
}
