//! A migration whose connection breaks in the middle is completed by the next one.

use std::time::Duration;

use ekbatan::prelude::*;
use support::soak::rounds;
use support::{Dialect, ScratchDatabase, TextRow, until};
use tokio::net::TcpListener;

use crate::bounded;
use crate::ledger::proxied;

on_every_database! {
    only postgres and mysql and mariadb:
    an_interrupted_migration_is_completed_by_the_next_one,
}

async fn an_interrupted_migration_is_completed_by_the_next_one(dialect: Dialect) {
    let whole = ScratchDatabase::create(dialect).await;
    let (url, proxy) = proxied(&whole.url).await;
    migrate(&url).await.unwrap();
    let (expected, trips) = (schema(&whole).await, proxy.round_trips());
    assert!(expected.len() > 100, "{expected:?}");
    let mut interrupted = 0;
    while interrupted < rounds(3, 60) {
        let database = ScratchDatabase::create(dialect).await;
        let (url, proxy) = proxied(&database.url).await;
        let last = fastrand::u64(1..trips);
        let cut = async {
            while proxy.round_trips() < last {
                tokio::task::yield_now().await;
            }
            proxy.cut();
            proxy.refuse();
            std::future::pending::<()>().await;
        };
        let migrated = tokio::select! {
            migrated = migrate(&url) => migrated,
            () = cut => unreachable!(),
        };
        interrupted += usize::from(migrated.is_err());
        migrate(&database.url).await.unwrap();
        assert_eq!(schema(&database).await, expected, "cut after {last} of {trips} round trips");
    }
}

/// On the databases that commit each `CREATE`, `ALTER` and `DROP` by itself.
mod on_mysql {
    use super::*;

    on_every_database! {
        only mysql and mariadb:
        a_statement_that_is_interrupted_changes_rows_once,
        the_reset_after_a_script_ends_without_an_answer,
    }

    async fn a_statement_that_is_interrupted_changes_rows_once(dialect: Dialect) {
        let database = ScratchDatabase::create(dialect).await;
        migrate(&database.url).await.unwrap();
        database.execute("INSERT INTO list VALUES (0)").await;
        let (url, proxy) = proxied(&database.url).await;
        add_one(&url, 2).await.unwrap();
        let trips = proxy.round_trips();
        // Before these, the process connects and looks for what has run.
        let cuts = trips.saturating_sub(STATEMENTS)..=trips;
        for (last, version) in cuts.zip(3..) {
            let (url, proxy) = proxied(&database.url).await;
            let cut = async {
                while proxy.round_trips() < last {
                    tokio::task::yield_now().await;
                }
                proxy.cut();
            };
            let migrating = async {
                tokio::select! {
                    _ = add_one(&url, version) => {}
                    () = cut => {}
                }
            };
            bounded("a migration that is cut", migrating).await;
            bounded("the next migration", add_one(&database.url, version)).await.unwrap();
            let n = database.select(&["n"], "FROM list").await;
            let expected = (version - 1).to_string();
            assert_eq!(n, [[Some(expected)]], "cut after {last} of {trips} round trips");
        }
    }

    /// The reset opens a session. That has longer for its answer than a read.
    async fn the_reset_after_a_script_ends_without_an_answer(dialect: Dialect) {
        let database = ScratchDatabase::create(dialect).await;
        let (url, proxy) = proxied(&database.url).await;
        let config = ScratchDatabase::config_of(&url)
            .maximum_pool_size(1)
            .connection_timeout(Duration::from_secs(20))
            .read_timeout(Duration::from_secs(1));
        let databases = Databases::connect(&config.into()).await.unwrap();
        // On a slow machine an answer may take longer than the short timeout.
        until("the tables are there", async || databases.migrate(&list()).await.is_ok()).await;
        let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
        proxy.lead_to(mute.local_addr().unwrap()).await.unwrap();
        let scripts = list().script(2, "one", "INSERT INTO list VALUES (1)");
        let migrated = bounded("a migration without its reset", databases.migrate(&scripts)).await;
        let error = migrated.unwrap_err().to_string();
        assert!(error.contains("(read-timeout)"), "{error}");
        // Another process finds what has run.
        let databases = Databases::connect(&database.config().into()).await.unwrap();
        databases.migrate(&scripts).await.unwrap();
        assert_eq!(database.count("list").await, 1);
    }

    /// At least as many round trips as the script, its record and the next session take.
    const STATEMENTS: u64 = 18;

    async fn add_one(url: &str, version: i64) -> Result<(), Box<dyn std::error::Error>> {
        let databases = Databases::connect(&ScratchDatabase::config_of(url).into()).await?;
        let script = "UPDATE list SET n = n + 1";
        Ok(databases.migrate(&Migrations::none().script(version, "add_one", script)).await?)
    }
}

async fn migrate(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let databases = Databases::connect(&ScratchDatabase::config_of(url).into()).await?;
    Ok(databases.migrate(&list()).await?)
}

fn list() -> Migrations {
    Migrations::none().script(1, "list", "CREATE TABLE list (n integer NOT NULL)")
}

/// The columns and the keys of the framework's tables, and which migrations are recorded.
async fn schema(database: &ScratchDatabase) -> Vec<TextRow> {
    let eventlog = database.config().eventlog;
    let columns = ["table_name", "column_name", "data_type", "is_nullable"];
    let of =
        format!("FROM information_schema.columns WHERE table_schema = '{eventlog}' ORDER BY 1, 2");
    let mut schema = database.select(&columns, &of).await;
    if database.dialect.is_mysql() {
        let columns = ["table_name", "index_name", "seq_in_index", "column_name"];
        let of = format!(
            "FROM information_schema.statistics WHERE table_schema = '{eventlog}' ORDER BY 1, 2, 3"
        );
        schema.extend(database.select(&columns, &of).await);
    }
    let recorded = format!("FROM {} ORDER BY 2, 1", database.eventlog("migrations"));
    schema.extend(database.select(&["name", "version", "checksum"], &recorded).await);
    assert_eq!(database.count("list").await, 0);
    schema
}
