//! Raw SQL on the session of a transaction, for every server.

use ekbatan::db::Transaction;
use sqlx::AssertSqlSafe;
use support::{Dialect, TestDatabase};

/// Returns the value of an SQL expression as text.
pub async fn evaluate(db: &TestDatabase, tx: &Transaction, expression: &str) -> String {
    if db.dialect.is_mysql() {
        let mut connection = tx.mysql().await.unwrap();
        sqlx::query_scalar(AssertSqlSafe(format!("SELECT CAST({expression} AS CHAR)")))
            .fetch_one(connection.connection().unwrap())
            .await
            .unwrap()
    } else {
        let mut connection = tx.postgres().await.unwrap();
        sqlx::query_scalar(AssertSqlSafe(format!("SELECT CAST({expression} AS text)")))
            .fetch_one(connection.connection().unwrap())
            .await
            .unwrap()
    }
}

/// Runs statements.
pub async fn execute(db: &TestDatabase, tx: &Transaction, sql: &str) -> Result<(), sqlx::Error> {
    let sql = sqlx::raw_sql(AssertSqlSafe(sql));
    if db.dialect.is_mysql() {
        let mut connection = tx.mysql().await.unwrap();
        sql.execute(connection.connection().unwrap()).await.map(drop)
    } else {
        let mut connection = tx.postgres().await.unwrap();
        sql.execute(connection.connection().unwrap()).await.map(drop)
    }
}

/// Returns the id of the session at the server.
pub async fn session_id(db: &TestDatabase, tx: &Transaction) -> String {
    let expression = if db.dialect.is_mysql() { "connection_id()" } else { "pg_backend_pid()" };
    evaluate(db, tx, expression).await
}

/// Kills a session and waits until it is gone.
pub async fn terminate(db: &TestDatabase, session: &str) {
    if db.dialect == Dialect::Postgres {
        let ended = db.select(&[&format!("pg_terminate_backend({session}, 60000)")], "").await;
        assert_eq!(ended, [[Some("true".to_owned())]]);
    } else {
        db.execute(&format!("KILL {session}")).await;
        let same_session = format!("FROM information_schema.processlist WHERE id = {session}");
        support::until("the session is gone", async || {
            db.select(&["id"], &same_session).await.is_empty()
        })
        .await;
    }
}
