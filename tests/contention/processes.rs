//! The same wallet from four processes, which know nothing of each other.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use ekbatan::config::LockConfig;
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use support::things::THINGS;
use support::wallet::{Wallet, WalletError};
use support::{Dialect, TestDatabase};

use crate::correctness::{Answered, TASKS, check_answers, deposit_all, executor, open_wallet};

const PROCESSES: usize = 4;
/// What a process that the test starts has to do.
const ORDERS: &str = "EKBATAN_TEST_CONTENTION_ORDERS";
/// What its answers begin with, among all that a test prints.
const SAYS: &str = "answers: ";

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
    money_is_right(dialect, Strategy::Coalesced, 2_000).await;
}

async fn coalesced_money_of_four_processes_under_a_lease_is_right(dialect: Dialect) {
    money_is_right(dialect, Strategy::CoalescedUnderLease, 10_000).await;
}

async fn pessimistic_money_of_four_processes_is_right(dialect: Dialect) {
    money_is_right(dialect, Strategy::Pessimistic, 500).await;
}

async fn optimistic_money_of_four_processes_is_right(dialect: Dialect) {
    money_is_right(dialect, Strategy::Optimistic, 500).await;
}

async fn adaptive_money_of_four_processes_is_right(dialect: Dialect) {
    money_is_right(dialect, Strategy::Adaptive, 10_000).await;
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

/// An answer as it travels from process to process.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    n: usize,
    action: ActionId,
    answer: Result<Stored<Wallet>, Decimal>,
}

async fn money_is_right(dialect: Dialect, strategy: Strategy, calls: usize) {
    let db = TestDatabase::start(&THINGS, dialect).await;
    let nobody = LockProvider::new(ekbatan::lock::ProcessBackend::new(), "test");
    let wallet = open_wallet(&executor(&db.databases, nobody, Contention::Optimistic).await).await;
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
        let told = printed.lines().find_map(|line| Some(line.split_once(SAYS)?.1)).unwrap();
        let told: Vec<Told> = serde_json::from_str(told).unwrap();
        answers.extend(told.into_iter().map(|Told { n, action, answer }| {
            let refused = |amount| ExecuteError::Domain(WalletError::AmountNotPositive(amount));
            (n, (action, answer.map_err(refused)))
        }));
    }
    assert_eq!(answers.len(), calls);
    check_answers(&db, wallet, &answers).await;
}

/// Does a fourth of the deposits when it is told to, as a process of its own.
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
    let told = answers.into_iter().map(|(n, (action, answer))| {
        let answer = answer.map_err(|error| match error {
            ExecuteError::Domain(WalletError::AmountNotPositive(amount)) => amount,
            error => panic!("{n}: {error}"),
        });
        Told { n, action, answer }
    });
    println!("{SAYS}{}", serde_json::to_string(&told.collect::<Vec<_>>()).unwrap());
}
