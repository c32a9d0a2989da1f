//! Transactions of PostgreSQL only: deferred constraints, failed transactions, session settings.

use std::time::Duration;

use ekbatan::db::{DbErrorKind, PoolStatus, Route, TransactionError, TransactionOptions};
use ekbatan::prelude::*;
use support::things::{Thing, quiet, thing};
use support::{PlainConnection, TestDatabase, connected, until};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::actions::Refused;
use crate::sessions::{evaluate, execute, session_id};

on_every_database! {
    only postgres:
    a_commit_that_is_refused_releases_the_connection,
    a_swallowed_error_prevents_the_commit,
    settings_do_not_outlive_their_transaction,
    prepared_statements_do_not_outlive_their_transaction,
    a_timeout_does_not_wait_for_a_raw_connection_that_is_kept,
    a_use_waits_for_a_statement_longer_than_for_a_raw_connection,
    what_a_transaction_has_locked_is_free_after_its_timeout,
}

fn status(db: &TestDatabase) -> PoolStatus {
    db.databases.pool_status(Route::Primary)
}

async fn a_commit_that_is_refused_releases_the_connection(db: &TestDatabase) {
    db.execute(
        "ALTER TABLE things ALTER CONSTRAINT things_zone_fkey DEFERRABLE INITIALLY DEFERRED",
    )
    .await;
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            let orphan = Thing { zone: Some(Id::new()), ..thing("a") };
            db.things().within(&tx).add(quiet(orphan)).await.unwrap();
            Ok::<_, Refused>(())
        })
        .await;
    match answer {
        Err(TransactionError::Database(error)) => {
            assert_eq!(error.kind(), DbErrorKind::ForeignKeyViolation);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((status(db).size, status(db).idle), (1, 1));
    assert_eq!(db.count("things").await, 0);
}

async fn a_swallowed_error_prevents_the_commit(db: &TestDatabase) {
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            db.things().within(&tx).add(quiet(thing("a"))).await.unwrap();
            execute(db, &tx, "SELECT 1 / 0").await.unwrap_err();
            Ok::<_, Refused>(())
        })
        .await;
    assert!(matches!(answer, Err(TransactionError::Database(_))), "{answer:?}");
    assert_eq!((status(db).size, status(db).idle), (1, 1));
    assert_eq!(db.count("things").await, 0);
}

async fn settings_do_not_outlive_their_transaction(db: &TestDatabase) {
    let mut session = String::new();
    for commits in [true, false] {
        let manager = db.databases.transactions();
        let answer = manager.in_transaction(async |tx| {
            session = session_id(db, &tx).await;
            execute(db, &tx, "SET TIME ZONE 'America/New_York'; SET statement_timeout = 99")
                .await
                .unwrap();
            if commits { Ok(()) } else { Err(Refused) }
        });
        assert_eq!(answer.await.is_ok(), commits);
        let found = manager.in_transaction(async |tx| {
            let same = session_id(db, &tx).await == session;
            let zone = evaluate(db, &tx, "current_setting('TimeZone')").await;
            let plans = evaluate(db, &tx, "current_setting('plan_cache_mode')").await;
            Ok::<_, Refused>((
                same,
                zone,
                plans,
                evaluate(db, &tx, "current_setting('statement_timeout')").await,
            ))
        });
        let expected = (true, "UTC".to_owned(), "force_generic_plan".to_owned(), "0".to_owned());
        assert_eq!(found.await.unwrap(), expected);
    }
}

async fn prepared_statements_do_not_outlive_their_transaction(db: &TestDatabase) {
    let manager = db.databases.transactions();
    let mut sessions = Vec::new();
    for n in 0..2 {
        let answer = manager.in_transaction(async |tx| {
            sessions.push(session_id(db, &tx).await);
            execute(db, &tx, &format!("PREPARE question AS SELECT {n}")).await.unwrap();
            Ok::<_, Refused>(())
        });
        answer.await.unwrap();
        assert_eq!(db.things().count().await.unwrap(), 0);
    }
    assert_eq!(sessions[0], sessions[1]);
    // Those of the framework are prepared anew.
    let forget = manager.in_transaction(async |tx| execute(db, &tx, "DEALLOCATE ALL").await);
    forget.await.unwrap();
    assert_eq!(db.things().count().await.unwrap(), 0);
}

async fn a_timeout_does_not_wait_for_a_raw_connection_that_is_kept(db: &TestDatabase) {
    let options = TransactionOptions::default().timeout(Duration::from_secs(1));
    let (release, released) = oneshot::channel::<()>();
    let mut keeping = None;
    let manager = db.databases.transactions();
    let working = manager.in_transaction_with(options, async |tx| {
        db.things().within(&tx).add(quiet(thing("a"))).await.unwrap();
        let (take, taken) = oneshot::channel();
        keeping = Some(tokio::spawn(async move {
            let raw = tx.postgres().await.unwrap();
            let _ = take.send(());
            let _ = released.await;
            drop(raw);
        }));
        taken.await.unwrap();
        Ok::<_, Refused>(())
    });
    let answer = timeout(Duration::from_secs(120), working).await;
    let answer = answer.expect("the transaction waits for the raw connection");
    assert!(matches!(answer, Err(TransactionError::TimedOut(_))), "{answer:?}");
    let _ = release.send(());
    if let Some(keeping) = keeping {
        let _ = keeping.await;
    }
    until("the transaction has ended", async || status(db).holders.is_empty()).await;
    assert_eq!(db.count("things").await, 0);
}

async fn a_use_waits_for_a_statement_longer_than_for_a_raw_connection(db: &TestDatabase) {
    let timeout = Duration::from_secs(1);
    let databases = connected(&db.config().connection_timeout(timeout).into()).await;
    let things = databases.repository::<Thing>();
    let stored = db.things().add(quiet(thing("a"))).await.unwrap();
    let mut other = PlainConnection::connect(&db.url).await;
    let lock = format!("BEGIN; SELECT 1 FROM things WHERE id = '{}' FOR UPDATE", stored.id);
    other.execute(&lock).await;
    let manager = databases.transactions();
    let answer = manager.in_transaction(async |tx| {
        let things = things.within(&tx);
        let unlock = async {
            tokio::time::sleep(2 * timeout).await;
            other.execute("ROLLBACK").await;
        };
        let update = things.update(stored.clone().apply(|thing| thing.big = 1));
        let (updated, counted, ()) = tokio::join!(update, things.count(), unlock);
        updated.unwrap();
        assert_eq!(counted.unwrap(), 1);
        Ok::<_, Refused>(())
    });
    answer.await.unwrap();
}

/// Its last statement waits for a row that another session keeps locked all the time.
async fn what_a_transaction_has_locked_is_free_after_its_timeout(db: &TestDatabase) {
    let first = db.things().add(quiet(thing("a"))).await.unwrap();
    let second = db.things().add(quiet(thing("b"))).await.unwrap();
    let free = format!("FROM things WHERE id = '{}' FOR UPDATE SKIP LOCKED", first.id);
    let mut other = PlainConnection::connect(&db.url).await;
    let lock = format!("BEGIN; SELECT 1 FROM things WHERE id = '{}' FOR UPDATE", second.id);
    other.execute(&lock).await;
    let options = TransactionOptions::default().timeout(Duration::from_secs(1));
    let manager = db.databases.transactions();
    let answer = manager.in_transaction_with(options, async |tx| {
        let things = db.things().within(&tx);
        for row in [first, second] {
            things.update(row.apply(|thing| thing.big = 1)).await.unwrap();
        }
        Ok::<_, Refused>(())
    });
    let answer = answer.await;
    assert!(matches!(answer, Err(TransactionError::TimedOut(_))), "{answer:?}");
    until("the first row is free", async || !db.select(&["id"], &free).await.is_empty()).await;
}
