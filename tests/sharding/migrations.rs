//! Migrations over shards: behaviour 98.

use std::collections::BTreeSet;

use ekbatan::db::MigrationError;
use ekbatan::prelude::*;
use support::Recorder;

use crate::models::migrations;
use crate::shards::{SECOND, SHARDS, THIRD, TestShards};

on_every_layout! {
    every_shard_is_migrated,
    the_migration_state_is_listed_by_shard_in_order,
    reading_the_migration_state_changes_nothing,
    a_shard_that_fails_to_migrate_is_named_and_the_others_migrate,
    an_edited_migration_is_refused_on_the_shards_that_ran_it,
    two_registries_may_migrate_concurrently,
    without_migrations_the_tables_of_the_framework_are_created,
}

const LIST: &str = "CREATE TABLE list (n integer NOT NULL)";

/// The number of migrations of the application that each shard has run.
async fn applied(t: &TestShards, migrations: &Migrations) -> Vec<Vec<i64>> {
    let status = t.databases.migration_status(migrations).await.unwrap();
    let applied = status.into_iter().map(|shard| {
        let own = shard.migrations.into_iter().filter(|state| state.source == "application");
        own.filter(|state| state.applied_date.is_some()).map(|state| state.version).collect()
    });
    applied.collect()
}

async fn every_shard_is_migrated(t: &TestShards) {
    assert_eq!(applied(t, &migrations()).await, [[1], [1], [1]]);
    assert_eq!(t.counts("accounts").await, [0; 3]);
    t.databases.migrate(&migrations()).await.unwrap();
}

async fn the_migration_state_is_listed_by_shard_in_order(t: &TestShards) {
    let more = migrations().script(2, "list", LIST);
    let status = t.databases.migration_status(&more).await.unwrap();
    let shards: Vec<_> = status.iter().map(|shard| shard.shard).collect();
    assert_eq!(shards, SHARDS);
    for shard in &status {
        let last = shard.migrations.last().unwrap();
        assert_eq!((last.version, &*last.name, last.applied_date), (2, "list", None));
        let sources: Vec<_> = shard.migrations.iter().map(|state| &*state.source).collect();
        assert_eq!((sources[0], sources.len() >= 3), ("ekbatan", true));
    }
}

async fn reading_the_migration_state_changes_nothing(t: &TestShards) {
    let empty = TestShards::start_empty(t.layout).await;
    for _ in 0..2 {
        for shard in empty.databases.migration_status(&migrations()).await.unwrap() {
            assert!(shard.migrations.iter().all(|state| state.applied_date.is_none()));
        }
    }
    let (recorder, guard) = Recorder::start();
    empty.databases.migrate(&migrations()).await.unwrap();
    drop(guard);
    let logged = recorder.all().into_iter().filter(|of| of.field("message") == Some("migrated"));
    let databases: BTreeSet<_> =
        logged.map(|of| of.field("database").expect("its database").to_owned()).collect();
    assert_eq!(databases.len(), 3, "{databases:?}");
    assert_eq!(applied(&empty, &migrations()).await, [[1], [1], [1]]);
}

async fn a_shard_that_fails_to_migrate_is_named_and_the_others_migrate(t: &TestShards) {
    t.on(SECOND).execute("CREATE TABLE list (other integer)").await;
    let more =
        migrations().script(2, "list", LIST).script(3, "fill", "INSERT INTO list VALUES (1)");
    let error = t.databases.migrate(&more).await.unwrap_err();
    match &error {
        MigrationError::Shards(failed) => {
            assert_eq!(failed.len(), 1);
            let (shard, error) = &failed[0];
            assert_eq!(*shard, SECOND);
            assert!(matches!(error, MigrationError::Failed { version: 2, .. }), "{error:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains("shard 0/1: migration 2 `list` failed"), "{error}");
    assert_eq!(applied(t, &more).await, [vec![1, 2, 3], vec![1], vec![1, 2, 3]]);
    t.on(SECOND).execute("DROP TABLE list").await;
    t.databases.migrate(&more).await.unwrap();
    assert_eq!(t.counts("list").await, [1; 3], "a migration that ran does not run again");
}

async fn an_edited_migration_is_refused_on_the_shards_that_ran_it(t: &TestShards) {
    let sql = |text: &str| Migrations::none().script(9, "list", text);
    // Only the third shard has run it.
    let third = EkbatanConfig::single(&t.on(THIRD).url);
    Databases::connect(&third).await.unwrap().migrate(&sql(LIST)).await.unwrap();
    let edited = sql("CREATE TABLE list (m integer)");
    let status = t.databases.migration_status(&edited).await.unwrap();
    let refused: Vec<bool> =
        status.iter().map(|shard| shard.migrations.iter().any(|state| state.edited)).collect();
    assert_eq!(refused, [false, false, true]);
    match t.databases.migrate(&edited).await.unwrap_err() {
        MigrationError::Shards(failed) => {
            assert_eq!((failed.len(), failed[0].0), (1, THIRD));
            assert!(matches!(failed[0].1, MigrationError::Edited { version: 9, .. }));
        }
        other => panic!("{other:?}"),
    }
}

async fn two_registries_may_migrate_concurrently(t: &TestShards) {
    let empty = TestShards::start_empty(t.layout).await;
    let (one, other) = (empty.open_again().await, empty.open_again().await);
    let more =
        migrations().script(2, "list", LIST).script(3, "fill", "INSERT INTO list VALUES (1)");
    let (first, second) = tokio::join!(one.migrate(&more), other.migrate(&more));
    first.unwrap();
    second.unwrap();
    assert_eq!(empty.counts("list").await, [1; 3], "each migration ran once on each shard");
}

async fn without_migrations_the_tables_of_the_framework_are_created(t: &TestShards) {
    let empty = TestShards::start_empty(t.layout).await;
    empty.databases.migrate(&Migrations::none()).await.unwrap();
    assert_eq!(empty.eventlog_counts("events").await, [0; 3]);
    let missing = tempfile::tempdir().unwrap().path().join("missing");
    let error = empty.databases.migrate(&Migrations::dir(&missing)).await.unwrap_err();
    match &error {
        MigrationError::Shards(failed) => assert_eq!(failed.len(), 3),
        other => panic!("{other:?}"),
    }
}
