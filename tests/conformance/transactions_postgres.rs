//! Transactions whose server fails them, and what only PostgreSQL has: behaviours 35 to 37.

use ekbatan::db::{
    DbError, DbErrorKind, Isolation, PoolStatus, Route, Transaction, TransactionError,
    TransactionOptions,
};
use ekbatan::prelude::*;
use sqlx::AssertSqlSafe;
use support::TestDatabase;
use support::things::{Thing, quiet, thing};

use crate::actions::Refused;

on_every_database! {
    only postgres:
    a_failed_rollback_closes_the_connection,
    a_connection_lost_in_the_commit_is_closed_and_the_commit_unknown,
    a_commit_that_is_refused_releases_the_connection,
    a_failure_that_was_swallowed_does_not_look_like_a_commit,
    the_isolation_is_the_one_that_was_chosen,
    settings_do_not_outlive_their_transaction,
    single_and_batch_updates_keep_microseconds_in_every_session_time_zone,
}

async fn ask(tx: &Transaction, sql: &str) -> String {
    let mut connection = tx.postgres().await.unwrap();
    sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(connection.connection().unwrap())
        .await
        .unwrap()
}

async fn tell(tx: &Transaction, sql: &str) -> Result<(), sqlx::Error> {
    let mut connection = tx.postgres().await.unwrap();
    let connection = connection.connection().unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
}

const PID: &str = "SELECT pg_backend_pid()::text";

/// Ends a session and waits until it is gone.
async fn terminate(db: &TestDatabase, pid: &str) {
    let ended = db.select(&[&format!("pg_terminate_backend({pid}, 60000)")], "").await;
    assert_eq!(ended, [[Some("true".to_owned())]]);
}

fn status(db: &TestDatabase) -> PoolStatus {
    db.databases.pool_status(Route::Primary)
}

async fn pid_of_the_next_one(db: &TestDatabase) -> String {
    let work = async |tx: Transaction| Ok::<_, Refused>(ask(&tx, PID).await);
    db.databases.transactions().in_transaction(work).await.unwrap()
}

async fn a_failed_rollback_closes_the_connection(db: &TestDatabase) {
    let mut old = String::new();
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            old = ask(&tx, PID).await;
            db.things().within(&tx).add(quiet(thing("a"))).await.unwrap();
            terminate(db, &old).await;
            Err::<(), _>(Refused)
        })
        .await;
    assert!(matches!(answer, Err(TransactionError::Inner(Refused))), "{answer:?}");
    assert_eq!((status(db).size, status(db).holders), (0, vec![]));
    assert_ne!(pid_of_the_next_one(db).await, old);
    assert_eq!(db.count("things").await, 0);
}

async fn a_connection_lost_in_the_commit_is_closed_and_the_commit_unknown(db: &TestDatabase) {
    let mut old = String::new();
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            old = ask(&tx, PID).await;
            db.things().within(&tx).add(quiet(thing("a"))).await.unwrap();
            terminate(db, &old).await;
            Ok::<_, Refused>(())
        })
        .await;
    assert!(matches!(answer, Err(TransactionError::CommitUnknown(_))), "{answer:?}");
    assert_eq!((status(db).size, status(db).holders), (0, vec![]));
    assert_ne!(pid_of_the_next_one(db).await, old);
    assert_eq!(db.count("things").await, 0);
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

async fn a_failure_that_was_swallowed_does_not_look_like_a_commit(db: &TestDatabase) {
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            db.things().within(&tx).add(quiet(thing("a"))).await.unwrap();
            tell(&tx, "SELECT 1 / 0").await.unwrap_err();
            Ok::<_, Refused>(())
        })
        .await;
    assert!(matches!(answer, Err(TransactionError::Database(_))), "{answer:?}");
    assert_eq!((status(db).size, status(db).idle), (1, 1));
    assert_eq!(db.count("things").await, 0);
}

async fn the_isolation_is_the_one_that_was_chosen(db: &TestDatabase) {
    assert!(db.databases.capabilities().isolation_levels);
    for (isolation, name) in [
        (None, "read committed"),
        (Some(Isolation::Serializable), "serializable"),
        (Some(Isolation::RepeatableRead), "repeatable read"),
        (Some(Isolation::ReadCommitted), "read committed"),
    ] {
        let options = TransactionOptions { isolation, ..TransactionOptions::default() };
        let manager = db.databases.transactions();
        let work =
            async |tx: Transaction| Ok::<_, Refused>(ask(&tx, "SHOW transaction_isolation").await);
        assert_eq!(manager.in_transaction_with(options, work).await.unwrap(), name);
    }
}

async fn settings_do_not_outlive_their_transaction(db: &TestDatabase) {
    let mut pid = String::new();
    for commits in [true, false] {
        let manager = db.databases.transactions();
        let answer = manager.in_transaction(async |tx| {
            pid = ask(&tx, PID).await;
            tell(&tx, "SET TIME ZONE 'America/New_York'; SET statement_timeout = 99")
                .await
                .unwrap();
            if commits { Ok(()) } else { Err(Refused) }
        });
        assert_eq!(answer.await.is_ok(), commits);
        let found = manager.in_transaction(async |tx| {
            let same = ask(&tx, PID).await == pid;
            let zone = ask(&tx, "SHOW TimeZone").await;
            let plans = ask(&tx, "SHOW plan_cache_mode").await;
            Ok::<_, Refused>((same, zone, plans, ask(&tx, "SHOW statement_timeout").await))
        });
        let expected = (true, "UTC".to_owned(), "force_generic_plan".to_owned(), "0".to_owned());
        assert_eq!(found.await.unwrap(), expected);
    }
}

async fn single_and_batch_updates_keep_microseconds_in_every_session_time_zone(db: &TestDatabase) {
    let things = ["a", "b", "c"].map(|label| quiet(thing(label)));
    let stored = db.things().add_all(things).await.unwrap();
    let at = DateTime::from_timestamp_micros(1_720_000_000_123_457).unwrap();
    let changed = stored.into_iter().map(|thing| {
        thing.apply(|thing| {
            thing.at = at;
            thing.seen_at = Some(at);
        })
    });
    let mut changed: Vec<_> = changed.collect();
    let expected = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            tell(&tx, "SET TIME ZONE 'America/New_York'").await.unwrap();
            let things = db.things().within(&tx);
            let single = things.update(changed.remove(0)).await.unwrap();
            let mut all = things.update_all(changed).await.unwrap();
            all.push(single);
            for thing in &all {
                assert_eq!(things.get(thing.id).await.unwrap(), *thing);
            }
            Ok::<_, DbError>(all)
        })
        .await
        .unwrap();
    for thing in expected {
        assert_eq!((thing.at, thing.seen_at), (at, Some(at)));
        assert_eq!(db.things().get(thing.id).await.unwrap(), thing);
    }
}
