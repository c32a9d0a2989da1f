//! Private MySQL and MariaDB servers start, crash and restart on request, and leave
//! nothing behind. Both pass the same tests.
#![cfg(feature = "mysql")]

use ekbatan_testkit::{MariaDbServer, MySqlServer};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

async fn connect(url: &str) -> MySqlConnection {
    MySqlConnection::connect(url).await.unwrap()
}

async fn run(connection: &mut MySqlConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(connection).await.unwrap();
}

/// The single value that a query returns, as text.
async fn text(connection: &mut MySqlConnection, sql: &str) -> String {
    let sql = format!("SELECT CONVERT(({sql}) USING utf8mb4)");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await.unwrap()
}

async fn count(url: &str) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(&mut connect(url).await).await.unwrap()
}

/// The tests for both kinds of server.
macro_rules! passes {
    ($family:ident, $Server:ident, $scheme:literal, $version:expr) => {
        mod $family {
            use std::collections::HashSet;
            use std::path::Path;

            use ekbatan_testkit::Proxy;

            use super::*;

            #[tokio::test]
            async fn a_server_is_private_and_fast_by_default() {
                let server = $Server::shared().await.unwrap();
                let address = format!("{}://root@127.0.0.1:{}/mysql", $scheme, server.port());
                assert_eq!(server.url("mysql"), address);
                let mut connection = connect(&server.url("mysql")).await;
                let version = text(&mut connection, "SELECT version()").await;
                let is_right: fn(&str) -> bool = $version;
                assert!(is_right(&version), "{version}");
                for (variable, expected) in [
                    ("@@bind_address", "127.0.0.1"),
                    ("@@max_connections", "400"),
                    ("@@innodb_flush_log_at_trx_commit", "2"),
                    ("@@log_bin + 0", "0"),
                    ("@@character_set_server", "utf8mb4"),
                    ("@@global.time_zone", "+00:00"),
                ] {
                    let found = text(&mut connection, &format!("SELECT {variable}")).await;
                    assert_eq!(found, expected, "{variable}");
                }
            }

            #[tokio::test]
            async fn settings_override_defaults_and_the_last_value_wins() {
                let server = $Server::builder()
                    .setting("max_connections", "10")
                    .setting("max-connections", "20")
                    .setting("default-time-zone", "+05:30")
                    .setting("port", "1")
                    .durable()
                    .binlog()
                    .start()
                    .await
                    .unwrap();
                let mut connection = connect(&server.url("mysql")).await;
                let port = server.port().to_string();
                for (variable, expected) in [
                    ("@@max_connections", "20"),
                    ("@@innodb_flush_log_at_trx_commit", "1"),
                    ("@@sync_binlog", "1"),
                    ("@@innodb_doublewrite", "ON"),
                    ("@@log_bin + 0", "1"),
                    ("@@global.time_zone", "+05:30"),
                    ("@@port", &port),
                ] {
                    let found = text(&mut connection, &format!("SELECT {variable}")).await;
                    assert_eq!(found, expected, "{variable}");
                }
            }

            #[tokio::test]
            async fn an_invalid_setting_is_reported_with_the_output_of_the_server() {
                let builder = $Server::builder().setting("no-such-setting", "1");
                let error = builder.start().await.unwrap_err();
                assert!(error.to_string().contains("no-such-setting"), "{error}");
            }

            #[tokio::test]
            async fn databases_are_created_side_by_side() {
                let server = $Server::shared().await.unwrap();
                let mut tasks = tokio::task::JoinSet::new();
                for _ in 0..8 {
                    tasks.spawn(async move {
                        let url = server.create_database().await.unwrap();
                        // Fails if two calls returned the same database.
                        run(&mut connect(&url).await, "CREATE TABLE t (n int)").await;
                        url
                    });
                }
                let urls: HashSet<String> = tasks.join_all().await.into_iter().collect();
                assert_eq!(urls.len(), 8);
            }

            #[tokio::test]
            async fn a_kill_loses_what_was_not_committed_and_nothing_else() {
                let server = $Server::start().await.unwrap();
                let port = server.port();
                let url = server.create_database().await.unwrap();
                run(&mut connect(&url).await, "CREATE TABLE t (n int)").await;
                for round in 1..=2 {
                    run(&mut connect(&url).await, "INSERT INTO t VALUES (1)").await;
                    let mut open = connect(&url).await;
                    run(&mut open, "BEGIN; INSERT INTO t VALUES (2)").await;

                    server.kill().await.unwrap();
                    MySqlConnection::connect(&url).await.expect_err("the server is down");
                    let commit = sqlx::raw_sql("COMMIT").execute(&mut open).await;
                    commit.expect_err("the server is down");

                    server.restart().await.unwrap();
                    assert_eq!(server.port(), port);
                    assert_eq!(count(&url).await, round);
                }
                // An orderly restart, with an open connection.
                let _idle = connect(&url).await;
                server.restart().await.unwrap();
                assert_eq!(count(&url).await, 2);
            }

            #[tokio::test]
            async fn servers_are_independent_and_leave_nothing() {
                let (one, other) = tokio::join!($Server::start(), $Server::start());
                let (one, other) = (one.unwrap(), other.unwrap());
                assert_ne!(one.port(), other.port());
                let mut data = Vec::new();
                for server in [&one, &other] {
                    let mut connection = connect(&server.url("mysql")).await;
                    data.push(text(&mut connection, "SELECT @@datadir").await);
                }
                assert_ne!(data[0], data[1]);
                one.kill().await.unwrap();
                connect(&other.create_database().await.unwrap()).await;
                other.stop().await.unwrap();
                drop(one);
                for data in data {
                    assert!(!Path::new(&data).parent().unwrap().exists());
                }
            }

            #[tokio::test]
            async fn a_proxy_counts_the_round_trips_of_a_statement() {
                let server = $Server::shared().await.unwrap();
                let proxy = Proxy::start(("127.0.0.1", server.port())).await.unwrap();
                let mut connection = connect(&proxy.url_for(&server.url("mysql"))).await;
                proxy.reset();
                for _ in 0..10 {
                    run(&mut connection, "DO 1").await;
                }
                assert_eq!(proxy.round_trips(), 10);
            }

            #[test]
            fn the_shared_server_is_one_server() {
                let port = || {
                    let mut runtime = tokio::runtime::Builder::new_current_thread();
                    runtime.enable_all().build().unwrap().block_on(async {
                        let server = $Server::shared().await.unwrap();
                        connect(&server.url("mysql")).await;
                        server.port()
                    })
                };
                assert_eq!(port(), port());
            }
        }
    };
}

passes!(mysql, MySqlServer, "mysql", |version| !version.contains("MariaDB"));
passes!(mariadb, MariaDbServer, "mariadb", |version| version.contains("MariaDB"));

/// Otherwise the kernel's limit for such requests is the limit for the number of servers.
#[tokio::test]
async fn mysql_reserves_no_asynchronous_requests_of_the_kernel() {
    let server = MySqlServer::shared().await.unwrap();
    let mut connection = connect(&server.url("mysql")).await;
    assert_eq!(text(&mut connection, "SELECT @@innodb_use_native_aio + 0").await, "0");
}
