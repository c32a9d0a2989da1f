//! Raw SQL on SQLite: what it may not leave behind.

use std::time::Duration;

use ekbatan::prelude::*;
use support::TestDatabase;
use support::things::{Thing, quiet, thing};

on_every_database! {
    on_sqlite_only:
    a_repository_does_not_wait_for_a_raw_connection_for_ever,
}

async fn a_repository_does_not_wait_for_a_raw_connection_for_ever(db: &TestDatabase) {
    let config = db.config().connection_timeout(Duration::from_secs(1));
    let databases = Databases::connect(&config.into()).await.unwrap();
    let things = databases.repository::<Thing>();
    let manager = databases.transactions();
    let answer = manager.in_transaction(async |tx| {
        let raw = tx.sqlite().await.unwrap();
        let error = things.within(&tx).count().await.unwrap_err();
        assert!(error.to_string().contains("drop(raw)"), "{error}");
        drop(raw);
        things.within(&tx).add(quiet(thing("a"))).await
    });
    answer.await.unwrap();
    assert_eq!(db.count("things").await, 1);
}
