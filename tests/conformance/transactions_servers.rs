//! Transactions on the servers, which have sessions that can be lost: behaviours 35 to 37.

use std::time::Duration;

use ekbatan::db::{
    DbError, Isolation, PoolStatus, Route, Transaction, TransactionError, TransactionOptions,
};
use ekbatan::prelude::*;
use support::things::{quiet, thing};
use support::{Dialect, TestDatabase, until};

use crate::actions::Refused;
use crate::sessions::{execute, session_id, terminate};

on_every_database! {
    only postgres and mysql and mariadb:
    a_failed_rollback_closes_the_connection,
    a_connection_lost_during_the_commit_is_closed_and_the_commit_unknown,
    a_timeout_does_not_wait_for_what_a_kept_handle_does,
    the_chosen_isolation_applies,
    single_and_batch_updates_keep_microseconds_in_every_session_time_zone,
}

/// West and east of Greenwich, the farthest, and by a part of an hour.
const TIME_ZONES: [&str; 5] = ["-05:00", "-11:00", "+13:00", "+05:30", "+00:00"];

fn status(db: &TestDatabase) -> PoolStatus {
    db.databases.pool_status(Route::Primary)
}

/// Checks that the session is closed and that nothing was written.
async fn assert_closed_without_a_write(db: &TestDatabase, session: &str) {
    assert_eq!((status(db).size, status(db).holders), (0, vec![]));
    let next = async |tx: Transaction| Ok::<_, Refused>(session_id(db, &tx).await);
    assert_ne!(db.databases.transactions().in_transaction(next).await.unwrap(), session);
    assert_eq!(db.count("things").await, 0);
}

async fn a_failed_rollback_closes_the_connection(db: &TestDatabase) {
    let mut session = String::new();
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            session = session_id(db, &tx).await;
            db.things().within(&tx).add(quiet(thing("a"))).await.unwrap();
            terminate(db, &session).await;
            Err::<(), _>(Refused)
        })
        .await;
    assert!(matches!(answer, Err(TransactionError::Inner(Refused))), "{answer:?}");
    assert_closed_without_a_write(db, &session).await;
}

async fn a_connection_lost_during_the_commit_is_closed_and_the_commit_unknown(db: &TestDatabase) {
    let mut session = String::new();
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            session = session_id(db, &tx).await;
            db.things().within(&tx).add(quiet(thing("a"))).await.unwrap();
            terminate(db, &session).await;
            Ok::<_, Refused>(())
        })
        .await;
    assert!(matches!(answer, Err(TransactionError::CommitUnknown(_))), "{answer:?}");
    assert_closed_without_a_write(db, &session).await;
}

/// A transaction reads twice, before and after another session commits a row.
/// A statement on a handle that the closure gave away waits for a lock of another session.
async fn a_timeout_does_not_wait_for_what_a_kept_handle_does(db: &TestDatabase) {
    let stored = db.things().add(quiet(thing("a"))).await.unwrap();
    let mut holder = db.connect().await;
    holder.execute("BEGIN").await;
    holder.execute("UPDATE things SET small = small + 1").await;
    let options = TransactionOptions::default().timeout(Duration::from_secs(1));
    let mut updating = None;
    let answer = db
        .databases
        .transactions()
        .in_transaction_with(options, async |tx| {
            let things = db.things().within(&tx);
            let update = stored.clone().apply(|thing| thing.label = "b".to_owned());
            updating = Some(tokio::spawn(async move { things.update(update).await.map(drop) }));
            std::future::pending::<Result<(), Refused>>().await
        })
        .await;
    assert!(matches!(answer, Err(TransactionError::TimedOut(_))), "{answer:?}");
    let updating = updating.unwrap();
    assert!(!updating.is_finished(), "the timeout waited for the statement");
    holder.execute("ROLLBACK").await;
    let _ = updating.await.unwrap();
    until("the transaction has ended", async || status(db).holders.is_empty()).await;
    assert_eq!(db.things().get(stored.id).await.unwrap(), stored);
}

async fn the_chosen_isolation_applies(db: &TestDatabase) {
    assert!(db.databases.capabilities().isolation_levels);
    let default = TransactionOptions::default();
    let mut cases = vec![
        (default, true),
        (default.isolation(Isolation::ReadCommitted), true),
        (default.isolation(Isolation::RepeatableRead), false),
    ];
    // On MySQL and MariaDB a serializable read would block the other session.
    if db.dialect == Dialect::Postgres {
        cases.push((default.isolation(Isolation::Serializable), false));
    }
    for (n, (options, sees_the_commit)) in cases.into_iter().enumerate() {
        let work = async |tx: Transaction| {
            let things = db.things().within(&tx);
            let before = things.count().await.unwrap();
            let beside = db.things().outside_transaction();
            beside.add(quiet(thing(&n.to_string()))).await.unwrap();
            Ok::<_, Refused>(things.count().await.unwrap() > before)
        };
        let manager = db.databases.transactions();
        let saw = manager.in_transaction_with(options, work).await.unwrap();
        assert_eq!(saw, sees_the_commit, "{:?}", options.isolation);
    }
}

async fn single_and_batch_updates_keep_microseconds_in_every_session_time_zone(db: &TestDatabase) {
    for zone in TIME_ZONES {
        updates_keep_microseconds_in(db, zone).await;
    }
    if db.dialect == Dialect::Postgres {
        // A zone whose offset depends on the date.
        updates_keep_microseconds_in(db, "America/New_York").await;
    }
}

async fn updates_keep_microseconds_in(db: &TestDatabase, zone: &str) {
    let things = ["a", "b", "c"].map(|label| quiet(thing(&format!("{label} in {zone}"))));
    let stored = db.things().add_all(things).await.unwrap();
    let at = DateTime::from_timestamp_micros(1_720_000_000_123_457).unwrap();
    let changed = stored.into_iter().map(|thing| {
        thing.apply(|thing| {
            thing.at = at;
            thing.seen_at = Some(at);
        })
    });
    let mut changed: Vec<_> = changed.collect();
    let set_time_zone = match db.dialect {
        Dialect::Postgres => format!("SET TIME ZONE '{zone}'"),
        _ => format!("SET time_zone = '{zone}'"),
    };
    let expected = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            execute(db, &tx, &set_time_zone).await.unwrap();
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
