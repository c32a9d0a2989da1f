//! What the start of an executor asks a server for.

use ekbatan::prelude::*;
use ekbatan_testkit::MariaDbServer;
use sqlx::{Connection, MySqlConnection, Row};
use support::wallet::{self, Wallet};

const TABLES: u64 = 150;

/// A server that others use, too. MariaDB opens the tables that a question may be about.
#[tokio::test]
async fn a_start_on_mariadb_opens_no_table_of_other_databases() {
    let server = MariaDbServer::start().await.unwrap();
    let [ours, others] = [server.create_database().await, server.create_database().await];
    let databases = Databases::open(&ours.unwrap()).await.unwrap();
    databases.migrate(&wallet::migrations()).await.unwrap();
    let url = others.unwrap().replacen("mariadb:", "mysql:", 1);
    let mut beside = MySqlConnection::connect(&url).await.unwrap();
    for n in 0..TABLES {
        let table =
            format!("CREATE TABLE other_{n} (id int PRIMARY KEY, parent int REFERENCES other_0)");
        sqlx::raw_sql(sqlx::AssertSqlSafe(table)).execute(&mut beside).await.unwrap();
    }
    sqlx::raw_sql("FLUSH TABLES").execute(&mut beside).await.unwrap();
    let before = opened(&mut beside).await;
    ActionExecutor::builder(&databases, "com.example").model::<Wallet>().build().await.unwrap();
    let opened = opened(&mut beside).await - before;
    assert!((1..TABLES).contains(&opened), "{opened} tables were opened");
}

/// How many tables the server has opened since its start, by reading their definitions.
async fn opened(connection: &mut MySqlConnection) -> u64 {
    let row = sqlx::query("SHOW GLOBAL STATUS LIKE 'Opened_table_definitions'");
    let row = row.fetch_one(connection).await.unwrap();
    row.get::<String, _>(1).parse().unwrap()
}
