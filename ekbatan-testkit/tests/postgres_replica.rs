//! A replica shows the commits of its primary, except while it is paused.

use std::time::Duration;

use ekbatan_testkit::{PostgresServer, ServerError};
use sqlx::{Connection, PgConnection};

/// Deadline for what takes only a moment on a working machine.
const TIMEOUT: Duration = Duration::from_secs(120);

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap()
}

async fn run(url: &str, sql: &'static str) {
    sqlx::raw_sql(sql).execute(&mut connect(url).await).await.unwrap();
}

async fn position(url: &str, sql: &'static str) -> String {
    sqlx::query_scalar(sql).fetch_one(&mut connect(url).await).await.unwrap()
}

async fn count(url: &str) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(&mut connect(url).await).await.unwrap()
}

/// Waits until the query returns true on the replica.
async fn until(url: &str, sql: String) {
    let mut connection = connect(url).await;
    let wait = async {
        loop {
            let sql = sqlx::AssertSqlSafe(sql.clone());
            let answer: bool = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
            if answer {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(TIMEOUT, wait).await.is_ok(), "{sql}");
}

#[tokio::test]
async fn a_replica_follows_except_while_paused() {
    let primary = PostgresServer::start().await.unwrap();
    let url = primary.create_database().await.unwrap();
    run(&url, "CREATE TABLE t (n int); INSERT INTO t VALUES (1)").await;

    let replica = primary.start_replica().await.unwrap();
    assert_ne!(replica.port(), primary.port());
    let copy = replica.url(url.rsplit_once('/').unwrap().1);
    assert_eq!(count(&copy).await, 1);
    let mut reader = connect(&copy).await;
    let rejected = sqlx::raw_sql("INSERT INTO t VALUES (0)").execute(&mut reader).await;
    assert!(rejected.unwrap_err().to_string().contains("read-only"));

    run(&url, "INSERT INTO t VALUES (2)").await;
    until(&copy, "SELECT count(*) = 2 FROM t".to_owned()).await;

    replica.pause_replay().await.unwrap();
    run(&url, "INSERT INTO t VALUES (3)").await;
    // From here on, only the pause keeps the replica from showing it.
    let written = position(&url, "SELECT pg_current_wal_lsn()::text").await;
    until(&copy, format!("SELECT pg_last_wal_receive_lsn() >= '{written}'")).await;
    assert_eq!(count(&copy).await, 2);

    replica.resume_replay().await.unwrap();
    until(&copy, "SELECT count(*) = 3 FROM t".to_owned()).await;

    // The replica outlives its primary, and catches up after both were down.
    primary.kill().await.unwrap();
    assert_eq!(count(&copy).await, 3);
    replica.kill().await.unwrap();
    primary.restart().await.unwrap();
    run(&url, "INSERT INTO t VALUES (4)").await;
    replica.restart().await.unwrap();
    until(&copy, "SELECT count(*) = 4 FROM t".to_owned()).await;
}

#[tokio::test]
async fn only_a_replica_can_be_paused() {
    let server = PostgresServer::shared().await.unwrap();
    assert!(matches!(server.pause_replay().await, Err(ServerError::Database(_))));
    assert!(matches!(server.resume_replay().await, Err(ServerError::Database(_))));
}
