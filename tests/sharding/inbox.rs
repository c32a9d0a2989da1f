//! Messages from outside whose actions write to several shards, or to another one than the home of
//! the message.

use std::future::IntoFuture;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::Once;
use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use support::until;
use tokio::sync::Barrier;

use crate::actions::{Nothing, Take, route, stage};
use crate::models::{Account, note, quiet};
use crate::shards::{FIRST, SECOND, SHARDS, THIRD, TestShards, executor_on};

on_every_layout! {
    a_message_has_one_effect_although_its_calls_choose_other_shards,
    a_message_whose_action_writes_to_several_shards_has_one_effect,
    a_message_needs_only_its_home_and_the_touched_shards,
    a_claim_of_a_message_without_a_decision_is_taken_over,
    a_process_killed_after_its_claim_leaves_a_message_that_can_be_handled,
}

/// The id of a message whose home is this shard.
fn message_at(executor: &ActionExecutor, home: ShardIdentifier, name: &str) -> String {
    let ids = (0..1_000).map(|n| format!("{name} {n}"));
    let mut of_home = ids.filter(|id| executor.message_home("payments", id) == home);
    of_home.next().expect("every shard is the home of some messages")
}

async fn notes(t: &TestShards) -> usize {
    t.counts("notes").await.iter().sum()
}

async fn a_message_has_one_effect_although_its_calls_choose_other_shards(t: &TestShards) {
    let executors = [executor_on(&t.open_again().await).await, t.executor().await];
    let mut expected = 0;
    for home in SHARDS {
        for shards in [[SECOND, THIRD], [SECOND, SECOND], [FIRST, THIRD]] {
            let message = message_at(&executors[0], home, &format!("{shards:?}"));
            // Both read the inbox before one of them writes.
            let barrier = Arc::new(Barrier::new(2));
            let actions = shards.map(|shard| Place { shard, barrier: barrier.clone() });
            let call = |n: usize| {
                let call = executors[n].execute(&actions[n], Nothing {});
                call.once("payments", &*message).into_future()
            };
            let (one, other) = tokio::join!(call(0), call(1));
            let done = [one.unwrap(), other.unwrap()].map(|answer| answer == Once::Done(()));
            assert!(done[0] != done[1], "{message}: {done:?}");
            expected += 1;
            assert_eq!(notes(t).await, expected, "{message}");
        }
    }
    assert_eq!(t.eventlog_counts("inbox").await.iter().sum::<usize>(), expected);
}

/// Adds a note to a shard. The first attempt meets another call before.
struct Place {
    shard: ShardIdentifier,
    barrier: Arc<Barrier>,
}

impl Action for Place {
    const NAME: &'static str = "sharding.place_once";
    type Params = Nothing;
    type Output = ();
    type Error = crate::actions::Failed;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        _: &Nothing,
    ) -> Result<(), crate::actions::Failed> {
        if ctx.attempt() == 1 {
            self.barrier.wait().await;
        }
        ctx.plan().add(quiet(note(self.shard, &Uuid::now_v7().to_string())));
        Ok(())
    }
}

async fn a_message_whose_action_writes_to_several_shards_has_one_effect(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executors = [t.executor().await, executor_on(&t.open_again().await).await];
    let action = Take::default();
    for (n, home) in SHARDS.into_iter().enumerate() {
        // On one of them the home is not touched, and the message is claimed there.
        let now = [
            t.accounts().get(accounts[2].id).await.unwrap(),
            t.accounts().get(accounts[1].id).await.unwrap(),
        ];
        let message = message_at(&executors[0], home, "several");
        for (nth, executor) in executors.iter().chain(&executors).enumerate() {
            let call = executor.execute(&action, route(&now)).allow_cross_shard();
            let expected = if nth == 0 { Once::Done(1) } else { Once::Duplicate };
            assert_eq!(call.once("payments", &*message).await.unwrap(), expected);
        }
        assert_eq!(action.runs() as usize, n + 1);
    }
    assert_eq!(t.eventlog_counts("inbox").await, [1; 3]);
    assert_eq!(t.eventlog_counts("events").await, [0, 3, 3]);
    until("every claim is complete", async || {
        t.eventlog_counts("idempotency_decisions").await == [0; 3]
    })
    .await;
}

async fn a_message_needs_only_its_home_and_the_touched_shards(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let third = t.on(THIRD);
    third.hide(&third.eventlog("inbox")).await;
    let action = Take::default();
    for home in [FIRST, SECOND] {
        let message = message_at(&executor, home, "reachable");
        let account = t.accounts().get(accounts[0].id).await.unwrap();
        let call = || {
            let call = executor.execute(&action, route(std::slice::from_ref(&account)));
            call.once("payments", &*message)
        };
        assert_eq!(call().await.unwrap(), Once::Done(1));
        assert_eq!(call().await.unwrap(), Once::Duplicate);
    }
    let (runs, message) = (action.runs(), message_at(&executor, THIRD, "away"));
    let error = executor.execute(&action, route(&accounts[..1])).once("payments", message).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("shard 3/7, the home of the message"), "{error}");
    assert_eq!(action.runs(), runs);
}

/// What a process leaves that died after its claim: the row is a claim without a decision.
async fn a_claim_of_a_message_without_a_decision_is_taken_over(t: &TestShards) {
    let executor = t.executor().await;
    let action = stage(|ctx| {
        ctx.plan().add(quiet(note(THIRD, &Uuid::now_v7().to_string())));
    });
    let message = message_at(&executor, FIRST, "claimed");
    let call = || {
        let call = executor.execute(&action, Nothing {}).once("payments", &*message);
        call.deadline(Duration::from_secs(100))
    };
    assert_eq!(call().await.unwrap(), Once::Done(()));
    until("the claim is complete", async || {
        t.eventlog_counts("idempotency_decisions").await == [0; 3]
    })
    .await;
    let (claim, at_home) = (Uuid::now_v7(), t.on(FIRST));
    let inbox = at_home.eventlog("inbox");
    let make = format!("UPDATE {inbox} SET claim_id = '{claim}', shards = '{THIRD}'");
    at_home.execute(&make).await;
    assert_eq!(call().await.unwrap(), Once::Done(()));
    assert_eq!((action.runs(), t.eventlog_counts("inbox").await), (2, [1, 0, 0]));
    assert_eq!(call().await.unwrap(), Once::Duplicate);
}

/// The URLs of the shards, for the process that is killed.
const URLS: &str = "EKBATAN_TEST_KILLED_MESSAGE_URLS";

async fn a_process_killed_after_its_claim_leaves_a_message_that_can_be_handled(t: &TestShards) {
    if let Ok(urls) = std::env::var(URLS) {
        return take_from_third(&urls).await;
    }
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let held = t.on(THIRD).hold_writers().await;
    let module = format!("inbox::{}", format!("{:?}", t.layout).to_lowercase());
    let test = "a_process_killed_after_its_claim_leaves_a_message_that_can_be_handled";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(URLS, SHARDS.map(|shard| t.on(shard).url.clone()).join("\n"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the message is claimed", async || t.eventlog_counts("inbox").await == [1, 0, 0]).await;
    child.kill().unwrap();
    child.wait().unwrap();
    drop(held);
    // The server may still run a statement that the killed process had sent.
    until("no session of the process is left", async || !t.on(THIRD).has_busy_sessions().await)
        .await;
    let action = Take::default();
    let message = message_at(&executor, FIRST, "killed");
    for _ in 0..2 {
        let call = executor.execute(&action, route(&accounts[2..])).once("payments", &*message);
        call.await.unwrap();
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
    call.once("payments", message_at(&executor, FIRST, "killed")).await.unwrap();
}
