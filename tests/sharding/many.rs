//! A group with the maximum number of members, each a SQLite file.

use std::time::Instant;

use ekbatan::config::{DataSourceConfig, ShardMemberConfig};
use ekbatan::db::Route;
use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use ekbatan::repository::PageRequest;
use ekbatan_testkit::TempSqlite;
use support::until;

use crate::actions::{Nothing, stage};
use crate::models::{Account, account, migrations, quiet};
use crate::shards::executor_on;

const COUNT: u32 = 64;
/// The number of shards that a read queries concurrently.
const AT_ONCE: usize = 16;

fn shard(member: u32) -> ShardIdentifier {
    ShardIdentifier::new(0, member).unwrap()
}

struct Many {
    databases: Databases,
    _files: Vec<TempSqlite>,
}

impl Many {
    async fn start(connections: usize) -> Self {
        let files: Vec<TempSqlite> = (0..COUNT).map(|_| TempSqlite::new().unwrap()).collect();
        let source =
            |n: u32| DataSourceConfig::new(files[n as usize].url()).maximum_pool_size(connections);
        let config = (1..COUNT).fold(EkbatanConfig::from(source(0)), |config, n| {
            config.shard(shard(n), ShardMemberConfig::new(0, source(n)))
        });
        let databases = Databases::connect(&config).await.unwrap();
        Self { databases, _files: files }
    }

    /// Creates migrated shards with an account on each.
    async fn filled(connections: usize) -> Self {
        let many = Self::start(connections).await;
        many.databases.migrate(&migrations()).await.unwrap();
        for n in 0..COUNT {
            many.databases.repository().add(quiet(account(shard(n), "somebody"))).await.unwrap();
        }
        many
    }

    fn connections(&self) -> Vec<usize> {
        self.databases.shards().map(|shard| shard.pool_status(Route::Primary).size).collect()
    }

    fn waiting(&self) -> Vec<usize> {
        self.databases.shards().map(|shard| shard.pool_status(Route::Primary).waiting).collect()
    }
}

/// The memory of this process in KiB, and the number of its open files.
fn weight() -> (u64, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let memory = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    (memory, std::fs::read_dir("/proc/self/fd").unwrap().count())
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_idle_shards_have_one_connection_each() {
    let ((memory, files), started) = (weight(), Instant::now());
    let many = Many::start(10).await;
    let (opened, (open_memory, open_files)) = (started.elapsed(), weight());
    assert_eq!(many.connections(), vec![1; COUNT as usize]);
    let started = Instant::now();
    many.databases.migrate(&migrations()).await.unwrap();
    let migrated = started.elapsed();
    println!("{COUNT} shards: opened in {opened:.0?}, migrated in {migrated:.0?}");
    println!("memory {memory} to {open_memory} KiB, open files {files} to {open_files}");

    let executor = executor_on(&many.databases).await;
    let everywhere = stage(|ctx| {
        (0..COUNT).for_each(|n| drop(ctx.plan().add(quiet(account(shard(n), "somebody")))));
    });
    let started = Instant::now();
    executor.execute(&everywhere, Nothing {}).allow_cross_shard().await.unwrap();
    let committed = started.elapsed();
    let accounts = many.databases.repository::<Account>();
    let started = Instant::now();
    assert_eq!(accounts.count().await.unwrap(), u64::from(COUNT));
    let counted = started.elapsed();
    println!("an action over all in {committed:.0?}, a count over all in {counted:.1?}");
    let all = accounts.find_all().await.unwrap();
    assert!(all.iter().map(|account| account.id.shard()).eq((0..COUNT).map(|n| Some(shard(n)))));
    let page = accounts.page(PageRequest::first(10)).await.unwrap();
    assert_eq!(page.rows.len(), 10);
    let (memory, files) = weight();
    let connections = many.connections();
    println!(
        "then {memory} KiB, {files} open files, at most {:?} pooled",
        connections.iter().max()
    );
    assert!(connections.iter().all(|size| *size <= 2), "{connections:?}");
    assert_eq!(many.databases.partial_commits().await.unwrap(), []);
}

/// The only connection of every shard is held, so a query waits for it and is counted.
#[tokio::test]
async fn shards_are_read_concurrently_and_a_slow_one_delays_no_other() {
    let many = Many::filled(1).await;
    let mut held = Vec::new();
    for shard in many.databases.shards() {
        held.push(shard.sqlite().await.unwrap());
    }
    let accounts = many.databases.repository::<Account>();
    let reading = tokio::spawn(async move { accounts.find_all().await });
    let queried = async || many.waiting().iter().sum::<usize>() >= AT_ONCE;
    until("shards are queried before any has returned", queried).await;
    assert_eq!(many.waiting()[..AT_ONCE], [1; AT_ONCE]);
    assert_eq!(
        many.waiting()[AT_ONCE..],
        [0; COUNT as usize - AT_ONCE],
        "only some shards at once"
    );
    // All of these shards except the first may return now. Queries of other shards start.
    for held in held.drain(1..AT_ONCE) {
        held.release().await.unwrap();
    }
    let queried = async || many.waiting()[AT_ONCE..].iter().sum::<usize>() >= AT_ONCE - 1;
    until("other shards are queried while the first is slow", queried).await;
    assert_eq!(many.waiting()[0], 1);
    for held in held {
        held.release().await.unwrap();
    }
    let found = reading.await.unwrap().unwrap();
    let shards: Vec<_> = found.iter().map(|account| account.id.shard().unwrap()).collect();
    assert_eq!(
        shards,
        (0..COUNT).map(shard).collect::<Vec<_>>(),
        "rows are in the order of the shards"
    );
}
