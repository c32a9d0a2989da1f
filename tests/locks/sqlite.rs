//! What only the locks in a SQLite file have to show: one connection, a file with other writers, and
//! addresses that are rejected.

use std::time::Duration;

use ekbatan::action::RetryPolicy;
use ekbatan::config::DataSourceConfig;
use ekbatan::lock::{ExecuteLocked, lock_key};
use ekbatan::lock::{
    KeyedLockProvider, LockError, LockKey, LockOptions, SqliteLocks, SqliteLocksError,
};
use ekbatan::prelude::*;
use ekbatan_testkit::TempSqlite;
use sqlx::{Connection, SqliteConnection};
use support::until;

use crate::providers::{LONG, on_sqlite};
use support::soak::rounds;
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet, migrations};

mod processes;

/// The number of open files of this process that belong to the database.
fn open_files(file: &TempSqlite) -> usize {
    let path = file.path().to_str().unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    names.filter(|name| name.to_string_lossy().starts_with(path)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_leases_and_waiters_share_one_connection() {
    let file = TempSqlite::new().unwrap();
    let locks = on_sqlite(&file.url()).await;
    let at_first = open_files(&file);
    assert_eq!(at_first, 3, "the file, its log and the log's index");
    let keys: Vec<LockKey> = (0..rounds(200, 1_000)).map(|n| lock_key!("key", n as i64)).collect();
    let mut held = Vec::new();
    for key in &keys {
        held.push(locks.try_acquire(key, LONG, LONG).await.unwrap().unwrap());
    }
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..keys.len() * 10 {
        let (locks, key) = (locks.clone(), keys[n % keys.len()].clone());
        waiters.spawn(async move { locks.acquire(&key, LONG * 10).await.unwrap().release().await });
    }
    for key in &keys {
        until("all others wait", async || {
            locks.inspect(key).await.unwrap().unwrap().waiting_here >= 10
        })
        .await;
    }
    assert_eq!(open_files(&file), at_first);
    held.clear();
    let mut served = 0;
    while let Some(released) = waiters.join_next().await {
        assert!(released.unwrap());
        served += 1;
        if served % 500 == 0 {
            assert_eq!(open_files(&file), at_first);
        }
    }
    for key in &keys {
        assert_eq!(locks.inspect(key).await.unwrap(), None);
    }
    locks.close().await;
    drop(locks);
    until("the files are closed", async || open_files(&file) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_with_another_writer_is_waited_for() {
    let file = TempSqlite::new().unwrap();
    let locks = on_sqlite(&file.url()).await;
    let key = LockKey::named("k");
    let held = locks.try_acquire(&LockKey::named("held"), LONG, LONG).await.unwrap().unwrap();
    let mut writer = SqliteConnection::connect(&file.url()).await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut writer).await.unwrap();
    // A wait that is shorter than the write ends without a lease: the holder is unknown.
    let impatient = locks.try_acquire(&key, Duration::from_millis(200), LONG).await;
    assert!(matches!(impatient, Err(LockError::InDoubt { .. })), "{impatient:?}");
    let (patient, of_task) = (locks.clone(), key.clone());
    let waiter = tokio::spawn(async move { patient.try_acquire(&of_task, LONG, LONG).await });
    let releasing = tokio::spawn(async move { held.release().await });
    // Reads do not wait for the writer.
    let holder = locks.inspect(&LockKey::named("held")).await.unwrap();
    assert!(holder.is_some());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_finished() && !releasing.is_finished());
    sqlx::raw_sql("ROLLBACK").execute(&mut writer).await.unwrap();
    assert!(releasing.await.unwrap(), "the lease was held until its release");
    assert!(waiter.await.unwrap().unwrap().unwrap().release().await);
    assert_eq!(locks.inspect(&key).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_and_data_may_share_a_file() {
    let file = TempSqlite::new().unwrap();
    let databases = Databases::connect(&DataSourceConfig::new(file.url()).into()).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let executor = ActionExecutor::builder(&databases, "com.example.locks")
        .model::<Wallet>()
        .build()
        .await
        .unwrap();
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let wallet = executor.execute(&OpenWallet, opening).await.unwrap().id;
    let nodes = [on_sqlite(&file.url()).await, on_sqlite(&file.url()).await];
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..20 {
        let (executor, locks) = (executor.clone(), nodes[n % 2].clone());
        tasks.spawn(async move {
            let deposit = Deposit { wallet, amount: Decimal::ONE };
            let call = executor.execute(&DepositMoney, deposit).retry(RetryPolicy::none());
            call.with_lock(&locks, &lock_key!("wallet", wallet), LockOptions::wait(LONG)).await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    let wallet = databases.repository::<Wallet>().get(wallet).await.unwrap();
    assert_eq!((wallet.balance, wallet.version()), (Decimal::from(20), 21));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_can_start_at_once() {
    let file = TempSqlite::new().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let url = file.url();
        tasks.spawn(async move { SqliteLocks::connect(&url).await.unwrap().leases().await });
    }
    while let Some(begun) = tasks.join_next().await {
        begun.unwrap().unwrap();
    }
}

#[tokio::test]
async fn addresses_that_exclude_nobody_are_rejected() {
    let of_memory = "is a database in memory, which no other process sees";
    for (url, why) in [
        ("sqlite::memory:", of_memory),
        ("sqlite://:memory:", of_memory),
        ("sqlite:locks.db?mode=memory", of_memory),
        ("sqlite:", of_memory),
        ("sqlite:locks.db?mode=ro", "the file cannot be written"),
        ("sqlite:locks.db?immutable=1", "the file cannot be written"),
        ("sqlite:locks.db?vfs=unix-none", "SQLite does not lock the file"),
    ] {
        let refused = SqliteLocks::connect(url).await.unwrap_err();
        assert!(matches!(refused, SqliteLocksError::Unsafe { .. }), "{url}: {refused:?}");
        assert!(refused.to_string().contains(why), "{url}: {refused}");
    }
    let other = SqliteLocks::connect("postgres://db/shop").await.unwrap_err();
    assert_eq!(
        other.to_string(),
        "the address of the lock file cannot be used: `postgres://db/shop` is not an address of SQLite, \
         such as `sqlite:shop.db`"
    );
    let nowhere = SqliteLocks::connect("sqlite:/no/such/folder/locks.db").await.unwrap_err();
    assert!(matches!(nowhere, SqliteLocksError::Backend(_)), "{nowhere:?}");
}
