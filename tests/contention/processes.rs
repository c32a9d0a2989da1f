//! Four processes deposit on one wallet, each with an executor of its own.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use ekbatan::action::{Coalesced, Pessimistic};
use ekbatan::config::{DataSourceConfig, LockConfig};
use ekbatan::db::ActionId;
use ekbatan::lock::LockProvider;
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use support::soak::rounds;
use support::things::THINGS;
use support::wallet::{Wallet, WalletError};
use support::{Dialect, TestDatabase};

use crate::correctness::{Answered, TASKS, check_answers, deposit_all, executor, open_wallet};

const PROCESSES: usize = 4;
/// The variable that holds the [`Orders`] of a child process.
const ORDERS: &str = "EKBATAN_TEST_CONTENTION_ORDERS";
/// Marks the line with the answers in the output of a child process.
const ANSWERS: &str = "answers: ";

support::on_every_database! {
    #[tokio::test(flavor = "multi_thread")]
    |dialect| dialect;
    coalesced_money_of_four_processes_is_right,
    coalesced_money_of_four_processes_under_a_lease_is_right,
    pessimistic_money_of_four_processes_is_right,
    optimistic_money_of_four_processes_is_right,
    adaptive_money_of_four_processes_is_right,
}

async fn coalesced_money_of_four_processes_is_right(dialect: Dialect) {
    money_is_right(dialect, Strategy::Coalesced, rounds(800, 2_000)).await;
}

async fn coalesced_money_of_four_processes_under_a_lease_is_right(dialect: Dialect) {
    money_is_right(dialect, Strategy::CoalescedUnderLease, rounds(1_500, 10_000)).await;
}

async fn pessimistic_money_of_four_processes_is_right(dialect: Dialect) {
    money_is_right(dialect, Strategy::Pessimistic, rounds(300, 500)).await;
}

async fn optimistic_money_of_four_processes_is_right(dialect: Dialect) {
    money_is_right(dialect, Strategy::Optimistic, rounds(300, 500)).await;
}

async fn adaptive_money_of_four_processes_is_right(dialect: Dialect) {
    money_is_right(dialect, Strategy::Adaptive, rounds(1_500, 10_000)).await;
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Strategy {
    Coalesced,
    CoalescedUnderLease,
    Pessimistic,
    Optimistic,
    Adaptive,
}

impl Strategy {
    fn contention(self) -> Contention {
        match self {
            Strategy::Coalesced => Contention::coalesced(),
            Strategy::CoalescedUnderLease => {
                Coalesced::default().under_lease(Pessimistic::default()).into()
            }
            Strategy::Pessimistic => Contention::pessimistic(),
            Strategy::Optimistic => Contention::Optimistic,
            Strategy::Adaptive => Contention::adaptive(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Orders {
    url: String,
    eventlog: String,
    wallet: Id<Wallet>,
    strategy: Strategy,
    process: usize,
    calls: usize,
}

/// The answer to one call, as a child process prints it.
#[derive(Debug, Serialize, Deserialize)]
struct Printed {
    n: usize,
    action: ActionId,
    answer: Result<Stored<Wallet>, Decimal>,
}

async fn money_is_right(dialect: Dialect, strategy: Strategy, calls: usize) {
    let db = TestDatabase::start(&THINGS, dialect).await;
    let unused = LockProvider::new(ekbatan::lock::ProcessBackend::new(), "test");
    let wallet = open_wallet(&executor(&db.databases, unused, Contention::Optimistic).await).await;
    let children = (0..PROCESSES).map(|process| {
        let (url, eventlog) = (db.url.clone(), db.config().eventlog);
        let orders = Orders { url, eventlog, wallet, strategy, process, calls };
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::one_of_four_processes", "--nocapture"])
            .env(ORDERS, serde_json::to_string(&orders).unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap()
    });
    let children: Vec<_> = children.collect();
    let mut answers: BTreeMap<usize, Answered> = BTreeMap::new();
    for child in children {
        let waited = tokio::task::spawn_blocking(move || child.wait_with_output());
        let output = waited.await.unwrap().unwrap();
        assert!(output.status.success(), "{}", output.status);
        let printed = String::from_utf8(output.stdout).unwrap();
        let answered = printed.lines().find_map(|line| Some(line.split_once(ANSWERS)?.1)).unwrap();
        let answered: Vec<Printed> = serde_json::from_str(answered).unwrap();
        answers.extend(answered.into_iter().map(|Printed { n, action, answer }| {
            let refused = |amount| ExecuteError::Domain(WalletError::AmountNotPositive(amount));
            (n, (action, answer.map_err(refused)))
        }));
    }
    assert_eq!(answers.len(), calls);
    check_answers(&db, wallet, &answers).await;
}

/// The body of a child process: a fourth of the deposits.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_four_processes() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    let config = DataSourceConfig::new(&orders.url).eventlog(&orders.eventlog);
    let config = EkbatanConfig::from(config).locks(LockConfig::default());
    let databases = Databases::connect(&config).await.unwrap();
    let locks = KeyedLocks::connect(&config).await.unwrap();
    let executor = executor(&databases, locks.clone(), orders.strategy.contention()).await;
    let share = TASKS / PROCESSES;
    let tasks = orders.process * share..(orders.process + 1) * share;
    let answers = deposit_all(&executor, orders.wallet, tasks, orders.calls).await;
    locks.close().await;
    let printed = answers.into_iter().map(|(n, (action, answer))| {
        let answer = answer.map_err(|error| match error {
            ExecuteError::Domain(WalletError::AmountNotPositive(amount)) => amount,
            error => panic!("{n}: {error}"),
        });
        Printed { n, action, answer }
    });
    println!("{ANSWERS}{}", serde_json::to_string(&printed.collect::<Vec<_>>()).unwrap());
}
