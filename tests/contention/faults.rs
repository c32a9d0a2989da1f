//! Kills of servers and processes while groups commit.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::action::Outcome;
use ekbatan::config::DataSourceConfig;
use ekbatan::db::ActionId;
use ekbatan::lock::LockKey;
use ekbatan::prelude::*;
use ekbatan_testkit::{PostgresServer, TempSqlite};
use sqlx::{Connection as _, PgConnection, SqliteConnection};
use support::soak::rounds;
use support::until;
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet, migrations};
use tokio::task::JoinSet;

const TASKS: usize = 16;
const URL: &str = "EKBATAN_TEST_KILLED_GROUPS_URL";

/// An executor that commits the calls on one wallet in groups.
async fn executor(config: DataSourceConfig) -> ActionExecutor {
    let databases = Databases::connect(&config.into()).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let builder = ActionExecutor::builder(&databases, "tests").model::<Wallet>();
    builder.contention(Contention::coalesced()).build().await.unwrap()
}

fn deposit(executor: &ActionExecutor, wallet: Id<Wallet>) -> Execution<'_> {
    let deposit = Deposit { wallet, amount: Decimal::ONE };
    let call = executor.execute(&DepositMoney, deposit);
    call.contention_keys([LockKey::of("wallet", wallet)])
}

type Execution<'a> = ekbatan::action::Execution<'a, DepositMoney>;

async fn open_wallet(executor: &ActionExecutor) -> Id<Wallet> {
    let opening = Opening { owner: "all".to_owned(), currency: "EUR".to_owned() };
    executor.execute(&OpenWallet, opening).await.unwrap().id
}

/// The versions that each action wrote, by the events of deposits.
type Stored = HashMap<Uuid, Vec<i64>>;

fn stored(rows: Vec<(String, i64)>) -> Stored {
    let mut stored = Stored::new();
    for (action, version) in rows.into_iter().filter(|(_, version)| *version > 1) {
        stored.entry(action.parse().unwrap()).or_default().push(version);
    }
    stored
}

/// Every version has one event, every action has one version, and the balance is their sum.
async fn assert_sound(executor: &ActionExecutor, wallet: Id<Wallet>, stored: &Stored) {
    let wallet = executor.databases().repository::<Wallet>().get(wallet).await.unwrap();
    let mut versions: Vec<i64> = stored.values().flatten().copied().collect();
    versions.sort_unstable();
    assert_eq!(versions, (2..=wallet.version()).collect::<Vec<i64>>());
    assert!(stored.values().all(|versions| versions.len() == 1));
    assert_eq!(wallet.balance, Decimal::from(wallet.version() - 1));
}

/// The answer that a caller received.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Answer {
    Committed,
    NotCommitted,
    Unknown,
}

/// When the server is killed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    /// While groups commit.
    Any,
    /// After a group has committed, and before the server sends its answer.
    BetweenCommitAndAnswer,
}

/// The rounds alternate between two executors: a patient one, which looks up what became of a
/// group until it knows, and a hasty one, whose time for that is over at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_postgres_loses_and_duplicates_nothing_of_a_group() {
    let server = PostgresServer::builder().durable().start().await.unwrap();
    let url = server.create_database().await.unwrap();
    let patient = executor(DataSourceConfig::new(&url)).await;
    let hasty = DataSourceConfig::new(&url).settle_timeout(Duration::from_millis(1));
    let wallet = open_wallet(&patient).await;
    let mut answers: Vec<(ActionId, Answer)> = Vec::new();
    for round in 0..rounds(4, 40) {
        let is_hasty = round % 2 == 1;
        let moment = if round % 4 < 2 { Moment::BetweenCommitAndAnswer } else { Moment::Any };
        // A hasty executor from before the last kill would begin with an unknown commit.
        let executor = if is_hasty { executor(hasty.clone()).await } else { patient.clone() };
        let (answered, restarted) = (Arc::default(), Arc::default());
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (executor, answered) = (executor.clone(), Arc::clone(&answered));
            let restarted = Arc::clone(&restarted);
            tasks
                .spawn(async move { until_killed(&executor, wallet, &answered, &restarted).await });
        }
        until("calls are answered", async || answered.load(Ordering::Relaxed) >= 100 + round * 17)
            .await;
        if moment == Moment::BetweenCommitAndAnswer {
            withhold_the_answer_of_a_commit(&url).await;
        }
        server.kill().await.unwrap();
        server.restart().await.unwrap();
        restarted.store(true, Ordering::Relaxed);
        let received: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
        let unknown: Vec<ActionId> = received
            .iter()
            .filter(|(_, answer)| *answer == Answer::Unknown)
            .map(|(action, _)| *action)
            .collect();
        if is_hasty && moment == Moment::BetweenCommitAndAnswer {
            assert!(!unknown.is_empty(), "the group whose answer was withheld is unknown");
        }
        // An outcome that is "not committed" now must stay so.
        for action in unknown {
            let answer = match executor.outcome(action).await.unwrap() {
                Outcome::Committed => Answer::Committed,
                _ => Answer::NotCommitted,
            };
            answers.push((action, answer));
        }
        answers.extend(received);
    }
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let sql = "SELECT action_id::text, model_version FROM eventlog.events";
    let stored = stored(sqlx::query_as(sql).fetch_all(&mut connection).await.unwrap());
    for (id, answer) in &answers {
        let is_stored = stored.contains_key(&id.0);
        match answer {
            Answer::Committed => assert!(is_stored, "{id} was answered success"),
            Answer::NotCommitted => assert!(!is_stored, "{id} was answered failure"),
            Answer::Unknown => {}
        }
    }
    assert_sound(&patient, wallet, &stored).await;
}

/// Returns when the server has committed a group and withholds the answer: it waits for a
/// replica that does not exist. After its next start it waits for none.
async fn withhold_the_answer_of_a_commit(url: &str) {
    const WAITING: &str = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND wait_event = 'SyncRep'";
    let mut connection = PgConnection::connect(url).await.unwrap();
    for sql in ["ALTER SYSTEM SET synchronous_standby_names = 'nowhere'", "SELECT pg_reload_conf()"]
    {
        sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    }
    until("a commit waits for the row", async || {
        sqlx::query_scalar::<_, i64>(WAITING).fetch_one(&mut connection).await.unwrap() != 0
    })
    .await;
    let reset = "ALTER SYSTEM RESET synchronous_standby_names";
    sqlx::raw_sql(reset).execute(&mut connection).await.unwrap();
}

/// Deposits until a call fails or the server is back, and returns every call with its answer.
async fn until_killed(
    executor: &ActionExecutor,
    wallet: Id<Wallet>,
    answered: &AtomicUsize,
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
        answered.fetch_add(1, Ordering::Relaxed);
        if answer != Answer::Committed || restarted.load(Ordering::Relaxed) {
            return answers;
        }
    }
}

/// The test starts itself as the process to kill.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_loses_and_duplicates_nothing_of_a_group() {
    if let Ok(url) = std::env::var(URL) {
        return deposit_forever(&url).await;
    }
    let file = TempSqlite::new().unwrap();
    let url = file.url();
    let executor = executor(DataSourceConfig::new(&url)).await;
    let wallet = open_wallet(&executor).await;
    let (mut tried, mut acknowledged) = (HashSet::new(), HashSet::new());
    let kills = rounds(3, 40);
    for round in 0..kills {
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
        let mut record = |line: &str| match line.split_once(' ') {
            Some(("try", id)) => tried.insert(id.parse::<Uuid>().unwrap()),
            Some(("ok", id)) => acknowledged.insert(id.parse::<Uuid>().unwrap()),
            _ => false,
        };
        let mut deposits = 0;
        while deposits < 100 + round * 7 {
            let line = lines.next().expect("the process runs until it is killed").unwrap();
            deposits += usize::from(line.starts_with("ok "));
            record(&line);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The pipe may hold more lines; the last one may be incomplete.
        lines
            .map_while(Result::ok)
            .filter(|line| line.len() >= 39)
            .for_each(|line| _ = record(&line));
    }
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    let sql = "SELECT action_id, model_version FROM eventlog_events";
    let stored = stored(sqlx::query_as(sql).fetch_all(&mut connection).await.unwrap());
    for id in &acknowledged {
        assert!(stored.contains_key(id), "{id} was acknowledged");
    }
    assert!(stored.keys().all(|id| tried.contains(id)));
    assert!(acknowledged.len() >= kills * 100);
    assert_sound(&executor, wallet, &stored).await;
}

async fn deposit_forever(url: &str) {
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
