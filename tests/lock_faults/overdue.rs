//! A process stands still while it has to release a key: the server frees the key nevertheless.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockKey};

use crate::ledger::Ledger;
use crate::providers::Kind;
use crate::server::LockServer;
use crate::worker::{Record, Report, Request, Worker};

on_providers! {
    [
        redis Redis, etcd Etcd, postgres_lease PostgresLease, postgres_session PostgresSession,
        sqlite_and_postgres Sqlite, mysql_lease MySqlLease, mariadb_lease MariaDbLease,
        mysql_session MySqlSession, mariadb_session MariaDbSession
    ]
    the_key_of_a_process_that_stands_still_gets_free,
    a_key_that_was_handed_on_gets_free_as_its_new_holder_asked
}
on_providers! {
    @stores
    the_key_of_a_process_that_stands_still_gets_free,
    a_key_that_was_handed_on_gets_free_as_its_new_holder_asked
}

/// Longer than the hold, and what a session adds to it, on a busy machine. Shorter than the time
/// after which the server ends any silent session of MySQL.
const PATIENCE: Duration = Duration::from_secs(25);

/// So long that the worker stands still before it has to release the key.
const HOLD: Duration = Duration::from_secs(8);

async fn the_key_of_a_process_that_stands_still_gets_free(kind: Kind) {
    let (server, ledger) = (LockServer::shared(kind).await, Ledger::create().await);
    let mut worker = Worker::start(kind, &server.url, &ledger.url, &Record::default()).await;
    let account = "a".to_owned();
    worker.send(&Request::Deposit {
        account: account.clone(),
        hold: HOLD,
        fenced: true,
        waits: true,
    });
    assert!(matches!(worker.receive().await, Report::Read));
    is_free_after_the_hold(kind, &server, worker, &account).await;
}

/// The process stands still while it has the key.
async fn is_free_after_the_hold(kind: Kind, server: &LockServer, worker: Worker, account: &str) {
    worker.freeze_between_writes(&server.url).await;
    assert_eq!(server.held().await.len(), 1);
    let here = kind.connect(&server.url).await;
    let key = LockKey::named(account);
    let freed = here.try_acquire(&key, PATIENCE, PATIENCE).await.unwrap();
    assert!(freed.is_some(), "a process that stands still keeps its key");
}

async fn a_key_that_was_handed_on_gets_free_as_its_new_holder_asked(kind: Kind) {
    let (server, ledger) = (LockServer::shared(kind).await, Ledger::create().await);
    let mut worker = Worker::start(kind, &server.url, &ledger.url, &Record::default()).await;
    let account = "a".to_owned();
    let long = Duration::from_secs(3_600);
    worker.send(&Request::HandOn { key: account.clone(), long, short: HOLD });
    assert!(matches!(worker.receive().await, Report::Read));
    is_free_after_the_hold(kind, &server, worker, &account).await;
}
