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
    the_key_of_a_process_that_stands_still_gets_free
}
on_providers! { @stores the_key_of_a_process_that_stands_still_gets_free }

/// Longer than the hold, and what a session adds to it, on a busy machine. Shorter than the time
/// after which the server ends any silent session of MySQL.
const PATIENCE: Duration = Duration::from_secs(25);

/// So long that the worker has read before it has to release the key.
const HOLD: Duration = Duration::from_secs(2);

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
    worker.freeze_between_writes(&server.url).await;
    assert_eq!(server.held().await.len(), 1);
    let here = kind.connect(&server.url).await;
    let key = LockKey::named(&account);
    let freed = here.try_acquire(&key, PATIENCE, PATIENCE).await.unwrap();
    assert!(freed.is_some(), "a process that stands still keeps its key");
}
