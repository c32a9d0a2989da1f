//! Callers that drop an execution at every poll.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ekbatan::action::Outcome;
use ekbatan::db::ActionId;
use ekbatan::prelude::*;
use ekbatan_testkit::drop_at_poll;
use support::Dialect;
use support::soak::rounds;
use support::wallet::{Deposit, DepositMoney, Wallet};
use tokio::task::JoinSet;

use crate::ledger::Ledger;

on_every_database!(dropped_calls_commit_completely_or_not_at_all);

const TASKS: u64 = 10;

/// A dropped or finished call, and the outcome that was asked for later.
struct Call {
    id: ActionId,
    finished: bool,
    outcome: Outcome,
}

async fn dropped_calls_commit_completely_or_not_at_all(dialect: Dialect) {
    let ledger = Arc::new(Ledger::new(dialect).await);
    let ids = Arc::new(ledger.open_wallets(4).await);
    let dropped_at = Arc::new(Polls::default());
    let runs = rounds(200, 1_000) as u64;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (ledger, ids, dropped_at) = (ledger.clone(), ids.clone(), dropped_at.clone());
        tasks.spawn(async move {
            let mut calls = Vec::new();
            for run in 0..runs {
                let seed = task * runs + run;
                calls.push(call_and_leave(&ledger, &ids, seed, &dropped_at).await);
            }
            calls
        });
    }
    let calls: Vec<Call> = tasks.join_all().await.into_iter().flatten().collect();
    let stored: HashMap<Uuid, usize> = ledger.rows_per_action().await;
    for call in &calls {
        let rows = stored.get(&call.id.0).copied().unwrap_or(0);
        let expected = usize::from(call.outcome == Outcome::Committed);
        assert_eq!(
            rows, expected,
            "the outcome of {} was {:?}, but it left {rows} rows",
            call.id, call.outcome
        );
        assert!(!call.finished || rows == 1, "{} was answered success and is not stored", call.id);
    }
    let committed = calls.iter().filter(|call| call.outcome == Outcome::Committed).count();
    ledger.assert_sound(committed).await;
    ledger.nothing_is_held().await;
    ledger.deposit(ids[0]).await.expect("the lanes still commit");
    dropped_at.assert_every_stage_was_met(calls.len() - committed, committed);
}

async fn call_and_leave(
    ledger: &Ledger,
    wallets: &[Id<Wallet>],
    seed: u64,
    dropped_at: &Polls,
) -> Call {
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
    Call { id, finished: finished.is_some_and(|answer| answer.is_ok()), outcome }
}

/// The number of calls that were dropped at each poll. Every early poll must occur.
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
            "{not_committed} did not commit, {committed} committed"
        );
    }
}
