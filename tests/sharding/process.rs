//! A process that is killed between the commits of two shards. The test binary starts itself as
//! that process.

use std::process::{Command, Stdio};

use ekbatan::action::Outcome;
use ekbatan::prelude::*;
use support::{ScratchDatabase, until};

use crate::actions::{Take, route};
use crate::shards::{FIRST, SECOND, SHARDS, TestShards, executor_on, key_at};

on_every_layout! {
    a_process_killed_between_two_shards_leaves_a_listed_partial_commit,
}

/// The URLs of the shards, for the process that is killed.
const URLS: &str = "EKBATAN_TEST_KILLED_PROCESS_URLS";

async fn a_process_killed_between_two_shards_leaves_a_listed_partial_commit(t: &TestShards) {
    if let Ok(urls) = std::env::var(URLS) {
        return take_from_all(&urls).await;
    }
    let accounts = t.three_accounts().await;
    let held = t.on(SECOND).hold_writers().await;
    let module = format!("process::{}", format!("{:?}", t.layout).to_lowercase());
    let test = "a_process_killed_between_two_shards_leaves_a_listed_partial_commit";
    let urls = SHARDS.map(|shard| t.on(shard).url.clone()).join("\n");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(URLS, urls)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the first shard commits", async || t.eventlog_counts("events").await == [1, 0, 0]).await;
    child.kill().unwrap();
    child.wait().unwrap();
    drop(held);
    // The server may still run a statement that the killed process had sent.
    until("no session of the process is left", async || !t.on(SECOND).has_busy_sessions().await)
        .await;

    let listed = t.databases.partial_commits().await.unwrap();
    assert_eq!(listed.len(), 1);
    let partial = &listed[0];
    assert_eq!(
        (&*partial.namespace, &*partial.action_name),
        ("com.example.sharding", "sharding.take")
    );
    let carried_out = t.eventlog_counts("events").await[1];
    let expected = &SHARDS[..1 + carried_out];
    assert_eq!(
        (&partial.committed[..], &partial.missing[..]),
        (expected, &SHARDS[1 + carried_out..])
    );
    let executor = t.executor().await;
    assert_eq!(executor.outcome(partial.action).await.unwrap(), Outcome::PartlyCommitted);
    // A repeated call with the key gets the same error and does not run.
    let again = Take::default();
    let call = executor.execute(&again, route(&accounts)).allow_cross_shard();
    match call.idempotency_key(key_at(&executor, FIRST)).await.unwrap_err() {
        ExecuteError::PartlyCommitted { action, committed, .. } => {
            assert_eq!((action, committed[0]), (partial.action, FIRST));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(again.runs(), 0);
    t.databases.resolve_partial_commit(partial.action).await.unwrap();
    assert_eq!(t.databases.partial_commits().await.unwrap(), []);
}

/// Connects to the shards at these URLs, one a line.
pub async fn connect(urls: &str) -> Databases {
    let urls: Vec<&str> = urls.lines().collect();
    let config = SHARDS.into_iter().zip(&urls).skip(1).fold(
        EkbatanConfig::from(ScratchDatabase::config_of(urls[0])),
        |config, (shard, url)| {
            config.shard(
                shard,
                ekbatan::config::ShardMemberConfig::new(0, ScratchDatabase::config_of(url)),
            )
        },
    );
    Databases::connect(&config).await.unwrap()
}

async fn take_from_all(urls: &str) {
    let databases = connect(urls).await;
    let accounts = databases.repository().find_all().await.unwrap();
    let executor = executor_on(&databases).await;
    let action = Take::default();
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    call.idempotency_key(key_at(&executor, FIRST)).await.unwrap();
}
