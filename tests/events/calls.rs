//! Calls that actions enqueue, to run later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ekbatan::action::{Contention, ErrorKind, Priority};
use ekbatan::domain::LockKey;
use ekbatan::events::{HandlerOptions, Node, Retention};
use ekbatan::prelude::*;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use support::{Dialect, until};
use tokio::sync::Semaphore;

use crate::scene::{Entry, PostEntry, Posting, Scene, node};

on_every_database! {
    a_call_is_committed_with_its_action_or_not_at_all,
    a_cancelled_call_cannot_commit_although_it_runs,
    the_last_call_with_a_key_is_cancelled_and_an_earlier_one_that_runs_is_not,
    calls_in_turn_run_one_after_another_on_all_nodes,
    of_calls_that_are_unique_one_waits,
    racing_actions_enqueue_a_unique_call_once,
    a_unique_call_that_is_enqueued_while_another_runs_runs_after_it,
    a_failed_call_is_tried_again_and_given_up,
    a_call_waits_for_its_time,
    a_call_that_no_node_knows_waits_and_is_reported,
    a_call_runs_in_the_name_of_who_enqueued_it,
    a_waiting_call_is_cancelled_and_replaced,
    keys_of_calls_are_deleted_once_their_calls_have_ended,
    a_waiting_call_outlasts_what_deletes_old_rows,
    actions_that_commit_together_enqueue_by_their_keys,
    a_call_enqueues_the_next_one,
    a_call_without_parameters_runs,
}

mod refused {
    use crate::calls::*;

    on_every_database! { only sqlite: what_cannot_be_enqueued_is_refused }
}

/// What an action does with calls of [`PostEntry`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Steps {
    pub enqueued: Vec<Step>,
    /// The unique key of a call that is cancelled before.
    pub cancelled: Option<String>,
    /// Whether the action fails at its end.
    pub fails: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Step {
    pub number: i64,
    /// 1 for a high priority, -1 for a low one.
    pub priority: i64,
    pub after: Option<Duration>,
    pub at: Option<DateTime<Utc>>,
    pub unique: Option<String>,
    pub in_turn: Option<String>,
}

struct EnqueueEntries;

#[derive(Debug, thiserror::Error)]
#[error("the action fails")]
pub struct Failed;

impl Action for EnqueueEntries {
    const NAME: &'static str = "ledger.enqueue_entries";
    type Params = Steps;
    type Output = ();
    type Error = Failed;

    async fn perform(&self, ctx: &mut ActionContext<'_>, steps: &Steps) -> Result<(), Failed> {
        if let Some(key) = &steps.cancelled {
            ctx.plan().cancel(&PostEntry, key);
        }
        for step in steps.enqueued.clone() {
            let mut call = ctx.plan().enqueue(&PostEntry, posting(step.number));
            call = match step.priority {
                1 => call.priority(Priority::High),
                -1 => call.priority(Priority::Low),
                _ => call,
            };
            if let Some(after) = step.after {
                call = call.after(after);
            }
            if let Some(at) = step.at {
                call = call.at(at);
            }
            if let Some(key) = step.unique {
                call = call.unique(key);
            }
            if let Some(key) = step.in_turn {
                call.in_turn(key);
            }
        }
        if steps.fails { Err(Failed) } else { Ok(()) }
    }
}

fn posting(number: i64) -> Posting {
    Posting { event: Uuid::now_v7(), wallet: "calls".to_owned(), wallet_version: number }
}

/// Calls without a key.
fn plain(numbers: impl IntoIterator<Item = i64>) -> Steps {
    let step = |number| Step { number, ..Step::default() };
    Steps { enqueued: numbers.into_iter().map(step).collect(), ..Steps::default() }
}

fn unique(number: i64, key: &str) -> Steps {
    let step = Step { number, unique: Some(key.to_owned()), ..Step::default() };
    Steps { enqueued: vec![step], ..Steps::default() }
}

pub async fn enqueue(executor: &ActionExecutor, steps: Steps) {
    executor.execute(&EnqueueEntries, steps).await.unwrap();
}

/// Posts entries as [`PostEntry`] does, if and when a test lets it.
#[derive(Clone)]
pub struct Gated {
    /// A run takes a permit, which it gives back.
    pub gate: Arc<Semaphore>,
    failures: Arc<AtomicU32>,
    pub begun: Arc<AtomicU32>,
    /// How many run at the moment, and at most.
    running: Arc<[AtomicU32; 2]>,
}

impl Gated {
    pub fn new(permits: usize) -> Self {
        Self {
            gate: Arc::new(Semaphore::new(permits)),
            failures: Arc::default(),
            begun: Arc::default(),
            running: Arc::default(),
        }
    }

    /// It fails so many times first.
    pub fn failing(times: u32) -> Self {
        let gated = Self::new(1);
        gated.failures.store(times, Ordering::SeqCst);
        gated
    }
}

impl Action for Gated {
    const NAME: &'static str = PostEntry::NAME;
    type Params = Posting;
    type Output = ();
    type Error = Failed;

    async fn perform(&self, ctx: &mut ActionContext<'_>, posting: &Posting) -> Result<(), Failed> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let [running, most] = &*self.running;
        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let _permit = self.gate.acquire().await.unwrap();
        running.fetch_sub(1, Ordering::SeqCst);
        let fails = |left: u32| left.checked_sub(1);
        if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            return Err(Failed);
        }
        PostEntry.perform(ctx, posting).await.map_err(|never| match never {})
    }
}

/// The numbers of the calls that were run, in their order.
pub async fn run(scene: &Scene) -> Vec<i64> {
    let mut entries = scene.entries().find_where(Entry::WALLET.eq("calls")).await.unwrap();
    entries.sort_by_key(|entry| entry.id.uuid());
    entries.iter().map(|entry| entry.wallet_version).collect()
}

pub async fn waiting(scene: &Scene) -> u64 {
    scene.operations().pending(PostEntry::NAME).await.unwrap()
}

async fn start(executor: &ActionExecutor, action: impl Action + 'static) -> Node {
    let options =
        HandlerOptions::default().retry(Duration::from_millis(1), Duration::from_millis(5));
    node(executor).action_with(action, options).start().await.unwrap()
}

async fn a_call_is_committed_with_its_action_or_not_at_all(scene: &Scene) {
    let _node = start(&scene.executor, PostEntry).await;
    let failing = Steps { fails: true, ..plain([1]) };
    scene.executor.execute(&EnqueueEntries, failing).await.unwrap_err();
    enqueue(&scene.executor, plain([2, 3])).await;
    // From a process without a node.
    enqueue(&scene.open_again().await, plain([4])).await;
    scene.until_handled(PostEntry::NAME).await;
    let mut numbers = run(scene).await;
    numbers.sort_unstable();
    assert_eq!(numbers, [2, 3, 4]);
}

async fn a_cancelled_call_cannot_commit_although_it_runs(scene: &Scene) {
    let gated = Gated::new(0);
    let _node = start(&scene.executor, gated.clone()).await;
    enqueue(&scene.executor, unique(1, "a")).await;
    until("the call runs", async || gated.begun.load(Ordering::SeqCst) > 0).await;
    let cancelling = Steps { cancelled: Some("a".to_owned()), ..plain([2]) };
    enqueue(&scene.executor, cancelling).await;
    gated.gate.add_permits(1);
    until("the other call has run", async || run(scene).await.contains(&2)).await;
    scene.until_handled(PostEntry::NAME).await;
    assert_eq!(run(scene).await, [2], "the cancelled call has committed");
}

async fn the_last_call_with_a_key_is_cancelled_and_an_earlier_one_that_runs_is_not(scene: &Scene) {
    let gated = Gated::new(0);
    let _node = start(&scene.executor, gated.clone()).await;
    enqueue(&scene.executor, unique(1, "a")).await;
    until("the first call runs", async || gated.begun.load(Ordering::SeqCst) > 0).await;
    enqueue(&scene.executor, unique(2, "a")).await;
    let cancelling = Steps { cancelled: Some("a".to_owned()), ..Steps::default() };
    enqueue(&scene.executor, cancelling).await;
    gated.gate.add_permits(1);
    scene.until_handled(PostEntry::NAME).await;
    assert_eq!(run(scene).await, [1]);
}

async fn calls_in_turn_run_one_after_another_on_all_nodes(scene: &Scene) {
    let gated = Gated::new(1_000);
    let other = scene.open_again().await;
    let _nodes = [start(&scene.executor, gated.clone()).await, start(&other, gated.clone()).await];
    let call = |number| Step { number, in_turn: Some("a".to_owned()), ..Step::default() };
    for first in (0..30).step_by(3) {
        // Two in one action, and one of another process.
        let two = Steps { enqueued: vec![call(first), call(first + 1)], ..Steps::default() };
        enqueue(&scene.executor, two).await;
        let one = Steps { enqueued: vec![call(first + 2)], ..Steps::default() };
        enqueue(&other, one).await;
    }
    scene.until_handled(PostEntry::NAME).await;
    assert_eq!(run(scene).await, (0..30).collect::<Vec<_>>());
    assert_eq!(gated.running[1].load(Ordering::SeqCst), 1, "calls with one key ran side by side");
}

async fn of_calls_that_are_unique_one_waits(scene: &Scene) {
    for (number, key) in [(1, "a"), (2, "a"), (3, "b")] {
        enqueue(&scene.executor, unique(number, key)).await;
    }
    let twice = [unique(4, "c"), unique(5, "c")].map(|steps| steps.enqueued[0].clone());
    enqueue(&scene.executor, Steps { enqueued: twice.to_vec(), ..Steps::default() }).await;
    assert_eq!(waiting(scene).await, 3);
    let _node = start(&scene.executor, PostEntry).await;
    scene.until_handled(PostEntry::NAME).await;
    enqueue(&scene.executor, unique(6, "a")).await;
    scene.until_handled(PostEntry::NAME).await;
    let mut numbers = run(scene).await;
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 3, 4, 6]);
}

async fn racing_actions_enqueue_a_unique_call_once(scene: &Scene) {
    let other = scene.open_again().await;
    for key in ["a", "b", "c"] {
        let executors = [&scene.executor, &other].into_iter().cycle().take(8);
        let racing = executors.enumerate().map(|(number, executor)| async move {
            enqueue(executor, unique(number as i64, key)).await;
        });
        join_all(racing).await;
    }
    assert_eq!(waiting(scene).await, 3);
}

async fn a_unique_call_that_is_enqueued_while_another_runs_runs_after_it(scene: &Scene) {
    let gated = Gated::new(0);
    let _node = start(&scene.executor, gated.clone()).await;
    enqueue(&scene.executor, unique(1, "a")).await;
    until("the call runs", async || gated.begun.load(Ordering::SeqCst) > 0).await;
    // What the running call has read may be older than what this action writes.
    enqueue(&scene.executor, unique(2, "a")).await;
    assert_eq!(waiting(scene).await, 2);
    gated.gate.add_permits(1);
    scene.until_handled(PostEntry::NAME).await;
    let mut numbers = run(scene).await;
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
}

async fn a_failed_call_is_tried_again_and_given_up(scene: &Scene) {
    let gated = Gated::failing(2);
    let running = start(&scene.executor, gated.clone()).await;
    enqueue(&scene.executor, plain([1])).await;
    scene.until_handled(PostEntry::NAME).await;
    assert_eq!((run(scene).await, gated.begun.load(Ordering::SeqCst)), (vec![1], 3));
    running.drain(Duration::from_secs(10)).await;

    let options = HandlerOptions::default().max_attempts(1);
    let builder = scene.node().action_with(Gated::failing(1), options);
    let _node = builder.start().await.unwrap();
    enqueue(&scene.executor, unique(2, "a")).await;
    let parked = async || scene.operations().parked(10).await.unwrap();
    until("the call is given up", async || parked().await.len() == 1).await;
    // One that was given up does not keep the next one away.
    enqueue(&scene.executor, unique(3, "a")).await;
    until("the next one has run", async || run(scene).await == [1, 3]).await;
    let id = parked().await[0].id;
    scene.operations().retry(id, "alice", "the ledger is open").await.unwrap();
    until("it has run", async || run(scene).await == [1, 3, 2]).await;
}

async fn a_call_waits_for_its_time(scene: &Scene) {
    let _node = start(&scene.executor, PostEntry).await;
    let delayed = |number, after| Step { number, after: Some(after), ..Step::default() };
    let later = Duration::from_secs(2);
    let steps = vec![
        delayed(1, Duration::from_secs(24 * 60 * 60)),
        delayed(2, later),
        Step { number: 3, at: Some(DateTime::<Utc>::MIN_UTC), ..Step::default() },
    ];
    let begun = Instant::now();
    enqueue(&scene.executor, Steps { enqueued: steps, ..Steps::default() }).await;
    until("the calls of today have run", async || run(scene).await.len() == 2).await;
    assert!(begun.elapsed() >= later, "a call ran before its time");
    assert_eq!((run(scene).await, waiting(scene).await), (vec![3, 2], 1));
}

async fn a_call_that_no_node_knows_waits_and_is_reported(scene: &Scene) {
    let other = node(&scene.executor).start().await.unwrap();
    enqueue(&scene.executor, plain([1])).await;
    let status = scene.operations().status().await.unwrap();
    let of: Vec<_> = status.iter().map(|of| (of.handler.as_str(), of.pending)).collect();
    assert_eq!(of, [(PostEntry::NAME, 1)]);
    assert!(status[0].oldest.is_some());
    other.drain(Duration::from_secs(10)).await;
    let _node = start(&scene.executor, PostEntry).await;
    scene.until_handled(PostEntry::NAME).await;
    assert_eq!(run(scene).await, [1]);
}

async fn a_call_runs_in_the_name_of_who_enqueued_it(scene: &Scene) {
    let _node = start(&scene.executor, PostEntry).await;
    let call = scene.executor.execute(&EnqueueEntries, plain([1])).principal("alice");
    call.await.unwrap();
    scene.until_handled(PostEntry::NAME).await;
    let events = scene.scratch.eventlog("events");
    let of = format!("FROM {events} WHERE action_name = '{}'", PostEntry::NAME);
    let rows = scene.scratch.select(&["principal"], &of).await;
    assert_eq!(rows[0][0].as_deref(), Some("alice"));
}

async fn a_waiting_call_is_cancelled_and_replaced(scene: &Scene) {
    enqueue(&scene.executor, unique(1, "a")).await;
    let mut replacing = unique(2, "a");
    replacing.cancelled = Some("a".to_owned());
    enqueue(&scene.executor, replacing).await;
    assert_eq!(waiting(scene).await, 1);
    // Nothing waits with this key.
    let nothing = Steps { cancelled: Some("b".to_owned()), ..Steps::default() };
    enqueue(&scene.executor, nothing).await;
    let _node = start(&scene.executor, PostEntry).await;
    scene.until_handled(PostEntry::NAME).await;
    assert_eq!(run(scene).await, [2]);
}

async fn keys_of_calls_are_deleted_once_their_calls_have_ended(scene: &Scene) {
    let node = start(&scene.executor, PostEntry).await;
    enqueue(&scene.executor, unique(1, "ended")).await;
    scene.until_handled(PostEntry::NAME).await;
    node.drain(Duration::from_secs(10)).await;
    enqueue(&scene.executor, unique(2, "waits")).await;
    let keys = scene.scratch.eventlog("enqueued_keys");
    let count = async || scene.scratch.select(&["id"], &format!("FROM {keys}")).await.len();
    let retention = Retention::new().keys(Retention::LEAST);
    assert_eq!(retention.run(&scene.databases).await.unwrap().keys, 0, "they are young");
    let long_ago = match scene.scratch.dialect {
        Dialect::Sqlite => "2020-01-01T00:00:00.000000Z",
        _ => "2020-01-01 00:00:00",
    };
    scene.scratch.execute(&format!("UPDATE {keys} SET changed = '{long_ago}'")).await;
    assert_eq!((count().await, retention.run(&scene.databases).await.unwrap().keys), (2, 1));
    // The one that waits is still unique, and the other key is as if it was never used.
    enqueue(&scene.executor, unique(3, "waits")).await;
    enqueue(&scene.executor, unique(4, "ended")).await;
    assert_eq!((waiting(scene).await, count().await), (2, 2));
}

async fn a_waiting_call_outlasts_what_deletes_old_rows(scene: &Scene) {
    enqueue(&scene.executor, plain([1])).await;
    scene.age_events().await;
    let retention = Retention::new().events(Retention::LEAST);
    assert_eq!(retention.run(&scene.databases).await.unwrap().events, 0);
    scene.databases.prune_outbox(Retention::LEAST).await.unwrap();
    let node = start(&scene.executor, PostEntry).await;
    scene.until_handled(PostEntry::NAME).await;
    assert_eq!(run(scene).await, [1]);
    node.drain(Duration::from_secs(10)).await;
    // Of the row of the call and that of its run, both without an event.
    scene.age_events().await;
    assert_eq!(retention.run(&scene.databases).await.unwrap().events, 2);
}

async fn actions_that_commit_together_enqueue_by_their_keys(scene: &Scene) {
    let turns = |number| {
        let turn = Step { number, in_turn: Some("a".to_owned()), ..Step::default() };
        let mut steps = unique(100 + number, "b");
        steps.enqueued.push(turn);
        steps
    };
    let racing = (0..16).map(|number| {
        let call = scene.executor.execute(&EnqueueEntries, turns(number));
        call.contention(Contention::coalesced()).contention_keys([LockKey::named("wallet")])
    });
    for answer in join_all(racing.map(IntoFuture::into_future)).await {
        answer.unwrap();
    }
    let gated = Gated::new(1_000);
    let other = scene.open_again().await;
    let _nodes = [start(&scene.executor, gated.clone()).await, start(&other, gated.clone()).await];
    scene.until_handled(PostEntry::NAME).await;
    let (once, mut in_turn): (Vec<i64>, Vec<i64>) =
        run(scene).await.into_iter().partition(|number| *number >= 100);
    in_turn.sort_unstable();
    assert_eq!((once.len(), in_turn), (1, (0..16).collect()));
}

/// Enqueues itself until the numbers end.
struct CountDown;

impl Action for CountDown {
    const NAME: &'static str = "ledger.count_down";
    type Params = Posting;
    type Output = ();
    type Error = std::convert::Infallible;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        posting: &Posting,
    ) -> Result<(), Self::Error> {
        if posting.wallet_version > 1 {
            let next = Posting { wallet_version: posting.wallet_version - 1, ..posting.clone() };
            // It runs, and so does not keep the next one away.
            ctx.plan().enqueue(self, next).unique("count down");
        }
        PostEntry.perform(ctx, posting).await
    }
}

async fn a_call_enqueues_the_next_one(scene: &Scene) {
    let _node = start(&scene.executor, CountDown).await;
    scene.executor.execute(&CountDown, posting(5)).await.unwrap();
    until("all have run", async || run(scene).await == [5, 4, 3, 2, 1]).await;
    scene.until_handled(CountDown::NAME).await;
}

/// Posts an entry.
struct Tick;

impl Action for Tick {
    const NAME: &'static str = "ledger.tick";
    type Params = ();
    type Output = ();
    type Error = std::convert::Infallible;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &()) -> Result<(), Self::Error> {
        PostEntry.perform(ctx, &posting(1)).await
    }
}

/// Enqueues a [`Tick`].
struct Wind;

impl Action for Wind {
    const NAME: &'static str = "ledger.wind";
    type Params = ();
    type Output = ();
    type Error = std::convert::Infallible;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &()) -> Result<(), Self::Error> {
        ctx.plan().enqueue(&Tick, ());
        Ok(())
    }
}

async fn a_call_without_parameters_runs(scene: &Scene) {
    let _node = start(&scene.executor, Tick).await;
    scene.executor.execute(&Wind, ()).await.unwrap();
    until("it has run", async || run(scene).await == [1]).await;
}

async fn what_cannot_be_enqueued_is_refused(scene: &Scene) {
    let after = |after| Step { after: Some(after), ..Step::default() };
    let text = |text: &str| Some(text.to_owned());
    for (step, message) in [
        (
            after(Duration::MAX),
            "the enqueued call of `ledger.post_entry` is due 18446744073709551615.999999999s from now; not every database stores dates after the year 9999",
        ),
        (
            Step { at: Some(DateTime::<Utc>::MAX_UTC), ..Step::default() },
            "the enqueued call of `ledger.post_entry` is due +262142-12-31 23:59:59.999999999 UTC; not every database stores dates after the year 9999",
        ),
        (
            Step { unique: text(""), ..Step::default() },
            "a key of an enqueued call of `ledger.post_entry` is empty; name what the calls share",
        ),
        (
            Step { in_turn: text(""), ..Step::default() },
            "a key of an enqueued call of `ledger.post_entry` is empty; name what the calls share",
        ),
    ] {
        let steps = Steps { enqueued: vec![step], ..Steps::default() };
        let error = scene.executor.execute(&EnqueueEntries, steps).await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Plan, message));
    }
    assert_eq!(waiting(scene).await, 0);
}
