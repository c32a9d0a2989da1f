//! Lines that are silent: neither side hears from the other, and no connection breaks. Whatever a
//! caller does with a pooled connection then ends, and the connection's place in the pool is free.

use std::time::Duration;

use ekbatan::db::{DbError, DbErrorKind, Route, Transaction, TransactionError};
use ekbatan::prelude::*;
use ekbatan::repository::{ReadError, Repository};
use ekbatan_testkit::Proxy;
use support::wallet::Wallet;
use support::{Dialect, ScratchDatabase, until};

use crate::ledger::{Ledger, proxied};

on_every_database! {
    only postgres and mysql and mariadb:
    reads_on_a_silent_line_end,
    transactions_on_a_silent_line_end,
    a_raw_connection_on_a_silent_line_is_released,
}

/// The error of a transaction's closure.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("failed on purpose")]
    OnPurpose,
}

/// Databases behind a proxy, with one pooled connection.
struct Line {
    databases: Databases,
    proxy: Proxy,
}

impl Line {
    async fn open(dialect: Dialect) -> Self {
        let url = ScratchDatabase::create(dialect).await.url;
        Ledger::open(&url).await.open_wallets(1).await;
        let (through, proxy) = proxied(&url).await;
        let config = ScratchDatabase::config_of(&through)
            .maximum_pool_size(1)
            .read_timeout(Duration::from_millis(500))
            .commit_timeout(Duration::from_millis(500));
        Self { databases: Databases::connect(&config.into()).await.unwrap(), proxy }
    }

    fn wallets(&self) -> Repository<Wallet> {
        self.databases.repository()
    }

    /// Runs a use of the pooled connection, during which the line becomes silent. Checks that it
    /// ends by itself, and that its connection is closed.
    async fn run<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        // On a slow machine an answer may take longer than the short timeouts.
        until("the line is usable", async || self.databases.migrations().await.is_ok()).await;
        let answer = tokio::time::timeout(Duration::from_secs(60), work).await;
        let answer = answer.unwrap_or_else(|_| panic!("{what} did not end within a minute"));
        let status = self.databases.pool_status(Route::Primary);
        assert_eq!((status.size, status.holders), (0, vec![]), "after {what}");
        self.proxy.resume();
        answer
    }
}

fn assert_silent(what: &str, error: Option<&DbError>, setting: &str) {
    let error = error.unwrap_or_else(|| panic!("{what} has another error"));
    assert_eq!(error.kind(), DbErrorKind::Unavailable, "{what}: {error}");
    assert!(error.to_string().contains(setting), "{what}: {error}");
}

async fn reads_on_a_silent_line_end(dialect: Dialect) {
    let line = Line::open(dialect).await;
    // The table is not known yet, so this asks for its columns.
    let checked = line.run("the check of a table", async {
        line.proxy.stall();
        line.databases.check::<Wallet>().await
    });
    let error = checked.await.unwrap_err().to_string();
    assert!(error.contains("no answer within 500ms (read-timeout)"), "{error}");
    assert!(error.contains(&line.databases.default_shard().address().to_owned()), "{error}");

    until("the table is known", async || line.wallets().count().await.is_ok()).await;
    let counted = line.run("a read", async {
        line.proxy.stall();
        line.wallets().count().await
    });
    let error = counted.await.unwrap_err();
    assert_silent("a read", error.database_error(), "(read-timeout)");

    let fenced = line.run("a fence", async {
        line.proxy.stall();
        line.databases.fence_off("a key", 1).await
    });
    assert_silent("a fence", Some(&fenced.await.unwrap_err()), "(read-timeout)");

    let listed = line.run("the list of migrations", async {
        line.proxy.stall();
        line.databases.migrations().await
    });
    let error = listed.await.unwrap_err().to_string();
    assert!(error.contains("(read-timeout)"), "{error}");
    until("the line is usable again", async || line.wallets().count().await.is_ok()).await;
}

async fn transactions_on_a_silent_line_end(dialect: Dialect) {
    let line = Line::open(dialect).await;
    until("the table is known", async || line.wallets().count().await.is_ok()).await;
    let transactions = line.databases.transactions();

    let begun = line.run("the begin of a transaction", async {
        line.proxy.stall();
        transactions.in_transaction(async |_| -> Result<(), Failed> { unreachable!() }).await
    });
    match begun.await {
        Err(TransactionError::Database(error)) => {
            assert_silent("the begin of a transaction", Some(&error), "(read-timeout)");
        }
        other => panic!("{other:?}"),
    }

    let read = line.run("a statement of a transaction", async {
        let work = async |transaction: Transaction| {
            line.proxy.stall();
            Ok::<_, Failed>(line.wallets().within(&transaction).count().await?)
        };
        transactions.in_transaction(work).await
    });
    match read.await {
        Err(TransactionError::Inner(Failed::Read(error))) => {
            assert_silent("a statement", error.database_error(), "(read-timeout)");
        }
        // On a slow machine the begin takes too long.
        Err(TransactionError::Database(error)) => {
            assert_silent("the begin of a transaction", Some(&error), "(read-timeout)");
        }
        other => panic!("{other:?}"),
    }

    for commits in [true, false] {
        let ended = line.run("the end of a transaction", async {
            let work = async |_: Transaction| {
                line.proxy.stall();
                if commits { Ok(()) } else { Err(Failed::OnPurpose) }
            };
            transactions.in_transaction(work).await
        });
        match (ended.await, commits) {
            (Err(TransactionError::CommitUnknown(error)), true) => {
                assert_silent("a commit", Some(&error), "(commit-timeout)");
            }
            (Err(TransactionError::Inner(Failed::OnPurpose)), false) => {}
            // On a slow machine the begin takes too long.
            (Err(TransactionError::Database(error)), _) => {
                assert_silent("the begin of a transaction", Some(&error), "(read-timeout)");
                line.proxy.resume();
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn a_raw_connection_on_a_silent_line_is_released(dialect: Dialect) {
    let line = Line::open(dialect).await;
    let released = line.run("the release of a raw connection", async {
        if dialect == Dialect::Postgres {
            let mut raw = line.databases.postgres().await.unwrap();
            raw.connection().unwrap();
            line.proxy.stall();
            raw.release().await
        } else {
            let mut raw = line.databases.mysql().await.unwrap();
            raw.connection().unwrap();
            line.proxy.stall();
            raw.release().await
        }
    });
    assert_eq!(released.await.unwrap_err().kind(), DbErrorKind::Unavailable);
}

/// MySQL and MariaDB have no such setting for a session.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_probes_idle_connections() {
    let ledger = Ledger::new(Dialect::Postgres).await;
    let mut raw = ledger.databases.postgres().await.unwrap();
    let probes: (String, String, String) = sqlx::query_as(
        "SELECT current_setting('tcp_keepalives_idle'), current_setting('tcp_keepalives_interval'), \
         current_setting('tcp_keepalives_count')",
    )
    .fetch_one(raw.connection().unwrap())
    .await
    .unwrap();
    assert_eq!(probes, ("60".to_owned(), "10".to_owned(), "6".to_owned()));
}
