//! Servers and processes that are killed while groups commit.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::prelude::*;
use ekbatan_testkit::{PostgresServer, TempSqlite};
use sqlx::{Connection as _, PgConnection, SqliteConnection};
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet, migrations};
use tokio::task::JoinSet;

const ROUNDS: usize = 6;
const TASKS: usize = 16;
const URL: &str = "EKBATAN_TEST_KILLED_GROUPS_URL";

/// An executor that commits all calls on a wallet together.
async fn executor(config: DataSourceConfig) -> ActionExecutor {
    let databases = Databases::connect(&config.into()).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let builder = ActionExecutor::builder(&databases, "tests").model::<Wallet>();
    builder.contention(Contention::coalesced()).build().await.unwrap()
}

fn deposit(executor: &ActionExecutor, wallet: Id<Wallet>) -> Execution<'_> {
    let deposit = Deposit { wallet, amount: Decimal::ONE };
    let call = executor.execute(&DepositMoney, deposit);
    call.contention_key(LockKey::of("wallet", wallet))
}

type Execution<'a> = ekbatan::action::Execution<'a, DepositMoney>;

async fn open_wallet(executor: &ActionExecutor) -> Id<Wallet> {
    let opening = Opening { owner: "all".to_owned(), currency: "EUR".to_owned() };
    executor.execute(&OpenWallet, opening).await.unwrap().id
}

/// Which action left which versions, of all events but that of the opening.
type Stored = HashMap<Uuid, Vec<i64>>;

fn stored(rows: Vec<(String, i64)>) -> Stored {
    let mut stored = Stored::new();
    for (action, version) in rows.into_iter().filter(|(_, version)| *version > 1) {
        stored.entry(action.parse().unwrap()).or_default().push(version);
    }
    stored
}

/// Every version has its event, every action one, and the money is what they add up to.
async fn assert_sound(executor: &ActionExecutor, wallet: Id<Wallet>, stored: &Stored) {
    let wallet = executor.databases().repository::<Wallet>().get(wallet).await.unwrap();
    let mut versions: Vec<i64> = stored.values().flatten().copied().collect();
    versions.sort_unstable();
    assert_eq!(versions, (2..=wallet.version()).collect::<Vec<i64>>());
    assert!(stored.values().all(|versions| versions.len() == 1));
    assert_eq!(wallet.balance, Decimal::from(wallet.version() - 1));
}

/// What a caller was answered, as far as it bears on the truth.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Answer {
    Committed,
    NotCommitted,
    Unknown,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_loses_and_duplicates_nothing_of_a_group() {
    let server = PostgresServer::builder().durable().start().await.unwrap();
    let url = server.create_database().await.unwrap();
    let patient = executor(DataSourceConfig::new(&url)).await;
    // So impatient that it never learns in time what became of a group.
    let hasty = DataSourceConfig::new(&url).settle_timeout(Duration::from_millis(1));
    let wallet = open_wallet(&patient).await;
    let mut answers: Vec<(ActionId, Answer)> = Vec::new();
    for round in 0..ROUNDS {
        // A hasty one that was there before the last kill would begin with a doubt.
        let executor = match round % 2 {
            0 => patient.clone(),
            _ => executor(hasty.clone()).await,
        };
        let committed = Arc::new(AtomicUsize::new(0));
        let restarted = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (executor, committed) = (executor.clone(), committed.clone());
            let restarted = restarted.clone();
            tasks.spawn(
                async move { until_killed(&executor, wallet, &committed, &restarted).await },
            );
        }
        while committed.load(Ordering::Relaxed) < 100 + round * 17 {
            tokio::task::yield_now().await;
        }
        server.kill().await.unwrap();
        server.restart().await.unwrap();
        restarted.store(true, Ordering::Relaxed);
        let told: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
        // Whoever is told "not committed" now is told so for good.
        for (action, answer) in &told {
            if *answer == Answer::Unknown {
                let outcome = executor.outcome(*action).await.unwrap();
                let settled = match outcome {
                    Outcome::Committed => Answer::Committed,
                    _ => Answer::NotCommitted,
                };
                answers.push((*action, settled));
            }
        }
        answers.extend(told);
    }
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let sql = "SELECT action_id::text, model_version FROM eventlog.events";
    let stored = stored(sqlx::query_as(sql).fetch_all(&mut connection).await.unwrap());
    for (id, answer) in &answers {
        let is_there = stored.contains_key(&id.0);
        match answer {
            Answer::Committed => assert!(is_there, "{id} was answered success"),
            Answer::NotCommitted => assert!(!is_there, "{id} was answered failure"),
            Answer::Unknown => {}
        }
    }
    let unknown = answers.iter().filter(|(_, answer)| *answer == Answer::Unknown).count();
    let failed = answers.iter().filter(|(_, answer)| *answer != Answer::Committed).count();
    assert!(unknown > 0, "no kill left anybody in doubt, {failed} failed");
    assert_sound(&patient, wallet, &stored).await;
}

async fn until_killed(
    executor: &ActionExecutor,
    wallet: Id<Wallet>,
    committed: &AtomicUsize,
    restarted: &AtomicBool,
) -> Vec<(ActionId, Answer)> {
    let mut answers = Vec::new();
    loop {
        let call = deposit(executor, wallet);
        let id = call.action_id();
        let answer = match call.await {
            Ok(_) => Answer::Committed,
            Err(ExecuteError::CommitUnknown { action, .. }) => {
                assert_eq!(action, id);
                Answer::Unknown
            }
            Err(_) => Answer::NotCommitted,
        };
        answers.push((id, answer));
        committed.fetch_add(1, Ordering::Relaxed);
        if answer != Answer::Committed || restarted.load(Ordering::Relaxed) {
            return answers;
        }
    }
}

/// The test runs itself again as the process to kill.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_loses_and_duplicates_nothing_of_a_group() {
    if let Ok(url) = std::env::var(URL) {
        return deposit_for_ever(&url).await;
    }
    let file = TempSqlite::new().unwrap();
    let url = file.url();
    let executor = executor(DataSourceConfig::new(&url)).await;
    let wallet = open_wallet(&executor).await;
    let (mut tried, mut acknowledged) = (HashSet::new(), HashSet::new());
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "faults::a_killed_process_loses_and_duplicates_nothing_of_a_group",
                "--nocapture",
            ])
            .env(URL, &url)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut note = |line: &str| match line.split_once(' ') {
            Some(("try", id)) => tried.insert(id.parse::<Uuid>().unwrap()),
            Some(("ok", id)) => acknowledged.insert(id.parse::<Uuid>().unwrap()),
            _ => false,
        };
        let mut deposits = 0;
        while deposits < 100 + round * 7 {
            let line = lines.next().expect("the process goes on until it is killed").unwrap();
            deposits += usize::from(line.starts_with("ok "));
            note(&line);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it had said before it died counts, too; its last line may be cut short.
        lines
            .map_while(Result::ok)
            .filter(|line| line.len() >= 39)
            .for_each(|line| _ = note(&line));
    }
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    let sql = "SELECT action_id, model_version FROM eventlog_events";
    let stored = stored(sqlx::query_as(sql).fetch_all(&mut connection).await.unwrap());
    for id in &acknowledged {
        assert!(stored.contains_key(id), "{id} was acknowledged");
    }
    assert!(stored.keys().all(|id| tried.contains(id)));
    assert!(acknowledged.len() >= ROUNDS * 100);
    assert_sound(&executor, wallet, &stored).await;
}

async fn deposit_for_ever(url: &str) {
    let executor = executor(DataSourceConfig::new(url)).await;
    let wallets = executor.databases().repository::<Wallet>().find_all().await.unwrap();
    let wallet = wallets[0].id;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let executor = executor.clone();
        tasks.spawn(async move {
            loop {
                let call = deposit(&executor, wallet);
                let id = call.action_id();
                say(&format!("try {id}\n"));
                call.await.unwrap();
                say(&format!("ok {id}\n"));
            }
        });
    }
    tasks.join_all().await;
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).unwrap();
}
