//! The example programs on every database. Each program runs as a user runs it; the test compares
//! its last line.

mod bank;
mod compare;
mod lock_shell;
mod program;
mod saga;
mod settlement;

use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer, TempSqlite};

use program::Program;

const AGREED: &str =
    "Each wallet's balance is the sum of its deposits, and each of its versions has one event.";

/// Runs the program twice: the second run finds the tables and rows of the first.
fn wallet(database: &str, url: &str) {
    for _ in 0..2 {
        let output = Program::named("wallet").arg("--database").arg(url).run();
        assert!(output.contains(&format!("Database: {database}\n")), "{output}");
        assert_eq!(output.lines().last(), Some(AGREED), "{output}");
    }
}

#[tokio::test]
async fn wallet_runs_on_sqlite() {
    let file = TempSqlite::new().unwrap();
    wallet("sqlite", &file.url());
}

#[tokio::test]
async fn wallet_runs_on_postgres() {
    let server = PostgresServer::shared().await.unwrap();
    wallet("postgres", &server.create_database().await.unwrap());
}

#[tokio::test]
async fn wallet_runs_on_mysql() {
    let server = MySqlServer::shared().await.unwrap();
    wallet("mysql", &server.create_database().await.unwrap());
}

#[tokio::test]
async fn wallet_runs_on_mariadb() {
    let server = MariaDbServer::shared().await.unwrap();
    wallet("mariadb", &server.create_database().await.unwrap());
}

#[tokio::test]
async fn wallet_runs_with_a_configuration_file() {
    let server = MySqlServer::shared().await.unwrap();
    let url = server.create_database().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wallet.yml");
    let yaml = format!("ekbatan: {{configs: {{primary-config: {{url: '{url}'}}}}}}");
    std::fs::write(&file, yaml).unwrap();
    let output = Program::named("wallet").arg("--config").arg(file).run();
    assert_eq!(output.lines().last(), Some(AGREED), "{output}");
}

#[tokio::test]
async fn sharded_wallet_runs_on_two_postgres_databases() {
    let server = PostgresServer::shared().await.unwrap();
    let output = Program::named("sharded_wallet")
        .arg("--config")
        .arg("config/sharded-wallet-postgres.yml")
        .env("POLAND_URL", server.create_database().await.unwrap())
        .env("MEXICO_URL", server.create_database().await.unwrap())
        .run();
    assert!(output.contains("   0/0 is postgres\n   1/0 is postgres\n"), "{output}");
    let last = output.lines().last().unwrap_or_default();
    assert!(last.ends_with("in the order of the ids: anna, carmen"), "{output}");
}
