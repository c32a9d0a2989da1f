//! Commit tokens, and reads after a token: without replicas, and with a replica that lags.

use std::future::IntoFuture;
use std::time::Duration;

use ekbatan::action::{Coalesced, ErrorKind};
use ekbatan::config::{DataSourceConfig, ShardMemberConfig};
use ekbatan::db::{CommitToken, Committed, Route};
use ekbatan::lock::LockKey;
use ekbatan::prelude::*;
use ekbatan::repository::Repository;
use ekbatan_testkit::{PostgresServer, Proxy, TempSqlite};
use futures_util::future::join_all;
use support::until;

use crate::actions::{Failed, Nothing, Take, route};
use crate::models::{Account, account, migrations, quiet};
use crate::shards::{FIRST, SECOND, TestShards, executor_on};

on_every_layout! {
    without_a_replica_a_commit_has_no_token,
    a_read_after_a_token_uses_the_primary_without_a_replica,
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

async fn a_read_after_a_token_uses_the_primary_without_a_replica(t: &TestShards) {
    let accounts = t.three_accounts().await;
    // A token from a process whose configuration has replicas.
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

/// Shard 0/0 on its own server with a replica, and shard 0/1 in a file.
struct Replicated {
    replica: PostgresServer,
    /// Between the process and the replica.
    line: Proxy,
    databases: Databases,
    account: Stored<Account>,
    _primary: PostgresServer,
    _second: TempSqlite,
}

impl Replicated {
    /// Adds an account and waits until the replica has it.
    async fn start() -> Self {
        let primary = PostgresServer::start().await.unwrap();
        let url = primary.create_database().await.unwrap();
        let replica = primary.start_replica().await.unwrap();
        let line = Proxy::start(("127.0.0.1", replica.port())).await.unwrap();
        let copy = line.url_for(&replica.url(url.rsplit('/').next().unwrap()));
        let second = TempSqlite::new().unwrap();
        // Longer than a call waits in these tests.
        let patience = Duration::from_secs(600);
        let primary_config =
            DataSourceConfig::new(url).maximum_pool_size(1).connection_timeout(patience);
        let config = EkbatanConfig::from(primary_config)
            .replica(DataSourceConfig::new(copy).read_timeout(patience))
            .shard(SECOND, ShardMemberConfig::new(1, DataSourceConfig::new(second.url())));
        let databases = Databases::connect(&config).await.unwrap();
        databases.migrate(&migrations()).await.unwrap();
        let accounts = databases.repository::<Account>();
        let account = accounts.add(quiet(account(FIRST, "a"))).await.unwrap();
        let shown = async || {
            // The replica may not have the table yet.
            accounts.clone().on_replica().find(account.id).await.is_ok_and(|found| found.is_some())
        };
        until("the replica has the account", shown).await;
        Self { replica, line, databases, account, _primary: primary, _second: second }
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
async fn a_lagging_replica_is_read_only_after_it_caught_up_on_postgres() {
    let t = Replicated::start().await;
    let accounts = t.databases.repository::<Account>();
    t.replica.pause_replay().await.unwrap();
    let token = t.take(std::slice::from_ref(&t.account)).await;
    assert_eq!(token.shards().collect::<Vec<_>>(), [FIRST]);
    assert_eq!(t.version(accounts.clone().on_replica()).await, 1, "the replica lags");
    let at_once = accounts.clone().on_replica_after(&token, Duration::ZERO);
    assert_eq!(t.version(at_once.clone()).await, 2, "the primary returns the row");
    assert_eq!(at_once.find_all().await.unwrap()[0].version(), 2);

    // The only connection to the primary is held, so only the replica can return the row.
    let shard = t.databases.shard(FIRST).unwrap();
    let held = shard.postgres().await.unwrap();
    let patient = accounts.clone().on_replica_after(&token, Duration::from_secs(600));
    let resumed = async {
        let waits = async || !shard.pool_status(Route::Replica).holders.is_empty();
        until("the read waits at the replica", waits).await;
        t.replica.resume_replay().await.unwrap();
    };
    let (version, ()) = tokio::join!(t.version(patient), resumed);
    assert_eq!(version, 2);
    assert_eq!(t.version(at_once).await, 2, "the replica has caught up");
    held.release().await.unwrap();
    // The replica never reaches this token: the read stops waiting and uses the primary.
    let far: CommitToken = "0/0 F/FFFFFFFF".parse().unwrap();
    let far = accounts.on_replica_after(&far, Duration::from_millis(50));
    assert_eq!(t.version(far).await, 2);
}

#[tokio::test]
async fn a_silent_replica_is_not_waited_for_as_long_as_a_read_may_take() {
    let t = Replicated::start().await;
    let token = t.take(std::slice::from_ref(&t.account)).await;
    t.line.stall();
    let accounts = t.databases.repository::<Account>();
    let read = t.version(accounts.on_replica_after(&token, Duration::ZERO));
    let version = tokio::time::timeout(Duration::from_secs(300), read).await;
    assert_eq!(version.expect("the replica is not waited for"), 2);
}

#[tokio::test]
async fn a_token_of_a_cross_shard_action_covers_the_shards_with_a_replica_on_postgres() {
    let t = Replicated::start().await;
    let accounts = t.databases.repository::<Account>();
    let other = accounts.add(quiet(account(SECOND, "b"))).await.unwrap();
    t.replica.pause_replay().await.unwrap();
    let token = t.take(&[t.account.clone(), other]).await;
    assert_eq!(token.shards().collect::<Vec<_>>(), [FIRST]);
    let versions =
        |rows: Vec<Stored<Account>>| -> Vec<i64> { rows.iter().map(Stored::version).collect() };
    let lagging = accounts.clone().on_replica().find_all().await.unwrap();
    assert_eq!(versions(lagging), [1, 2], "the second shard has only a primary");
    let behind = accounts.on_replica_after(&token, Duration::ZERO).find_all().await.unwrap();
    assert_eq!(versions(behind), [2, 2]);
}

#[tokio::test]
async fn a_replica_has_its_own_pool_on_postgres() {
    let t = Replicated::start().await;
    let shard = t.databases.shard(FIRST).unwrap();
    let held = shard.postgres().await.unwrap();
    let holders = |route| shard.pool_status(route).holders.len();
    assert_eq!((holders(Route::Primary), holders(Route::Replica)), (1, 0));
    // While the only connection to the primary is held, the replica can be read.
    let accounts = t.databases.repository::<Account>();
    assert_eq!(t.version(accounts.on_replica()).await, 1);
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_read_after_a_token_uses_the_primary_when_the_replica_is_down_on_postgres() {
    let t = Replicated::start().await;
    let token = t.take(std::slice::from_ref(&t.account)).await;
    t.replica.kill().await.unwrap();
    let accounts = t.databases.repository::<Account>();
    let behind = accounts.clone().on_replica_after(&token, Duration::from_secs(600));
    assert_eq!(t.version(behind).await, 2);
    accounts.on_replica().get(t.account.id).await.unwrap_err();
}

/// Adds an account without a read, and perhaps an effect.
struct Add {
    has_effect: bool,
}

impl Action for Add {
    const NAME: &'static str = "sharding.add";
    type Params = Nothing;
    type Output = ();
    type Error = Failed;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Nothing) -> Result<(), Failed> {
        ctx.plan().add(quiet(account(FIRST, "added")));
        if self.has_effect {
            ctx.plan().after_commit("nothing", |_| async { Ok::<_, Failed>(()) });
        }
        Ok(())
    }
}

type Added = Result<((), Option<Committed>), ExecuteError<Failed>>;

/// Adds five accounts while the only connection to the primary is held.
async fn add_without_tokens(t: &Replicated) -> Vec<Added> {
    let executor = executor_on(&t.databases).await;
    let held = t.databases.shard(FIRST).unwrap().postgres().await.unwrap();
    let [plain, with_effect] = [false, true].map(|has_effect| Add { has_effect });
    let call = |action| executor.execute(action, Nothing {}).deadline(Duration::from_secs(10));
    let grouped = || {
        let call = call(&plain).contention(Coalesced::default());
        call.contention_keys([LockKey::named("all")]).with_commit().into_future()
    };
    let (alone, with_effect, grouped) = tokio::join!(
        call(&plain).with_commit().into_future(),
        call(&with_effect).with_commit().into_future(),
        join_all([grouped(), grouped(), grouped()]),
    );
    held.release().await.unwrap();
    [alone, with_effect].into_iter().chain(grouped).collect()
}

/// The tokens cannot be read in time. That the calls are committed is known all the same.
#[tokio::test]
async fn a_commit_is_answered_although_its_token_comes_too_late_on_postgres() {
    let mut last = Vec::new();
    for _ in 0..3 {
        let t = Replicated::start().await;
        let answers = add_without_tokens(&t).await;
        let mut errors = answers.iter().flat_map(|answer| answer.as_ref().err());
        // On a busy machine the deadline may pass before the commit.
        let early = [ErrorKind::Deadline, ErrorKind::CommitUnknown];
        if errors.any(|error| early.contains(&error.kind())) {
            last = answers;
            continue;
        }
        for answer in answers {
            let ((), committed) = answer.unwrap();
            assert_eq!(committed.unwrap().token, None);
        }
        assert_eq!(t.databases.repository::<Account>().count().await.unwrap(), 6);
        return;
    }
    panic!("in every round the deadline passed before a commit: {last:?}");
}
