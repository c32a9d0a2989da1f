//! The home shards of idempotency keys, for calls that write to other shards.

use std::future::IntoFuture;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ekbatan::action::{Budget, ErrorKind, RetryPolicy};
use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use support::{Dialect, PlainConnection, until};
use tokio::sync::Barrier;

use crate::actions::{Failed, Nothing, Take, route};
use crate::models::{Account, Note, note, quiet};
use crate::shards::{
    FIRST, Layout, SECOND, SHARDS, THIRD, TestShard, TestShards, executor_on, key_at, key_named,
};

on_every_layout! {
    one_key_commits_once_although_its_calls_choose_other_shards,
    only_the_home_and_the_touched_shards_are_needed,
    a_repeated_call_needs_only_its_home,
    a_claim_without_a_decision_is_taken_over,
    a_claim_whose_caller_is_gone_is_completed,
    a_process_killed_after_its_claim_leaves_a_usable_key,
    a_failed_call_leaves_no_claim,
    the_homes_may_move_to_other_shards,
    a_cross_shard_call_does_not_wait_for_a_shard_that_it_did_not_touch,
}

support::test_matrix! {
    #[tokio::test]
    |layout| &crate::shards::TestShards::start(layout).await;
    [postgres_only = crate::shards::Layout::Postgres]
    [a_call_that_takes_too_long_to_commit_is_stopped_and_gets_the_other_output]
}

/// Adds a note to a shard that its parameters do not name. Returns the shard.
struct Place {
    shard: ShardIdentifier,
    /// Where the first attempt meets another call.
    barrier: Option<Arc<Barrier>>,
    runs: AtomicU32,
}

impl Place {
    fn on(shard: ShardIdentifier) -> Self {
        Self { shard, barrier: None, runs: AtomicU32::new(0) }
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

impl Action for Place {
    const NAME: &'static str = "sharding.place";
    type Params = Nothing;
    type Output = String;
    type Error = Failed;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Nothing) -> Result<String, Failed> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        if ctx.attempt() == 1
            && let Some(barrier) = &self.barrier
        {
            barrier.wait().await;
        }
        ctx.plan().add(quiet(note(self.shard, &Uuid::now_v7().to_string())));
        Ok(self.shard.to_string())
    }
}

async fn notes(t: &TestShards) -> usize {
    t.counts("notes").await.iter().sum()
}

async fn one_key_commits_once_although_its_calls_choose_other_shards(t: &TestShards) {
    let executors = [executor_on(&t.open_again().await).await, t.executor().await];
    let mut expected = 0;
    for home in SHARDS {
        for shards in [[SECOND, THIRD], [SECOND, SECOND], [FIRST, THIRD]] {
            let key = key_named(&executors[0], home, &format!("{shards:?}"));
            let barrier = Arc::new(Barrier::new(2));
            let actions =
                shards.map(|shard| Place { barrier: Some(barrier.clone()), ..Place::on(shard) });
            let call = |n: usize| {
                executors[n].execute(&actions[n], Nothing {}).idempotency_key(&*key).into_future()
            };
            let (one, other) = tokio::join!(call(0), call(1));
            assert_eq!(one.unwrap(), other.unwrap(), "{key}");
            expected += 1;
            assert_eq!(notes(t).await, expected, "{key}");
        }
    }
    assert_eq!(t.eventlog_counts("idempotency_keys").await.iter().sum::<usize>(), expected);
}

/// Makes the tables of keys unusable.
async fn hide_keys(shard: &TestShard) {
    shard.hide(&shard.eventlog("idempotency_keys")).await;
}

async fn only_the_home_and_the_touched_shards_are_needed(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    hide_keys(t.on(THIRD)).await;
    let action = Take::default();
    for home in [FIRST, SECOND] {
        for account in [&accounts[0], &accounts[1]] {
            let account = t.accounts().get(account.id).await.unwrap();
            let key = key_named(&executor, home, &account.id.to_string());
            let call = || executor.execute(&action, route(std::slice::from_ref(&account)));
            let runs = action.runs();
            call().idempotency_key(&*key).await.unwrap();
            call().idempotency_key(&*key).await.unwrap();
            assert_eq!(action.runs(), runs + 1);
        }
    }
    // The error names the home.
    let key = key_at(&executor, THIRD);
    let runs = action.runs();
    let error = executor.execute(&action, route(&accounts[..1])).idempotency_key(key).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("shard 3/7, the home of the idempotency key"), "{error}");
    assert_eq!(action.runs(), runs);
}

async fn a_repeated_call_needs_only_its_home(t: &TestShards) {
    let executor = t.executor().await;
    let (key, action) = (key_at(&executor, FIRST), Place::on(THIRD));
    let call = || executor.execute(&action, Nothing {}).idempotency_key(&*key);
    call().await.unwrap();
    until("the claim is complete", async || {
        t.eventlog_counts("idempotency_decisions").await == [0; 3]
    })
    .await;
    let third = t.on(THIRD);
    hide_keys(third).await;
    assert_eq!(call().await.unwrap(), THIRD.to_string());
    assert_eq!(action.runs(), 1);
}

/// What a process leaves that died after its claim: the row of the key is a claim, and there is
/// neither a decision nor anything else.
async fn a_claim_without_a_decision_is_taken_over(t: &TestShards) {
    let executor = t.executor().await;
    for (home, shard) in [(FIRST, THIRD), (THIRD, SECOND)] {
        let (key, action) = (key_at(&executor, home), Place::on(shard));
        let call = || {
            let call = executor.execute(&action, Nothing {}).idempotency_key(&*key);
            call.deadline(Duration::from_secs(100))
        };
        call().await.unwrap();
        until("the claim is complete", async || {
            t.eventlog_counts("idempotency_decisions").await == [0; 3]
        })
        .await;
        let (claim, at_home) = (Uuid::now_v7(), t.on(home));
        let keys = at_home.eventlog("idempotency_keys");
        at_home
            .execute(&format!("UPDATE {keys} SET claim_id = '{claim}', shards = '{shard}'"))
            .await;
        call().await.unwrap();
        assert_eq!(action.runs(), 2);
        // The dead call can never commit.
        let decisions = t.on(shard);
        let decisions = decisions
            .select(
                &["claim_id", "committed"],
                &format!(
                    "FROM {} WHERE claim_id = '{claim}'",
                    decisions.eventlog("idempotency_decisions")
                ),
            )
            .await;
        assert_eq!(decisions.len(), 1);
        assert!(matches!(decisions[0][1].as_deref(), Some("0" | "false")), "{decisions:?}");
        t.on(shard)
            .execute(&format!("DELETE FROM {}", t.on(shard).eventlog("idempotency_decisions")))
            .await;
    }
}

/// The caller is dropped while its batch is in a lane. Nobody completes the claim.
async fn a_claim_whose_caller_is_gone_is_completed(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let key = key_at(&executor, FIRST);
    let action = Arc::new(Take::default());
    let held = t.on(THIRD).hold_writers().await;
    let caller = tokio::spawn({
        let (executor, action, key) = (executor.clone(), action.clone(), key.clone());
        let route = route(&accounts[2..]);
        async move { executor.execute(&*action, route).idempotency_key(key).await }
    });
    until("the key is claimed", async || t.eventlog_counts("idempotency_keys").await == [1, 0, 0])
        .await;
    caller.abort();
    let _ = caller.await;
    drop(held);
    let call = executor.execute(&*action, route(&accounts[2..])).idempotency_key(&*key);
    assert_eq!(call.await.unwrap(), 1);
    // Exactly one of the two calls has committed: that of the caller who is gone, unless its
    // batch was not yet in a lane.
    assert_eq!(t.accounts().get(accounts[2].id).await.unwrap().version(), 2);
    assert_eq!(t.eventlog_counts("events").await, [0, 0, 1]);
    assert_eq!(t.eventlog_counts("idempotency_keys").await, [1, 0, 0]);
}

/// The URLs of the shards, for the process that is killed.
const URLS: &str = "EKBATAN_TEST_KILLED_CLAIM_URLS";

async fn a_process_killed_after_its_claim_leaves_a_usable_key(t: &TestShards) {
    if let Ok(urls) = std::env::var(URLS) {
        return take_from_third(&urls).await;
    }
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let held = t.on(THIRD).hold_writers().await;
    let module = format!("homes::{}", format!("{:?}", t.layout).to_lowercase());
    let test = "a_process_killed_after_its_claim_leaves_a_usable_key";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(URLS, SHARDS.map(|shard| t.on(shard).url.clone()).join("\n"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the key is claimed", async || t.eventlog_counts("idempotency_keys").await == [1, 0, 0])
        .await;
    child.kill().unwrap();
    child.wait().unwrap();
    drop(held);
    // The server may still run a statement that the killed process had sent.
    until("no session of the process is left", async || !t.on(THIRD).has_busy_sessions().await)
        .await;
    let action = Take::default();
    let key = key_at(&executor, FIRST);
    for _ in 0..2 {
        let call = executor.execute(&action, route(&accounts[2..])).idempotency_key(&*key);
        assert_eq!(call.await.unwrap(), 1);
    }
    assert!(action.runs() <= 1);
    assert_eq!(t.accounts().get(accounts[2].id).await.unwrap().version(), 2);
    assert_eq!(t.eventlog_counts("events").await, [0, 0, 1]);
}

async fn take_from_third(urls: &str) {
    let databases = crate::process::connect(urls).await;
    let accounts = databases.repository::<Account>().find_all().await.unwrap();
    let account = accounts.iter().find(|account| account.id.shard() == Some(THIRD)).unwrap();
    let executor = executor_on(&databases).await;
    let action = Take::default();
    let call = executor.execute(&action, route(std::slice::from_ref(account)));
    call.idempotency_key(key_at(&executor, FIRST)).await.unwrap();
}

async fn a_failed_call_leaves_no_claim(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let key = key_at(&executor, FIRST);
    let third = t.on(THIRD);
    let action = Take::default();
    let third_keys = third.eventlog("idempotency_decisions");
    third.hide(&third_keys).await;
    let call = || executor.execute(&action, route(&accounts[2..])).idempotency_key(&*key);
    call().await.unwrap_err();
    until("the claim is deleted", async || t.eventlog_counts("idempotency_keys").await == [0; 3])
        .await;
    third.show(&third_keys).await;
    assert_eq!(call().await.unwrap(), 1);
    assert_eq!(action.runs(), 2);
}

async fn the_homes_may_move_to_other_shards(t: &TestShards) {
    let builder = |databases: &Databases| {
        ActionExecutor::builder(databases, "com.example.sharding").model::<Note>()
    };
    let before = builder(&t.databases).key_homes([FIRST, SECOND]).build().await.unwrap();
    let after = builder(&t.databases).former_key_homes([FIRST, SECOND]).build().await.unwrap();
    let mut moved = 0;
    for n in 0..20 {
        let key = format!("key {n}");
        let (old, new) = (before.key_home(None, &key), after.key_home(None, &key));
        assert!(old != THIRD && (new == old || new == THIRD), "from {old} to {new}");
        moved += usize::from(new == THIRD);
        let action = Place::on(FIRST);
        for executor in [&before, &after, &after] {
            let call = executor.execute(&action, Nothing {}).idempotency_key(&*key);
            assert_eq!(call.await.unwrap(), FIRST.to_string());
        }
        assert_eq!(action.runs(), 1, "{key}");
    }
    assert!(moved > 0 && moved < 20, "{moved}");
    for homes in [&[][..], &[FIRST, crate::shards::UNKNOWN]] {
        let error = builder(&t.databases).key_homes(homes.iter().copied()).build().await;
        let error = error.expect_err("the homes are refused").to_string();
        assert!(error.contains("homes of idempotency keys"), "{error}");
    }
}

/// Blocks every statement on a table of the framework, until the connection is dropped.
async fn hold_table(shard: &TestShard, table: &str) -> PlainConnection {
    let mut connection = shard.connect().await;
    let table = shard.eventlog(table);
    let hold = match shard.dialect {
        Dialect::Sqlite => "BEGIN IMMEDIATE".to_owned(),
        Dialect::Postgres => format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"),
        Dialect::MySql | Dialect::MariaDb => format!("LOCK TABLES {table} WRITE"),
    };
    connection.execute(&hold).await;
    connection
}

async fn a_cross_shard_call_does_not_wait_for_a_shard_that_it_did_not_touch(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let held = hold_table(t.on(THIRD), "cross_shard_parts").await;
    let action = Take::default();
    let call = executor.execute(&action, route(&accounts[..2])).allow_cross_shard();
    let answer = tokio::time::timeout(Duration::from_secs(60), call.into_future()).await;
    answer.expect("the call waits for a shard that it did not touch").unwrap();
    until("the cross-shard records are removed", async || {
        let on = |shard| async move {
            t.on(shard).count(&t.on(shard).eventlog("cross_shard_parts")).await
        };
        on(FIRST).await + on(SECOND).await == 0
    })
    .await;
    drop(held);
}

/// The first call has claimed the key and cannot commit. The second one is not blocked.
async fn a_call_that_takes_too_long_to_commit_is_stopped_and_gets_the_other_output(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let (first, second) = (t.executor().await, executor_on(&t.open_again().await).await);
    let key = key_at(&first, FIRST);
    let held = t.on(THIRD).hold_writers().await;
    let action = Take::default();
    let slow = async {
        // A lane waits for a lock for a limited time.
        let busy = Budget::new(100);
        let call = first.execute(&action, route(&accounts[2..])).idempotency_key(&*key);
        call.retry(RetryPolicy::default().with(ErrorKind::Busy, busy)).into_future().await
    };
    let quick = async {
        until("the key is claimed", async || {
            t.eventlog_counts("idempotency_keys").await == [1, 0, 0]
        })
        .await;
        // The same call, with a lane that is not blocked because it writes nothing.
        let other = Idle;
        let call = second.execute(&other, route(&accounts[2..])).idempotency_key(&*key);
        let answer = call.into_future().await.unwrap();
        drop(held);
        answer
    };
    let (slow, quick) = tokio::join!(slow, quick);
    assert_eq!((slow.unwrap(), quick), (7, 7));
    assert_eq!(t.accounts().get(accounts[2].id).await.unwrap().version(), 1);
    assert_eq!(t.eventlog_counts("events").await, [1, 0, 0]);
}

/// Has the name and parameters of [`Take`], and changes nothing.
struct Idle;

impl Action for Idle {
    const NAME: &'static str = Take::NAME;
    type Params = crate::actions::Route;
    type Output = u32;
    type Error = Failed;

    async fn perform(
        &self,
        _: &mut ActionContext<'_>,
        _: &crate::actions::Route,
    ) -> Result<u32, Failed> {
        Ok(7)
    }
}

#[tokio::test]
async fn a_failure_of_the_home_is_not_retried_without_it() {
    let t = &TestShards::start(Layout::Sqlite).await;
    let executor = t.executor().await;
    hide_keys(t.on(FIRST)).await;
    let action = Place::on(SECOND);
    let call = executor.execute(&action, Nothing {}).idempotency_key(key_at(&executor, FIRST));
    assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!((action.runs(), notes(t).await), (0, 0));
}
