//! Many tasks deposit on one wallet: with every strategy the balance is right and the events are
//! complete.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;

use ekbatan::action::{Budget, Coalesced, ErrorKind, KeyScope, Leases, Pessimistic, RetryPolicy};
use ekbatan::db::ActionId;
use ekbatan::lock::{LockKey, LockProvider, ProcessBackend};
use ekbatan::prelude::*;
use support::soak::rounds;
use support::things::THINGS;
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet, WalletError};
use support::{Dialect, TestDatabase, TextRow};
use tokio::task::JoinSet;

pub const TASKS: usize = 64;

support::on_every_database! {
    #[tokio::test(flavor = "multi_thread")]
    |dialect| dialect;
    coalesced_money_is_right,
    coalesced_money_under_a_lease_is_right,
    pessimistic_money_is_right,
    optimistic_money_is_right,
    adaptive_money_is_right,
}

async fn coalesced_money_is_right(dialect: Dialect) {
    money_is_right(dialect, Contention::coalesced(), rounds(1_500, 10_000)).await;
}

async fn coalesced_money_under_a_lease_is_right(dialect: Dialect) {
    let leased = Coalesced::default().under_lease(Pessimistic::default());
    money_is_right(dialect, leased.into(), rounds(1_500, 10_000)).await;
}

/// Few calls: each takes several round trips, one after another.
async fn pessimistic_money_is_right(dialect: Dialect) {
    money_is_right(dialect, Contention::pessimistic(), rounds(400, 1_000)).await;
}

/// Few calls: most attempts fail.
async fn optimistic_money_is_right(dialect: Dialect) {
    money_is_right(dialect, Contention::Optimistic, rounds(400, 1_000)).await;
}

async fn adaptive_money_is_right(dialect: Dialect) {
    money_is_right(dialect, Contention::adaptive(), rounds(1_500, 10_000)).await;
}

/// The amount and the idempotency key of the `n`th call. One call in twenty is refused, one in
/// fifty repeats the call before it.
fn call(n: usize) -> (Decimal, Option<String>) {
    match n % 50 {
        7 => (Decimal::from(n), Some(format!("key {n}"))),
        8 => (Decimal::from(n - 1), Some(format!("key {}", n - 1))),
        n if n % 20 == 3 => (Decimal::from(-1), None),
        n => (Decimal::from(n), None),
    }
}

/// The id of a call's action, and the call's answer.
pub type Answered = (ActionId, Result<Stored<Wallet>, ExecuteError<WalletError>>);

async fn deposit(executor: ActionExecutor, wallet: Id<Wallet>, n: usize) -> Answered {
    let (amount, key) = call(n);
    let call = executor.execute(&DepositMoney, Deposit { wallet, amount });
    let call = call.contention_keys([LockKey::of("wallet", wallet)]).principal(n.to_string());
    let id = call.action_id();
    match key {
        Some(key) => (id, call.idempotency_key(key).await),
        None => (id, call.await),
    }
}

async fn money_is_right(dialect: Dialect, contention: Contention, calls: usize) {
    let db = TestDatabase::start(&THINGS, dialect).await;
    let leases = LockProvider::new(ProcessBackend::default(), "test");
    let executor = executor(&db.databases, leases, contention).await;
    let wallet = open_wallet(&executor).await;
    let answers = deposit_all(&executor, wallet, 0..TASKS, calls).await;
    check(&db, wallet, &answers).await;
}

/// An executor that retries conflicts practically without limit.
pub async fn executor(
    databases: &Databases,
    leases: impl Leases,
    contention: Contention,
) -> ActionExecutor {
    let quick = Budget::new(100_000).base(Duration::from_millis(1)).cap(Duration::from_millis(50));
    ActionExecutor::builder(databases, "tests")
        .model::<Wallet>()
        .retry(RetryPolicy::none().with(ErrorKind::Stale, quick).with(ErrorKind::Deadlock, quick))
        .leases(leases)
        .contention(contention)
        // Each call has a principal of its own, also the one that repeats a key.
        .key_scope(KeyScope::Namespace)
        .build()
        .await
        .unwrap()
}

pub async fn open_wallet(executor: &ActionExecutor) -> Id<Wallet> {
    let opening = Opening { owner: "all".to_owned(), currency: "EUR".to_owned() };
    executor.execute(&OpenWallet, opening).await.unwrap().id
}

/// Runs some of the [`TASKS`] tasks and returns the answers to their calls.
pub async fn deposit_all(
    executor: &ActionExecutor,
    wallet: Id<Wallet>,
    of: Range<usize>,
    calls: usize,
) -> BTreeMap<usize, Answered> {
    let mut tasks = JoinSet::new();
    for task in of {
        let executor = executor.clone();
        tasks.spawn(async move {
            let mut answers = Vec::new();
            for n in (task..calls).step_by(TASKS) {
                answers.push((n, deposit(executor.clone(), wallet, n).await));
            }
            answers
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

pub async fn check(db: &TestDatabase, id: Id<Wallet>, answers: &BTreeMap<usize, Answered>) {
    let events = check_answers(db, id, answers).await;
    // One process generates growing ids.
    assert!(events.is_sorted_by_key(|row| row[0].clone()));
}

/// Checks the wallet and its events against the answers; returns the events ordered by version.
pub async fn check_answers(
    db: &TestDatabase,
    id: Id<Wallet>,
    answers: &BTreeMap<usize, Answered>,
) -> Vec<TextRow> {
    let mut balance = Decimal::ZERO;
    let mut versions: HashMap<i64, Vec<usize>> = HashMap::new();
    for (n, (_, answer)) in answers {
        match (call(*n), answer) {
            ((amount, _), Ok(wallet)) if amount > Decimal::ZERO => {
                let of_version = versions.entry(wallet.version()).or_default();
                of_version.push(*n);
                if of_version.len() == 1 {
                    balance += amount;
                }
            }
            ((amount, _), Err(ExecuteError::Domain(WalletError::AmountNotPositive(it)))) => {
                assert_eq!(amount, *it);
            }
            (call, answer) => panic!("{n}: {call:?} was answered {answer:?}"),
        }
    }
    let wallet = db.databases.repository::<Wallet>().get(id).await.unwrap();
    let deposits = versions.len() as i64;
    assert_eq!((wallet.balance, wallet.version()), (balance, deposits + 1));
    // Two calls share a version only when one repeats the other; both have the same answer.
    for shared in versions.values().filter(|of_version| of_version.len() > 1) {
        let [a, b] = shared[..] else { panic!("{shared:?} share a version") };
        assert_eq!(call(a).1, call(b).1);
        assert!(call(a).1.is_some());
        assert_eq!(answers[&a].1.as_ref().unwrap(), answers[&b].1.as_ref().unwrap());
    }
    let repeated = answers.keys().filter(|n| **n % 50 == 8).count();
    assert_eq!(versions.values().filter(|shared| shared.len() == 2).count(), repeated);

    let tail = format!("FROM {} WHERE model_id = '{id}'", db.eventlog("events"));
    let columns = ["id", "model_version", "action_id", "principal", "event_index"];
    let mut events = db.select(&columns, &tail).await;
    let text = |row: &TextRow, at: usize| row[at].clone().unwrap();
    events.sort_by_key(|row| text(row, 1).parse::<i64>().unwrap());
    let logged: Vec<i64> = events.iter().map(|row| text(row, 1).parse().unwrap()).collect();
    assert_eq!(logged, (1..=deposits + 1).collect::<Vec<i64>>(), "one event per version, in order");
    for row in &events[1..] {
        let n: usize = text(row, 3).parse().unwrap();
        let (action, answer) = &answers[&n];
        assert_eq!(text(row, 2), action.to_string());
        assert_eq!(text(row, 4), "0");
        let version: i64 = text(row, 1).parse().unwrap();
        assert_eq!(answer.as_ref().unwrap().version(), version);
    }
    events
}
