//! Writes beside a transaction that their own task has open. They would stay if the transaction is
//! rolled back, so they are refused, unless the caller says that they are meant.

use ekbatan::action::{Contention, ErrorKind};
use ekbatan::db::{DbErrorKind, TransactionOptions};
use ekbatan::domain::LockKey;
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;
use support::things::{THINGS, quiet, thing};
use support::{Dialect, TestDatabase};

use crate::actions::{Nothing, Refused, run, stage};

on_every_database! {
    a_repository_writes_within_the_open_transaction_or_not_at_all,
    an_action_in_an_open_transaction_is_refused,
    what_is_meant_beside_a_transaction_stays,
    reads_and_writes_of_others_are_not_refused,
}

fn assert_refused(db: &TestDatabase, message: &str) {
    let (why, ways_out): (&str, &[&str]) = match db.dialect {
        Dialect::Sqlite => ("holds the one writer of the database", &[".within(&transaction)"]),
        _ => (
            "would commit beside it, even if the transaction is rolled back",
            &[".within(&transaction)", ".outside_transaction()"],
        ),
    };
    assert!(message.contains(why), "{message}");
    for way_out in ways_out {
        assert!(message.contains(way_out), "{message}");
    }
}

/// Stages a thing.
fn add(ctx: &mut ActionContext<'_>, label: &str) -> Result<(), Refused> {
    ctx.plan().add(quiet(thing(label)));
    Ok(())
}

async fn a_repository_writes_within_the_open_transaction_or_not_at_all(db: &TestDatabase) {
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |_| {
            let error = db.things().add(quiet(thing("beside"))).await.unwrap_err();
            assert_refused(db, &error.to_string());
            let WriteError::Database(error) = error else { panic!("{error:?}") };
            assert_eq!(error.kind(), DbErrorKind::OpenTransaction);
            Err::<(), _>(Refused)
        })
        .await;
    answer.unwrap_err();
    assert_eq!(db.count("things").await, 0);
}

async fn an_action_in_an_open_transaction_is_refused(db: &TestDatabase) {
    let executor = db.executor().await;
    let contentions = [Contention::Optimistic, Contention::coalesced()];
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |_| {
            for contention in contentions {
                let action = stage(|ctx| add(ctx, "beside"));
                let key = LockKey::named("things");
                let call = executor.execute(&action, Nothing {}).contention_keys([key]);
                let error = call.contention(contention).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Refused);
                assert!(!error.is_retryable());
                assert_refused(db, &error.to_string());
            }
            Ok::<_, Refused>(())
        })
        .await;
    answer.unwrap();
    assert_eq!((db.count("things").await, db.count_events().await), (0, 0));
    run(&executor, |ctx| add(ctx, "after")).await.unwrap();
}

async fn what_is_meant_beside_a_transaction_stays(db: &TestDatabase) {
    let executor = db.executor().await;
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            db.things().within(&tx).add(quiet(thing("within"))).await.unwrap();
            let added = db.things().outside_transaction().add(quiet(thing("row"))).await;
            let action = stage(|ctx| add(ctx, "action"));
            let executed = executor.execute(&action, Nothing {}).outside_transaction().await;
            if db.dialect == Dialect::Sqlite {
                assert_refused(db, &added.unwrap_err().to_string());
                assert_refused(db, &executed.unwrap_err().to_string());
            } else {
                added.unwrap();
                executed.unwrap();
                // The next write is not meant.
                let error = db.things().add(quiet(thing("beside"))).await.unwrap_err();
                assert_refused(db, &error.to_string());
            }
            Err::<(), _>(Refused)
        })
        .await;
    answer.unwrap_err();
    let stayed = if db.dialect == Dialect::Sqlite { 0 } else { 2 };
    assert_eq!(db.count("things").await, stayed);
}

/// Only writes to the same database count as beside the transaction: within it they would be
/// possible. A transaction that only reads keeps nothing back.
async fn reads_and_writes_of_others_are_not_refused(db: &TestDatabase) {
    let other = TestDatabase::start(&THINGS, db.dialect).await;
    let transactions = db.databases.transactions();
    transactions
        .in_transaction(async |_| {
            assert_eq!(db.things().count().await.unwrap(), 0);
            other.things().add(quiet(thing("other"))).await.unwrap();
            Ok::<_, Refused>(())
        })
        .await
        .unwrap();
    let read_only = TransactionOptions::default().read_only();
    transactions
        .in_transaction_with(read_only, async |_| {
            db.things().add(quiet(thing("beside"))).await.unwrap();
            Ok::<_, Refused>(())
        })
        .await
        .unwrap();
    assert_eq!((db.count("things").await, other.count("things").await), (1, 1));
}
