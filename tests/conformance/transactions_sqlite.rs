//! Raw SQL on SQLite: what it may not leave behind.

use std::time::Duration;

use ekbatan::db::{DbErrorKind, TransactionError};
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;
use support::things::{Thing, quiet, thing};
use support::{TestDatabase, connected};
use tokio::time::timeout;

use crate::actions::Refused;

on_every_database! {
    on_sqlite_only:
    a_released_raw_connection_is_as_it_was_opened,
    writes_after_a_raw_rollback_are_refused,
    a_repository_does_not_wait_for_a_raw_connection_for_ever,
    a_write_on_a_full_disk_is_refused,
}

async fn a_released_raw_connection_is_as_it_was_opened(db: &TestDatabase) {
    let databases = Databases::connect(&db.config().maximum_pool_size(1).into()).await.unwrap();
    let state = async || -> (i64, i64) {
        let mut raw = databases.sqlite().await.unwrap();
        let sql = "SELECT synchronous, (SELECT count(*) FROM pragma_database_list) FROM pragma_synchronous";
        let state = sqlx::query_as(sql).fetch_one(raw.connection().unwrap()).await.unwrap();
        raw.release().await.unwrap();
        state
    };
    let opened = state().await;
    let mut raw = databases.sqlite().await.unwrap();
    let sql = "PRAGMA synchronous = OFF; CREATE TEMPORARY TABLE things (n integer); ATTACH ':memory:' AS other; \
               BEGIN; INSERT INTO zones (id, name, state, version) VALUES ('z', 'z', 'ACTIVE', 1)";
    sqlx::raw_sql(sql).execute(raw.connection().unwrap()).await.unwrap();
    raw.release().await.unwrap();
    assert_eq!(state().await, opened);
    assert_eq!(databases.repository::<Thing>().count().await.unwrap(), 0);
    assert_eq!(db.count("zones").await, 0);
}

async fn writes_after_a_raw_rollback_are_refused(db: &TestDatabase) {
    let things = db.things();
    things.add(quiet(thing("a"))).await.unwrap();
    let manager = db.databases.transactions();
    let answer = manager.in_transaction(async |tx| {
        let mut raw = tx.sqlite().await.unwrap();
        let twice = sqlx::raw_sql("INSERT OR ROLLBACK INTO things SELECT * FROM things");
        twice.execute(raw.connection().unwrap()).await.unwrap_err();
        drop(raw);
        for label in ["b", "c"] {
            match things.within(&tx).add(quiet(thing(label))).await.unwrap_err() {
                WriteError::Database(error) => assert_eq!(error.kind(), DbErrorKind::Other),
                other => panic!("{other:?}"),
            }
        }
        Ok::<_, Refused>(())
    });
    let answer = answer.await;
    assert!(matches!(answer, Err(TransactionError::Database(_))), "{answer:?}");
    assert_eq!(db.count("things").await, 1);
    things.add(quiet(thing("b"))).await.unwrap();
}

async fn a_repository_does_not_wait_for_a_raw_connection_for_ever(db: &TestDatabase) {
    let config = db.config().connection_timeout(Duration::from_secs(1));
    let databases = connected(&config.into()).await;
    let things = databases.repository::<Thing>();
    let manager = databases.transactions();
    let answer = manager.in_transaction(async |tx| {
        let raw = tx.sqlite().await.unwrap();
        let counted = timeout(Duration::from_secs(60), things.within(&tx).count()).await;
        let error = counted.expect("it does not wait for ever").unwrap_err();
        assert!(error.to_string().contains("drop(raw)"), "{error}");
        drop(raw);
        things.within(&tx).add(quiet(thing("a"))).await
    });
    answer.await.unwrap();
    assert_eq!(db.count("things").await, 1);
}

/// A table whose greatest number is taken takes no row. SQLite calls that a full disk, too.
async fn a_write_on_a_full_disk_is_refused(db: &TestDatabase) {
    db.execute("CREATE TABLE ends (n INTEGER PRIMARY KEY AUTOINCREMENT)").await;
    db.execute("INSERT INTO ends VALUES (9223372036854775807)").await;
    db.execute(
        "CREATE TRIGGER fills AFTER INSERT ON things WHEN NEW.label = 'full' \
         BEGIN INSERT INTO ends VALUES (NULL); END",
    )
    .await;
    let things = db.things();
    let refused = async |answer: Result<(), WriteError>| match answer.unwrap_err() {
        WriteError::Database(error) => {
            assert_eq!(error.kind(), DbErrorKind::Unavailable);
            let text = error.to_string();
            assert!(
                text.contains("sqlite:") && text.contains("full; nothing was written"),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    };
    refused(things.add(quiet(thing("full"))).await.map(drop)).await;
    // Others that share its transaction are written.
    let (full, fits) =
        tokio::join!(things.add(quiet(thing("full"))), things.add(quiet(thing("fits"))));
    refused(full.map(drop)).await;
    fits.unwrap();
    assert_eq!(db.count("things").await, 1);
}
