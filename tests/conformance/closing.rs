//! Closing the databases.

use std::path::{Path, PathBuf};

use ekbatan::prelude::*;
use ekbatan_testkit::drop_at_poll;
use futures_util::future::join_all;
use support::TestDatabase;
use support::things::{Thing, quiet, thing};

on_every_database! { only sqlite: a_closed_database_is_one_whole_file }

/// The log beside a database file.
fn log_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// Backups copy the file alone. Rows whose pages are only in the log would be missing.
async fn a_closed_database_is_one_whole_file(db: &TestDatabase) {
    let file = PathBuf::from(db.url.strip_prefix("sqlite:").unwrap());
    db.databases.close().await;
    for round in 1..=200 {
        let databases = db.open_again().await;
        let things = databases.repository::<Thing>();
        things.add(quiet(thing(&format!("{round}")))).await.unwrap();
        // Several connections; one has not finished its last use.
        for count in join_all((0..10).map(|_| things.count())).await {
            assert_eq!(count.unwrap(), round);
        }
        let _unfinished = drop_at_poll(1, things.count()).await;
        assert!(log_of(&file).exists(), "the database is open");
        databases.close().await;
        assert!(!log_of(&file).exists(), "the log is left in round {round}");
        let copy = tempfile::tempdir().unwrap();
        let copied = copy.path().join("copy.db");
        std::fs::copy(&file, &copied).unwrap();
        let copied = Databases::open(&format!("sqlite:{}", copied.display())).await.unwrap();
        assert_eq!(copied.repository::<Thing>().count().await.unwrap(), round);
        copied.close().await;
    }
}
