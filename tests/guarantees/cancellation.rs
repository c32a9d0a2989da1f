//! Callers that go away at every point at which they can.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ekbatan::action::Outcome;
use ekbatan::db::ActionId;
use ekbatan::prelude::*;
use ekbatan_testkit::drop_at_poll;
use support::Dialect;
use support::wallet::{Deposit, DepositMoney, Wallet};
use tokio::task::JoinSet;

use crate::ledger::Ledger;

on_every_database!(dropped_callers_leave_all_or_nothing);

const TASKS: u64 = 10;
const RUNS_PER_TASK: u64 = 1_000;

/// What a caller who went away was told later.
struct Told {
    id: ActionId,
    finished: bool,
    outcome: Outcome,
}

async fn dropped_callers_leave_all_or_nothing(dialect: Dialect) {
    let ledger = Arc::new(Ledger::new(dialect).await);
    let ids = Arc::new(ledger.open_wallets(4).await);
    let dropped_at = Arc::new(Polls::default());
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (ledger, ids, dropped_at) = (ledger.clone(), ids.clone(), dropped_at.clone());
        tasks.spawn(async move {
            let mut told = Vec::new();
            for run in 0..RUNS_PER_TASK {
                let seed = task * RUNS_PER_TASK + run;
                told.push(call_and_leave(&ledger, &ids, seed, &dropped_at).await);
            }
            told
        });
    }
    let told: Vec<Told> = tasks.join_all().await.into_iter().flatten().collect();
    let stored: HashMap<Uuid, usize> = ledger.rows_per_action().await;
    for call in &told {
        let rows = stored.get(&call.id.0).copied().unwrap_or(0);
        let expected = usize::from(call.outcome == Outcome::Committed);
        assert_eq!(
            rows, expected,
            "the outcome of {} was {:?}, but it left {rows} rows",
            call.id, call.outcome
        );
        assert!(!call.finished || rows == 1, "{} was answered success and is not there", call.id);
    }
    let committed = told.iter().filter(|call| call.outcome == Outcome::Committed).count();
    ledger.assert_sound(committed).await;
    ledger.assert_nothing_held();
    ledger.deposit(ids[0]).await.expect("the lanes still commit");
    dropped_at.assert_every_stage_was_met(told.len() - committed, committed);
}

async fn call_and_leave(
    ledger: &Ledger,
    wallets: &[Id<Wallet>],
    seed: u64,
    dropped_at: &Polls,
) -> Told {
    let mut random = fastrand::Rng::with_seed(seed);
    let deposit = Deposit { wallet: wallets[random.usize(..wallets.len())], amount: Decimal::ONE };
    let mut call = ledger.executor.execute(&DepositMoney, deposit);
    let id = call.action_id();
    if random.bool() {
        call = call.idempotency_key(format!("key {seed}"));
    }
    let polls = random.usize(0..14);
    let finished = drop_at_poll(polls, call.into_future()).await.finished();
    if finished.is_none() {
        dropped_at.count(polls);
    }
    let outcome = ledger.executor.outcome(id).await.unwrap();
    Told { id, finished: finished.is_some_and(|answer| answer.is_ok()), outcome }
}

/// At which polls callers were dropped: the harness must have met them all to show anything.
#[derive(Default)]
struct Polls([AtomicU64; 14]);

impl Polls {
    fn count(&self, polls: usize) {
        self.0[polls].fetch_add(1, Ordering::Relaxed);
    }

    fn assert_every_stage_was_met(&self, not_committed: usize, committed: usize) {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        assert!(counts[..4].iter().all(|count| *count > 0), "drops per poll: {counts:?}");
        assert!(
            not_committed > 100 && committed > 100,
            "{not_committed} left nothing, {committed} committed"
        );
    }
}
