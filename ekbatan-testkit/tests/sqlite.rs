//! SQLite opens a temporary database, and its files are removed with the handle.

use ekbatan_testkit::TempSqlite;
use sqlx::{Connection, SqliteConnection};

#[tokio::test]
async fn opens_without_options_and_keeps_its_data() {
    let database = TempSqlite::new().unwrap();
    let mut writer = SqliteConnection::connect(&database.url()).await.unwrap();
    sqlx::raw_sql(
        "PRAGMA journal_mode = wal; CREATE TABLE t (n INTEGER); INSERT INTO t VALUES (7)",
    )
    .execute(&mut writer)
    .await
    .unwrap();
    let mut reader = SqliteConnection::connect(&database.url()).await.unwrap();
    let number: i64 = sqlx::query_scalar("SELECT n FROM t").fetch_one(&mut reader).await.unwrap();
    assert_eq!(number, 7);
}

#[test]
fn two_databases_are_two_files() {
    let (one, other) = (TempSqlite::new().unwrap(), TempSqlite::new().unwrap());
    assert_ne!(one.path(), other.path());
    assert_ne!(one.url(), other.url());
}

#[tokio::test]
async fn is_removed_with_its_handle() {
    let database = TempSqlite::new().unwrap();
    let mut connection = SqliteConnection::connect(&database.url()).await.unwrap();
    sqlx::raw_sql("PRAGMA journal_mode = wal; CREATE TABLE t (n INTEGER)")
        .execute(&mut connection)
        .await
        .unwrap();
    let folder = database.path().parent().unwrap().to_owned();
    assert!(database.path().exists());
    drop(database);
    assert!(!folder.exists());
}
