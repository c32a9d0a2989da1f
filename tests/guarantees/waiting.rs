//! Commits that wait for a lane: how many may wait, and how they leave the queue.
//!
//! The only lane of a database is busy, because another session keeps its row locked (on SQLite:
//! the file).

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::{Budget, Contention, ErrorKind, Outcome, RetryPolicy};
use ekbatan::config::DataSourceConfig;
use ekbatan::lock::LockKey;
use ekbatan::prelude::*;
use support::wallet::{Deposit, DepositMoney, Wallet, WalletError};
use support::{Dialect, InterruptedDeposit, PlainConnection, ScratchDatabase};
use tokio::task::JoinSet;

use crate::bounded;
use crate::ledger::Ledger;
use crate::other_sessions::lock_wallet;

on_every_database! {
    callers_whose_deadline_passes_leave_the_queue,
    callers_beyond_the_bound_are_refused_at_once,
    a_dropped_caller_leaves_the_queue,
    the_executor_sets_the_deadline_of_its_calls,
    a_deadline_that_is_over_sends_nothing,
}

/// A ledger with one lane, which is busy.
struct BusyLane {
    ledger: Arc<Ledger>,
    ids: Vec<Id<Wallet>>,
    holder: PlainConnection,
    _scratch: ScratchDatabase,
}

impl BusyLane {
    async fn new(dialect: Dialect, set: impl FnOnce(DataSourceConfig) -> DataSourceConfig) -> Self {
        let scratch = ScratchDatabase::create(dialect).await;
        let patient = scratch
            .config()
            .lanes(1)
            .connection_timeout(Duration::from_secs(300))
            .commit_timeout(Duration::from_secs(600));
        let ledger = Ledger::with_config(set(patient)).await;
        let ids = ledger.open_wallets(4).await;
        let mut holder = scratch.connect().await;
        if dialect == Dialect::Sqlite {
            holder.execute("BEGIN IMMEDIATE").await;
        } else {
            holder.execute("BEGIN").await;
            lock_wallet(&mut holder, ids[0]).await;
        }
        let busy = Self { ledger: Arc::new(ledger), ids, holder, _scratch: scratch };
        bounded("the lane takes a commit", busy.occupy_lane()).await;
        busy
    }

    /// Returns once the lane has taken a commit that it cannot finish. Only then the call's
    /// result is unknown at its deadline.
    async fn occupy_lane(&self) {
        loop {
            let error = self.deposit(0, Duration::from_millis(300)).await.unwrap_err();
            match error.kind() {
                ErrorKind::CommitUnknown => return,
                kind => assert_eq!(kind, ErrorKind::Deadline, "{error}"),
            }
        }
    }

    async fn deposit(
        &self,
        wallet: usize,
        deadline: Duration,
    ) -> Result<Stored<Wallet>, ExecuteError<WalletError>> {
        let deposit = Deposit { wallet: self.ids[wallet], amount: Decimal::ONE };
        self.ledger.executor.execute(&DepositMoney, deposit).deadline(deadline).await
    }

    /// Lets the lane go on. Returns once the commit that it had taken is committed, and checks
    /// that so many deposits are.
    async fn release(mut self, deposits: usize) {
        self.holder.execute("COMMIT").await;
        bounded("the lane is free", self.ledger.deposit(self.ids[0])).await.unwrap();
        self.ledger.assert_sound(1 + deposits + 1).await;
    }
}

async fn callers_whose_deadline_passes_leave_the_queue(dialect: Dialect) {
    const CALLERS: usize = 500;
    let busy = Arc::new(BusyLane::new(dialect, |config| config.queue_limit(CALLERS)).await);
    // If one of them stayed in the queue, callers of the next round would be refused.
    for _ in 0..4 {
        let mut calls = JoinSet::new();
        for n in 0..CALLERS {
            let busy = busy.clone();
            calls.spawn(async move { busy.deposit(1 + n % 3, Duration::from_millis(500)).await });
        }
        for answer in bounded("callers with a deadline", calls.join_all()).await {
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Deadline, "{error}");
        }
    }
    let busy = Arc::into_inner(busy).expect("all callers are gone");
    busy.release(0).await;
}

async fn callers_beyond_the_bound_are_refused_at_once(dialect: Dialect) {
    let busy = BusyLane::new(dialect, |config| config.queue_limit(3)).await;
    let mut calls = JoinSet::new();
    for id in [1, 2, 3, 1, 2, 3, 1, 2].map(|n| busy.ids[n]) {
        let ledger = busy.ledger.clone();
        calls.spawn(async move { ledger.deposit(id).await });
    }
    for _ in 0..5 {
        let refused = bounded("a call that is refused", calls.join_next()).await;
        let error = refused.unwrap().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
        assert!(error.is_retryable());
        assert!(error.to_string().contains("queue-limit"), "{error}");
    }
    let BusyLane { ledger, mut holder, .. } = busy;
    holder.execute("COMMIT").await;
    for answer in bounded("the calls in the queue", calls.join_all()).await {
        answer.unwrap();
    }
    ledger.assert_sound(4).await;
}

/// A deposit with an effect, whose commit runs in a task of its own.
struct WithEffect;

impl Action for WithEffect {
    const NAME: &'static str = "wallet.deposit_with_effect";
    type Params = Deposit;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<Stored<Wallet>, WalletError> {
        let wallet =
            ctx.get(params.wallet).await?.change(|wallet| wallet.deposit(params.amount))?;
        ctx.plan().after_commit("nothing", |_| async { Ok::<(), std::io::Error>(()) });
        Ok(ctx.plan().update(wallet))
    }
}

const MOMENT: Duration = Duration::from_millis(200);

/// The policy of calls that are to fill a queue, while [`filled`] may have a place in it.
pub fn insist() -> RetryPolicy {
    let quick = Budget::new(u32::MAX).cap(Duration::from_millis(10));
    RetryPolicy::none().with(ErrorKind::Overloaded, quick)
}

/// Returns once a further call is refused. Until then it leaves the queue to others for longer
/// than it waits there itself.
pub async fn filled(
    mut call: impl AsyncFnMut() -> Result<Stored<Wallet>, ExecuteError<WalletError>>,
) {
    loop {
        match call().await.unwrap_err().kind() {
            ErrorKind::Overloaded => return,
            kind => assert_eq!(kind, ErrorKind::Deadline),
        }
        tokio::time::sleep(MOMENT * 2).await;
    }
}

async fn a_dropped_caller_leaves_the_queue(dialect: Dialect) {
    let busy = Arc::new(BusyLane::new(dialect, |config| config.queue_limit(1)).await);
    for with_effect in [false, true] {
        let (task, id) = (busy.clone(), uuid::Uuid::now_v7());
        let waiting = tokio::spawn(async move {
            let deposit = Deposit { wallet: task.ids[1], amount: Decimal::ONE };
            if with_effect {
                let call = task.ledger.executor.execute(&WithEffect, deposit);
                call.with_action_id(id).retry(insist()).await.map(drop)
            } else {
                let call = task.ledger.executor.execute(&DepositMoney, deposit);
                call.with_action_id(id).retry(insist()).await.map(drop)
            }
        });
        bounded("the queue is full", filled(async || busy.deposit(2, MOMENT).await)).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        let outcome = busy.ledger.executor.outcome(ekbatan::db::ActionId(id));
        let outcome = bounded("the outcome of a dropped call", outcome).await.unwrap();
        assert_eq!(outcome, Outcome::NotCommitted);
        let error = busy.deposit(2, MOMENT).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadline, "there is room: {error}");
    }
    let busy = Arc::into_inner(busy).expect("all callers are gone");
    busy.release(0).await;
}

async fn the_executor_sets_the_deadline_of_its_calls(dialect: Dialect) {
    let busy = BusyLane::new(dialect, |config| config).await;
    let after = Duration::from_millis(300);
    let executor = ActionExecutor::builder(&busy.ledger.databases, "tests")
        .deadline(after)
        .build()
        .await
        .unwrap();
    let deposit = || Deposit { wallet: busy.ids[1], amount: Decimal::ONE };
    let answer = bounded("a call", executor.execute(&DepositMoney, deposit()).into_future()).await;
    match answer {
        Err(ExecuteError::Deadline { after: given, .. }) => assert_eq!(given, after),
        other => panic!("{other:?}"),
    }
    // A call says that it has no deadline.
    let BusyLane { ledger, mut holder, .. } = busy;
    let call = executor.execute(&DepositMoney, deposit()).deadline(Duration::MAX);
    let releasing = async {
        tokio::time::sleep(after * 2).await;
        holder.execute("COMMIT").await;
    };
    let (answer, ()) = tokio::join!(call.into_future(), releasing);
    answer.unwrap();
    ledger.assert_sound(2).await;
}

async fn a_deadline_that_is_over_sends_nothing(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let deposit = || Deposit { wallet: id, amount: Decimal::ONE };
    let key = LockKey::of("wallet", id);
    let short = Duration::from_millis(20);
    // Returns to the framework only when the deadline is over, without a pause in which a timer
    // could run.
    let late = InterruptedDeposit(|_| async move { std::thread::sleep(short * 2) });
    for contention in [Contention::Optimistic, Contention::coalesced()] {
        for idempotent in [false, true] {
            let mut calls = Vec::new();
            let call = ledger.executor.execute(&DepositMoney, deposit()).deadline(Duration::ZERO);
            let call = call.contention(contention.clone()).contention_keys([key.clone()]);
            let key_name = format!("{contention:?}");
            let call = if idempotent { call.idempotency_key(&key_name) } else { call };
            calls.push((call.action_id(), call.into_future()));
            let call = ledger.executor.execute(&late, deposit()).deadline(short);
            let call = call.contention(contention.clone()).contention_keys([key.clone()]);
            let call = if idempotent { call.idempotency_key(&key_name) } else { call };
            calls.push((call.action_id(), call.into_future()));
            let call = ledger.executor.execute(&WithEffect, deposit()).deadline(Duration::ZERO);
            calls.push((call.action_id(), call.into_future()));
            for (action, call) in calls {
                let error = call.await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Deadline, "{error}");
                let outcome = ledger.executor.outcome(action).await.unwrap();
                assert_eq!(outcome, Outcome::NotCommitted);
            }
        }
    }
    ledger.assert_sound(0).await;
}
