//! The locks of every shard, connected from a configuration, on real servers.

use std::time::Duration;

use ekbatan::config::{LockConfig, LockProviderKind};
use ekbatan::domain::ShardIdentifier;
use ekbatan::lock::{
    BuiltIn, ExecuteLocked, KeyedLockProvider, KeyedLocksError, LockError, LockKey, LockLevel,
    LockOptions, LockProvider, LockRegistry, LockSource, lock_key,
};
use ekbatan::prelude::{Decimal, EkbatanConfig, ShardedId};
use ekbatan_lock_redis::WithRedis;
use ekbatan_testkit::{PostgresServer, Proxy, RedisServer, TempSqlite};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::database::TestDatabase;
use crate::providers::{Kind, LONG, on_postgres};
use support::Dialect;
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet};

async fn database() -> String {
    PostgresServer::shared().await.unwrap().create_database().await.unwrap()
}

fn load(yaml: &str) -> EkbatanConfig {
    let config = EkbatanConfig::loader().yaml(yaml).environment(false).load();
    config.unwrap_or_else(|error| panic!("{error}"))
}

async fn connect(yaml: &str) -> LockRegistry<WithRedis> {
    LockRegistry::<WithRedis>::connect(&load(yaml)).await.unwrap_or_else(|error| panic!("{error}"))
}

/// A configuration with one group, whose members have these `configs`; the first is the default.
fn shards(configs: &[String]) -> String {
    let members: Vec<_> = configs
        .iter()
        .enumerate()
        .map(|(member, configs)| format!("{{member: {member}, configs: {{{configs}}}}}"))
        .collect();
    format!(
        "ekbatan: {{sharding: {{default-shard: {{group: 0, member: 0}}, groups: \
         [{{group: 0, name: all, members: [{}]}}]}}}}",
        members.join(", ")
    )
}

fn on(primary: &str, locks: &str) -> String {
    format!("primary-config: {{url: '{primary}'}}, lock-config: {{{locks}}}")
}

fn key_of(member: u32) -> LockKey {
    let shard = ShardIdentifier::new(0, member).unwrap();
    lock_key!("wallet", ShardedId::<Wallet>::new(shard))
}

async fn held(locks: &impl KeyedLockProvider, key: &LockKey) -> bool {
    locks.inspect(key).await.unwrap().is_some()
}

#[tokio::test]
async fn a_key_goes_to_the_locks_of_its_shard_on_postgres() {
    let (first, second) = (database().await, database().await);
    let yaml = shards(&[on(&first, "zone: test"), on(&second, "zone: test")]);
    let locks = connect(&yaml).await;
    // Providers that know one of the databases each.
    let alone = [
        on_postgres(Kind::PostgresLease, &first).await,
        on_postgres(Kind::PostgresLease, &second).await,
    ];

    let (of_first, of_second, plain) = (key_of(0), key_of(1), LockKey::named("nightly-report"));
    for (key, home) in [(&of_first, 0), (&of_second, 1), (&plain, 0)] {
        let lease = locks.acquire(key, LONG).await.unwrap();
        assert!(held(&locks, key).await && held(&alone[home], key).await, "{key}");
        assert!(!held(&alone[1 - home], key).await, "{key}");
        assert!(lease.release().await);
    }
    locks.close().await;
    let error = locks.acquire(&plain, LONG).await.unwrap_err();
    assert!(matches!(error, LockError::Closed { .. }), "{error}");
}

#[tokio::test]
async fn the_configuration_chooses_the_strategy_and_the_pool_size_on_postgres() {
    let url = database().await;
    let locks = connect(&shards(&[on(&url, "strategy: session, maximum-pool-size: 2")])).await;
    let lease = locks.acquire(&lock_key!("a"), LONG).await.unwrap();
    let mut server = PgConnection::connect(&url).await.unwrap();
    let advisory: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = \
         (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .fetch_one(&mut server)
    .await
    .unwrap();
    assert_eq!(advisory, 1);
    let sessions: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
         AND application_name LIKE 'ekbatan-lock process %'",
    )
    .fetch_one(&mut server)
    .await
    .unwrap();
    assert!((1..=3).contains(&sessions), "{sessions}");
    assert!(lease.release().await);
    locks.close().await;
}

#[tokio::test]
async fn shards_on_one_redis_server_share_a_provider() {
    let server = RedisServer::start().await.unwrap();
    let redis = format!("url: '{}', namespace: shop, zone: eu", server.url());
    let yaml = shards(&[on("sqlite:a.db", &redis), on("sqlite:b.db", &redis)]);
    let locks = connect(&yaml).await;
    let names: Vec<_> = locks.shards().map(|(shard, p)| (shard.to_string(), p.name())).collect();
    assert_eq!(names, [("0/0".to_owned(), "redis"), ("0/1".to_owned(), "redis")]);

    let key = key_of(1);
    let lease = locks.acquire(&key, LONG).await.unwrap();
    let mut client = crate::redis::connection(&server.url()).await;
    let stored: Vec<String> =
        redis::cmd("KEYS").arg("shop:{*").query_async(&mut client).await.unwrap();
    assert_eq!(stored, [format!("shop:{{DC#eu#{key}}}")]);
    // Two for the locks, and that of the test.
    let list: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut client).await.unwrap();
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(lease.release().await);
    locks.close().await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn in_process_locks_need_no_server() {
    let here = "provider: in-process";
    let yaml = shards(&[on("postgres://nowhere.invalid/a", here), on("sqlite:b.db", here)]);
    let locks = connect(&yaml).await;
    let (first, second) = (key_of(0), key_of(1));
    let _one = locks.acquire(&first, LONG).await.unwrap();
    let _two = locks.acquire(&second, LONG).await.unwrap();
    assert!(locks.try_acquire(&first, Duration::ZERO, LONG).await.unwrap().is_none());
    // Both shards share their locks.
    let providers: Vec<&LockProvider> = locks.shards().map(|(_, provider)| provider).collect();
    assert!(held(providers[0], &second).await && held(providers[1], &first).await);
    assert!(locks.force_release(&first, "the test is over").await.unwrap());
}

#[tokio::test]
async fn zone_keys_are_separate_per_zone_and_global_keys_are_not_on_postgres() {
    let url = database().await;
    let eu = connect(&shards(&[on(&url, "zone: eu")])).await;
    let us = connect(&shards(&[on(&url, "zone: us")])).await;
    let key = LockKey::named("report");
    let _eu = eu.acquire(&key, LONG).await.unwrap();
    let _us = us.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().expect("its own");
    let both = key.at_level(LockLevel::Global);
    let _one = eu.acquire(&both, LONG).await.unwrap();
    assert!(us.try_acquire(&both, Duration::ZERO, LONG).await.unwrap().is_none());
}

#[tokio::test]
async fn the_configured_term_applies_to_leases_without_one_on_postgres() {
    let url = database().await;
    let locks = connect(&shards(&[on(&url, "term: 60s")])).await;
    let hour = Duration::from_secs(3600);
    let remaining = async |options: LockOptions| {
        let key = LockKey::named(&Uuid::new_v4().to_string());
        let lease = locks.take(&key, &options).await.unwrap().unwrap();
        let holder = locks.inspect(&key).await.unwrap().unwrap();
        assert!(lease.release().await);
        holder.remaining.unwrap()
    };
    assert!(remaining(LockOptions::default().hold(hour)).await < hour / 10);
    assert!(remaining(LockOptions::default().hold(hour).renewed(hour / 2)).await > hour / 3);
    // Also for a lease that was acquired without a timeout.
    let lease = locks.acquire(&lock_key!("a"), hour).await.unwrap();
    let holder = locks.inspect(&lock_key!("a")).await.unwrap().unwrap();
    assert!(holder.remaining.unwrap() < hour / 10);
    assert!(lease.release().await);
}

#[tokio::test]
async fn a_shard_without_locks_says_what_to_add_on_postgres() {
    let (first, second) = (database().await, database().await);
    let with = on(&first, "");
    let without = format!("primary-config: {{url: '{second}'}}");
    let locks = connect(&shards(&[with.clone(), without.clone()])).await;
    let key = key_of(1);
    let error = locks.acquire(&key, LONG).await.unwrap_err();
    let LockError::NoLocks { shard, advice, .. } = &error else { panic!("{error}") };
    assert_eq!(shard.to_string(), "0/1");
    assert!(error.to_string().contains(&format!("`{key}` has no lock: shard 0/1")), "{error}");
    // The locks are needed only when a key of the shard is acquired.
    assert!(locks.acquire(&key_of(0), LONG).await.unwrap().release().await);

    // The configuration works with the lines that the error advises.
    let lines: Vec<_> = advice.lines().filter(|line| line.starts_with("  ")).collect();
    let yaml =
        format!("ekbatan:\n configs:\n  primary-config: {{url: '{second}'}}\n{}", lines.join("\n"));
    let locks = connect(&yaml).await;
    assert!(locks.acquire(&lock_key!("a"), LONG).await.unwrap().release().await);

    let error = LockRegistry::<WithRedis>::connect(&load(&shards(&[without]))).await.unwrap_err();
    assert!(matches!(error, KeyedLocksError::NoLocks { .. }), "{error}");
    assert!(error.to_string().contains("lock-config:\n    provider: postgres"), "{error}");
}

#[tokio::test]
async fn locks_take_over_an_address_with_the_parameters_of_java_on_postgres() {
    let url = database().await.replacen("postgres://", "jdbc:postgresql://", 1);
    let url = format!("{url}?currentSchema=app&reWriteBatchedInserts=true");
    let yaml = format!(
        "ekbatan: {{configs: {{primary-config: {{jdbc-url: '{url}'}}, lock-config: {{}}}}}}"
    );
    let locks = connect(&yaml).await;
    assert!(locks.acquire(&lock_key!("a"), LONG).await.unwrap().release().await);
    locks.close().await;
}

#[tokio::test]
async fn an_unknown_shard_is_an_error_unless_configured_otherwise() {
    let here = on("sqlite:a.db", "provider: in-process");
    let yaml = shards(&[here]);
    let error = connect(&yaml).await.acquire(&key_of(7), LONG).await.unwrap_err();
    assert!(matches!(error, LockError::Shard { .. }), "{error}");
    assert!(
        error.to_string().contains("shard 0/7 is not configured; the shards are 0/0"),
        "{error}"
    );
    let lenient = yaml.replace("{sharding: {", "{sharding: {unknown-shard: default-shard, ");
    let lease = connect(&lenient).await.acquire(&key_of(7), LONG).await.unwrap();
    assert!(lease.release().await);
}

#[tokio::test]
async fn failures_name_the_shard_and_hide_the_password_on_postgres() {
    let good = database().await;
    let proxy = Proxy::start("127.0.0.1:1").await.unwrap();
    let bad = format!("url: 'postgres://app:s3cret@127.0.0.1:{}/shop'", proxy.port());
    let evicting = RedisServer::builder()
        .setting("maxmemory", "100mb")
        .setting("maxmemory-policy", "allkeys-lru")
        .start()
        .await
        .unwrap();
    let redis = format!("url: '{}'", evicting.url());
    let yaml = shards(&[on(&good, ""), on("sqlite:b.db", &bad), on("sqlite:c.db", &redis)]);
    let error = LockRegistry::<WithRedis>::connect(&load(&yaml)).await.unwrap_err();
    let KeyedLocksError::Shards(failures) = &error else { panic!("{error}") };
    let shards: Vec<_> = failures.iter().map(|f| f.shards[0].to_string()).collect();
    assert_eq!(shards, ["0/1", "0/2"]);
    assert!(matches!(failures[0].source, LockError::Start { .. }), "{error}");
    assert!(matches!(failures[1].source, LockError::Unsafe { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("shard 0/1 in postgres at postgres://app:***@127.0.0.1"), "{text}");
    assert!(text.contains("shard 0/2 in redis at redis://"), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    evicting.stop().await.unwrap();
}

#[tokio::test]
async fn a_provider_that_is_not_compiled_in_names_its_feature() {
    let redis = on("sqlite:a.db", "url: 'redis://localhost'");
    let error = LockRegistry::<BuiltIn>::connect(&load(&shards(&[redis]))).await.unwrap_err();
    assert!(
        error.to_string().contains("add the feature `redis` of the crate `ekbatan`"),
        "{error}"
    );
}

#[tokio::test]
async fn an_invalid_configuration_is_rejected() {
    let config =
        EkbatanConfig::single("sqlite:a.db").locks(LockConfig::of(LockProviderKind::Redis));
    let error = LockRegistry::<WithRedis>::connect(&config).await.unwrap_err();
    assert!(matches!(error, KeyedLocksError::Config(_)), "{error}");
}

#[tokio::test]
async fn an_action_runs_under_configured_locks() {
    let database = TestDatabase::start(Dialect::Sqlite).await;
    let executor = database.executor();
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let wallet = executor.execute(&OpenWallet, opening).await.unwrap().id;
    let locks = connect(&shards(&[on("sqlite:a.db", "provider: in-process")])).await;
    let key = lock_key!("wallet", wallet);
    let deposit = || Deposit { wallet, amount: Decimal::from(5) };
    let options = LockOptions::default();
    executor.execute(&DepositMoney, deposit()).with_lock(&locks, &key, options).await.unwrap();
    let output = locks
        .with_lock(&key, options, |lease| {
            executor.execute(&DepositMoney, deposit()).fenced_by(&lease)
        })
        .await
        .unwrap();
    assert_eq!(output.balance, Decimal::from(10));
    // The caller does not wait for the release.
    while held(&locks, &key).await {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_keys_of_all_shards_are_listed_once() {
    let url = database().await;
    let [first, second] =
        ["a", "b"].map(|file| on(&format!("sqlite:{file}.db"), "provider: in-process"));
    let locks = connect(&shards(&[first, second, on(&url, "zone: test")])).await;
    let mut leases = Vec::new();
    for key in [key_of(0), key_of(1), key_of(2), LockKey::named("nightly-report")] {
        leases.push(locks.acquire(&key, LONG).await.unwrap());
    }
    let found = locks.list(10).await.unwrap();
    let mut names: Vec<_> = found.keys.iter().map(|held| held.key.id()).collect();
    names.sort_unstable();
    let mut expected: Vec<_> = leases.iter().map(|lease| lease.key().id()).collect();
    expected.sort_unstable();
    assert_eq!((names, found.more), (expected, false));
    let some = locks.list(3).await.unwrap();
    assert_eq!((some.keys.len(), some.more), (3, true));
    for held in found.keys {
        assert!(locks.force_release(&held.key, "a test").await.unwrap(), "{}", held.key);
    }
    assert!(!leases.iter().any(|lease| lease.is_held()));
    assert!(locks.list(10).await.unwrap().keys.is_empty());
    locks.close().await;
}

/// Each of their providers lists what the file keeps, whose name has two spellings.
#[tokio::test]
async fn a_key_is_listed_once_although_the_shards_of_its_file_share_no_provider() {
    let file = TempSqlite::new().unwrap();
    let (url, encoded) = (file.url(), file.url().replace(".sqlite", "%2Esqlite"));
    assert_ne!(url, encoded);
    let members = [
        ("a", &url, "retry-sleep: 20ms"),
        ("b", &encoded, "retry-sleep: 30ms"),
        ("c", &url, "zone: other"),
    ];
    let members = members.map(|(data, url, differs)| {
        on(&format!("sqlite:{data}.db"), &format!("url: '{url}', {differs}"))
    });
    let locks = connect(&shards(&members)).await;
    let plain = LockKey::named("k");
    let of = |member| plain.clone().on_shard(ShardIdentifier::new(0, member).unwrap());
    let count = async |most| {
        let found = locks.list(most).await.unwrap();
        (found.keys.len(), found.more)
    };
    let _held = locks.acquire(&plain, LONG).await.unwrap();
    assert!(held(&locks, &of(1)).await, "it is the same lock");
    assert_eq!([count(1).await, count(10).await], [(1, false); 2]);
    assert_eq!(locks.named(&of(1)), locks.named(&plain));

    let _another = locks.try_acquire(&of(2), Duration::ZERO, LONG).await.unwrap().unwrap();
    assert_ne!(locks.named(&of(2)), locks.named(&plain));
    assert_eq!([count(1).await, count(10).await], [(1, true), (2, false)]);
    locks.close().await;
}

/// One lock has four names here: without a shard, of the default shard, of an unknown one, and of a shard
/// that has its locks in the same place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_several_locks_do_not_wait_in_a_circle_whatever_their_keys_are_called() {
    let members = [("a", "test"), ("b", "other"), ("c", "test")].map(|(file, zone)| {
        on(&format!("sqlite:{file}"), &format!("provider: in-process, zone: {zone}"))
    });
    let yaml = shards(&members);
    let lenient = yaml.replace("{sharding: {", "{sharding: {unknown-shard: default-shard, ");
    let locks = connect(&lenient).await;
    let plain = LockKey::named("k");
    let of = |member| plain.clone().on_shard(ShardIdentifier::new(0, member).unwrap());
    for alias in [of(9), of(2)] {
        let held = locks.acquire(&plain, LONG).await.unwrap();
        assert!(locks.inspect(&alias).await.unwrap().is_some(), "it is the same lock");
        assert!(locks.inspect(&of(1)).await.unwrap().is_none(), "it is another one");
        let mut callers = tokio::task::JoinSet::new();
        for (n, keys) in [[plain.clone(), of(1)], [of(1), alias]].into_iter().enumerate() {
            let of_task = locks.clone();
            callers.spawn(async move {
                let options = LockOptions::wait(LONG).hold(LONG * 10);
                of_task.with_locks(&keys, options, async |_| Ok::<_, ()>(())).await.map_err(drop)
            });
            let waiting = async || {
                let holder = locks.inspect(&plain).await.unwrap();
                holder.is_some_and(|holder| holder.waiting_here == n + 1)
            };
            support::until("it waits", waiting).await;
        }
        assert!(held.release().await);
        while let Some(done) = callers.join_next().await {
            done.unwrap().expect("nobody waits for ever");
        }
    }
}
