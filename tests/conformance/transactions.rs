//! Transactions that user code opens: behaviours 34 to 40.

use std::time::Duration;

use ekbatan::db::{
    DbErrorKind, Isolation, PoolStatus, Route, Transaction, TransactionError, TransactionOptions,
};
use ekbatan::prelude::{Databases, Id};
use ekbatan::repository::WriteError;
use support::things::{THINGS, Thing, quiet, thing};
use support::{Dialect, TestDatabase};

use crate::actions::Refused;

on_every_database! {
    a_commit_releases_its_connection,
    a_failure_rolls_back_and_is_returned_unchanged,
    a_panic_closes_the_connection,
    without_a_connection_the_closure_does_not_run,
    writes_are_visible_outside_only_after_the_commit,
    a_nested_transaction_is_refused,
    a_transaction_of_another_database_may_be_nested,
    a_timeout_rolls_back,
    a_read_only_transaction_refuses_writes_and_the_next_one_does_not,
    a_handle_that_outlives_its_transaction_is_refused,
    a_dropped_transaction_closes_its_connection_and_writes_nothing,
    a_dropped_transaction_ends_although_a_handle_is_kept,
    a_failed_batch_writes_nothing,
    the_first_use_of_a_table_in_a_transaction_needs_no_second_connection,
}

on_every_database! {
    on_sqlite_only:
    weaker_isolation_is_refused,
    a_commit_that_is_refused_releases_the_connection,
}

fn status(db: &TestDatabase) -> PoolStatus {
    db.databases.pool_status(Route::Primary)
}

/// The size of the pool. Checks that every connection is idle.
fn idle(db: &TestDatabase) -> usize {
    let status = status(db);
    assert_eq!((status.idle, status.waiting), (status.size, 0), "{status:?}");
    assert_eq!(status.holders, []);
    status.size
}

async fn add(db: &TestDatabase, tx: &Transaction, label: &str) {
    db.things().within(tx).add(quiet(thing(label))).await.unwrap();
}

async fn a_commit_releases_its_connection(db: &TestDatabase) {
    assert_eq!(idle(db), 1);
    let held = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            add(db, &tx, "a").await;
            Ok::<_, Refused>(status(db))
        })
        .await
        .unwrap();
    assert_eq!((held.size, held.idle), (1, 0));
    assert_eq!(held.holders.len(), 1);
    assert_eq!(held.holders[0].0, "transaction");
    assert_eq!(idle(db), 1);
    assert_eq!(db.count("things").await, 1);
}

async fn a_failure_rolls_back_and_is_returned_unchanged(db: &TestDatabase) {
    let error = Box::new(Refused);
    let address = &raw const *error;
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            add(db, &tx, "a").await;
            Err::<(), _>(error)
        })
        .await;
    match answer {
        Err(TransactionError::Inner(answered)) => assert_eq!(&raw const *answered, address),
        other => panic!("{other:?}"),
    }
    assert_eq!(idle(db), 1);
    assert_eq!(db.count("things").await, 0);
}

async fn a_panic_closes_the_connection(db: &TestDatabase) {
    let (databases, things) = (db.databases.clone(), db.things());
    let panicked = tokio::spawn(async move {
        let work = async |tx: Transaction| {
            things.within(&tx).add(quiet(thing("a"))).await.unwrap();
            if things.within(&tx).count().await.unwrap() == 1 {
                panic!("this transaction panics");
            }
            Ok::<_, Refused>(())
        };
        databases.transactions().in_transaction(work).await
    });
    assert!(panicked.await.unwrap_err().is_panic());
    assert_eq!(idle(db), 0);
    assert_eq!(db.count("things").await, 0);
}

async fn without_a_connection_the_closure_does_not_run(db: &TestDatabase) {
    db.databases.close().await;
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |_| -> Result<(), Refused> { panic!("the transaction must not run") })
        .await;
    match answer {
        Err(TransactionError::Database(error)) => {
            assert_eq!(error.kind(), DbErrorKind::Unavailable);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(status(db).holders, []);
}

async fn writes_are_visible_outside_only_after_the_commit(db: &TestDatabase) {
    db.databases
        .transactions()
        .in_transaction(async |tx| {
            add(db, &tx, "a").await;
            assert_eq!(db.things().within(&tx).count().await.unwrap(), 1);
            assert_eq!(db.things().count().await.unwrap(), 0, "outside");
            Ok::<_, Refused>(())
        })
        .await
        .unwrap();
    assert_eq!(db.things().count().await.unwrap(), 1);
}

async fn a_nested_transaction_is_refused(db: &TestDatabase) {
    let manager = db.databases.transactions();
    manager
        .in_transaction(async |_| {
            let second = db.databases.transactions();
            let inner = second.in_transaction(async |_| -> Result<(), Refused> {
                panic!("the transaction must not run")
            });
            assert!(matches!(inner.await, Err(TransactionError::Nested)));
            Ok::<_, Refused>(())
        })
        .await
        .unwrap();
    // Consecutive transactions are not nested.
    manager.in_transaction(async |_| Ok::<_, Refused>(())).await.unwrap();
    assert_eq!(idle(db), 1);
}

async fn a_transaction_of_another_database_may_be_nested(db: &TestDatabase) {
    let other = TestDatabase::start(&THINGS, db.dialect).await;
    db.databases
        .transactions()
        .in_transaction(async |_| {
            let inner = other.databases.transactions();
            inner
                .in_transaction(async |tx| {
                    add(&other, &tx, "a").await;
                    Ok::<_, Refused>(())
                })
                .await
                .unwrap();
            Err::<(), _>(Refused)
        })
        .await
        .unwrap_err();
    assert_eq!(other.count("things").await, 1);
}

async fn a_timeout_rolls_back(db: &TestDatabase) {
    let timeout = Duration::from_millis(300);
    let options = TransactionOptions::default().timeout(timeout);
    let answer = db
        .databases
        .transactions()
        .in_transaction_with(options, async |tx| {
            add(db, &tx, "a").await;
            std::future::pending::<Result<(), Refused>>().await
        })
        .await;
    assert!(matches!(answer, Err(TransactionError::TimedOut(after)) if after == timeout));
    assert_eq!(db.count("things").await, 0);
    assert!(idle(db) <= 1);
    db.things().add(quiet(thing("a"))).await.unwrap();
}

async fn a_read_only_transaction_refuses_writes_and_the_next_one_does_not(db: &TestDatabase) {
    let manager = db.databases.transactions();
    let options = TransactionOptions::default().read_only();
    let answer = manager
        .in_transaction_with(options, async |tx| {
            assert_eq!(db.things().within(&tx).count().await.unwrap(), 0);
            db.things().within(&tx).add(quiet(thing("a"))).await
        })
        .await;
    match answer {
        Err(TransactionError::Inner(WriteError::Database(error))) => {
            assert_eq!(error.kind(), DbErrorKind::ReadOnly);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(idle(db), 1);
    manager
        .in_transaction(async |tx| {
            add(db, &tx, "a").await;
            Ok::<_, Refused>(())
        })
        .await
        .unwrap();
    assert_eq!(db.count("things").await, 1);
}

async fn a_handle_that_outlives_its_transaction_is_refused(db: &TestDatabase) {
    let leaked =
        db.databases.transactions().in_transaction(async |tx| Ok::<_, Refused>(tx)).await.unwrap();
    for _ in 0..2 {
        let read = db.things().within(&leaked).count().await.unwrap_err();
        assert!(read.to_string().contains("over"), "{read}");
        let write = db.things().within(&leaked).add(quiet(thing("a"))).await.unwrap_err();
        assert!(write.to_string().contains("over"), "{write}");
    }
    assert_eq!(db.count("things").await, 0);
}

async fn a_dropped_transaction_closes_its_connection_and_writes_nothing(db: &TestDatabase) {
    let (has_written, written) = tokio::sync::oneshot::channel();
    let manager = db.databases.transactions();
    let running = manager.in_transaction(async |tx| {
        add(db, &tx, "a").await;
        has_written.send(()).unwrap();
        std::future::pending::<Result<(), Refused>>().await
    });
    tokio::select! {
        answer = running => panic!("{answer:?}"),
        answer = written => answer.unwrap(),
    }
    assert_eq!(idle(db), 0);
    assert_eq!(db.count("things").await, 0);
    db.things().add(quiet(thing("a"))).await.unwrap();
}

/// Otherwise the handle would hold its locks, on SQLite that of the only writer.
async fn a_dropped_transaction_ends_although_a_handle_is_kept(db: &TestDatabase) {
    let (keep, kept) = tokio::sync::oneshot::channel();
    let manager = db.databases.transactions();
    let running = manager.in_transaction(async |tx| {
        add(db, &tx, "a").await;
        keep.send(tx.clone()).ok().unwrap();
        std::future::pending::<Result<(), Refused>>().await
    });
    let kept = tokio::select! {
        answer = running => panic!("{answer:?}"),
        handle = kept => handle.unwrap(),
    };
    assert_eq!(idle(db), 0);
    let read = db.things().within(&kept).count().await.unwrap_err();
    assert!(read.to_string().contains("over"), "{read}");
    db.things().add(quiet(thing("b"))).await.unwrap();
    assert_eq!(db.count("things").await, 1);
}

/// PostgreSQL refuses further statements in a transaction after an error.
async fn a_failed_batch_writes_nothing(db: &TestDatabase) {
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            let things = db.things().within(&tx);
            things.add(quiet(thing("a"))).await.unwrap();
            let batch = [quiet(thing("b")), quiet(thing("a"))];
            things.add_all(batch).await.unwrap_err();
            Ok::<_, Refused>(())
        })
        .await;
    if db.dialect == Dialect::Postgres {
        assert!(matches!(answer, Err(TransactionError::Database(_))), "{answer:?}");
        assert_eq!(db.count("things").await, 0);
    } else {
        answer.unwrap();
        assert_eq!(db.select(&["label"], "FROM things").await, [[Some("a".to_owned())]]);
    }
    assert_eq!(idle(db), 1);
}

/// The pool has one connection: checking the table on a second one would deadlock.
async fn the_first_use_of_a_table_in_a_transaction_needs_no_second_connection(db: &TestDatabase) {
    let config = db.config().maximum_pool_size(1).connection_timeout(Duration::from_secs(60));
    let databases = Databases::connect(&config.into()).await.unwrap();
    let answer = databases
        .transactions()
        .in_transaction(async |tx| databases.repository().within(&tx).add(quiet(thing("a"))).await)
        .await;
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(db.count("things").await, 1);
}

/// A constraint that is checked at the end. PostgreSQL has a test of its own; MySQL and MariaDB
/// check every constraint at once.
async fn a_commit_that_is_refused_releases_the_connection(db: &TestDatabase) {
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            let mut raw = tx.sqlite().await.unwrap();
            let defer = sqlx::raw_sql("PRAGMA defer_foreign_keys = ON");
            defer.execute(raw.connection().unwrap()).await.unwrap();
            drop(raw);
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
    assert_eq!((idle(db), db.count("things").await), (1, 0));
    db.things().add(quiet(thing("a"))).await.unwrap();
}

async fn weaker_isolation_is_refused(db: &TestDatabase) {
    assert!(!db.databases.capabilities().isolation_levels);
    for (isolation, allowed) in [
        (Isolation::ReadCommitted, false),
        (Isolation::RepeatableRead, false),
        (Isolation::Serializable, true),
    ] {
        let options = TransactionOptions::default().isolation(isolation);
        let manager = db.databases.transactions();
        let answer = manager.in_transaction_with(options, async |_| Ok::<_, Refused>(())).await;
        assert_eq!(answer.is_ok(), allowed, "{answer:?}");
    }
}
