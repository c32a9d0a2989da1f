//! Private servers start, crash and restart on request, and leave nothing behind.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use ekbatan_testkit::{PostgresServer, Proxy, ServerError};
use sqlx::{Connection, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap()
}

async fn run(connection: &mut PgConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(connection).await.unwrap();
}

async fn text(connection: &mut PgConnection, sql: &'static str) -> String {
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

async fn count(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(connection).await.unwrap()
}

/// The data folder of a private server.
async fn data_of(server: &PostgresServer) -> PathBuf {
    let mut connection = connect(&server.url("postgres")).await;
    PathBuf::from(text(&mut connection, "SHOW data_directory").await)
}

/// Whether a process runs. A zombie does not.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

fn postmaster_of(data: &Path) -> String {
    let file = fs::read_to_string(data.join("postmaster.pid")).unwrap();
    file.lines().next().unwrap().to_owned()
}

#[tokio::test]
async fn a_server_is_private_and_fast_by_default() {
    let server = PostgresServer::start().await.unwrap();
    let mut connection = connect(&server.url("postgres")).await;
    for (show, expected) in [
        ("SHOW listen_addresses", "127.0.0.1"),
        ("SHOW max_connections", "200"),
        ("SHOW fsync", "off"),
        ("SHOW synchronous_commit", "on"),
        ("SHOW timezone", "UTC"),
        ("SHOW server_encoding", "UTF8"),
    ] {
        assert_eq!(text(&mut connection, show).await, expected, "{show}");
    }
    assert_eq!(text(&mut connection, "SHOW port").await, server.port().to_string());
}

#[tokio::test]
async fn settings_override_defaults_and_the_last_value_wins() {
    let server = PostgresServer::builder()
        .setting("max_connections", "10")
        .setting("max_connections", "20")
        .setting("port", "1")
        .setting("application_name", "it's a test")
        .durable()
        .start()
        .await
        .unwrap();
    let mut connection = connect(&server.url("postgres")).await;
    for (show, expected) in [
        ("SHOW max_connections", "20"),
        ("SHOW fsync", "on"),
        ("SHOW full_page_writes", "on"),
        ("SHOW synchronous_commit", "on"),
    ] {
        assert_eq!(text(&mut connection, show).await, expected, "{show}");
    }
    assert_eq!(text(&mut connection, "SHOW port").await, server.port().to_string());
}

/// The server's first messages to a client that requests no settings. sqlx would request
/// UTC.
async fn greeting(server: &PostgresServer) -> String {
    // Length, protocol version 3.0, user.
    let startup = b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0";
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    stream.write_all(startup).await.unwrap();
    // Terminate.
    stream.write_all(b"X\0\0\0\x04").await.unwrap();
    let mut greeting = Vec::new();
    stream.read_to_end(&mut greeting).await.unwrap();
    String::from_utf8_lossy(&greeting).into_owned()
}

#[tokio::test]
async fn sessions_begin_in_the_time_zone_that_is_set() {
    let builder = PostgresServer::builder().setting("timezone", "Asia/Kolkata");
    let server = builder.start().await.unwrap();
    let greeting = greeting(&server).await;
    assert!(greeting.contains("TimeZone\0Asia/Kolkata\0"), "{greeting:?}");
}

#[tokio::test]
async fn an_invalid_setting_is_reported_with_the_output_of_the_server() {
    let error =
        PostgresServer::builder().setting("max_connections", "lots").start().await.unwrap_err();
    assert!(error.to_string().contains("max_connections"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_are_created_side_by_side() {
    let server = PostgresServer::shared().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        tasks.spawn(async move {
            let url = server.create_database().await.unwrap();
            let mut connection = connect(&url).await;
            // Fails if two calls returned the same database.
            run(&mut connection, "CREATE TABLE t (n int)").await;
            url
        });
    }
    let urls: HashSet<String> = tasks.join_all().await.into_iter().collect();
    assert_eq!(urls.len(), 8);
}

#[test]
fn the_shared_server_outlives_the_runtime_that_started_it() {
    let port = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = PostgresServer::shared().await.unwrap();
            connect(&server.url("postgres")).await;
            server.port()
        })
    };
    assert_eq!(port(), port());
}

#[tokio::test]
async fn a_kill_loses_what_was_not_committed_and_nothing_else() {
    let server = PostgresServer::start().await.unwrap();
    let port = server.port();
    let url = server.create_database().await.unwrap();
    run(&mut connect(&url).await, "CREATE TABLE t (n int)").await;
    for round in 1..=3 {
        let mut committed = connect(&url).await;
        run(&mut committed, "INSERT INTO t VALUES (1)").await;
        let mut open = connect(&url).await;
        run(&mut open, "BEGIN; INSERT INTO t VALUES (2)").await;

        server.kill().await.unwrap();
        PgConnection::connect(&url).await.expect_err("the server is down");
        sqlx::raw_sql("COMMIT").execute(&mut open).await.expect_err("the server is down");

        server.restart().await.unwrap();
        assert_eq!(server.port(), port);
        assert_eq!(count(&mut connect(&url).await).await, round);
    }
}

#[tokio::test]
async fn a_kill_ends_busy_backends() {
    let server = PostgresServer::start().await.unwrap();
    let postmaster = postmaster_of(&data_of(&server).await);
    let mut pids = vec![postmaster];
    let mut busy = tokio::task::JoinSet::new();
    for sql in ["SELECT pg_sleep(100000)", "SELECT count(*) FROM generate_series(1, 1000000000000)"]
    {
        let mut connection = connect(&server.url("postgres")).await;
        pids.push(text(&mut connection, "SELECT pg_backend_pid()::text").await);
        busy.spawn(async move { sqlx::raw_sql(sql).execute(&mut connection).await });
    }
    let mut watcher = connect(&server.url("postgres")).await;
    let started = "SELECT count(*)::text FROM pg_stat_activity \
                   WHERE state = 'active' AND pid <> pg_backend_pid()";
    while text(&mut watcher, started).await != "2" {}
    assert!(pids.iter().all(|pid| runs(pid)), "{pids:?}");

    server.kill().await.unwrap();
    assert!(!pids.iter().any(|pid| runs(pid)), "{pids:?}");
    for outcome in busy.join_all().await {
        outcome.expect_err("cut off in the middle");
    }
    // Killing a stopped server does nothing.
    server.kill().await.unwrap();
    server.restart().await.unwrap();
}

#[tokio::test]
async fn a_running_server_restarts_in_an_orderly_way() {
    let server = PostgresServer::start().await.unwrap();
    let url = server.create_database().await.unwrap();
    run(&mut connect(&url).await, "CREATE TABLE t (n int)").await;
    let before = postmaster_of(&data_of(&server).await);
    server.restart().await.unwrap();
    assert_ne!(postmaster_of(&data_of(&server).await), before);
    assert!(!runs(&before));
    assert_eq!(count(&mut connect(&url).await).await, 0);
}

#[tokio::test]
async fn a_kill_during_a_start_ends_the_wait() {
    let server = PostgresServer::start().await.unwrap();
    let url = server.create_database().await.unwrap();
    // The kill may find no server, a starting one, or one that already accepts
    // connections.
    let (restarted, killed) = tokio::join!(server.restart(), server.kill());
    killed.unwrap();
    assert!(matches!(restarted, Ok(()) | Err(ServerError::Stopped)), "{restarted:?}");
    server.restart().await.unwrap();
    connect(&url).await;
}

#[tokio::test]
async fn servers_are_independent() {
    let (one, other) = tokio::join!(PostgresServer::start(), PostgresServer::start());
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_ne!(one.port(), other.port());
    assert_ne!(data_of(&one).await, data_of(&other).await);
    one.kill().await.unwrap();
    connect(&other.create_database().await.unwrap()).await;
}

#[tokio::test]
async fn a_stopped_server_leaves_nothing() {
    let server = PostgresServer::start().await.unwrap();
    let data = data_of(&server).await;
    let postmaster = postmaster_of(&data);
    let mut connection = connect(&server.url("postgres")).await;
    server.stop().await.unwrap();
    assert!(!runs(&postmaster));
    assert!(!data.parent().unwrap().exists());
    connection.ping().await.expect_err("the server is down");
}

#[tokio::test]
async fn a_killed_server_leaves_nothing_once_dropped() {
    let server = PostgresServer::start().await.unwrap();
    let data = data_of(&server).await;
    // The key and number of its shared memory segment.
    let lock = fs::read_to_string(data.join("postmaster.pid")).unwrap();
    let segment = lock.lines().nth(6).unwrap().split_whitespace().nth(1).unwrap();
    let segments = || {
        let table = fs::read_to_string("/proc/sysvipc/shm").unwrap();
        let numbers = table.lines().filter_map(|line| line.split_whitespace().nth(1));
        numbers.map(str::to_owned).collect::<Vec<_>>()
    };
    server.kill().await.unwrap();
    assert!(segments().iter().any(|number| number == segment));
    assert!(data.exists());
    drop(server);
    assert!(!segments().iter().any(|number| number == segment));
    assert!(!data.parent().unwrap().exists());
}

#[tokio::test(start_paused = true)]
async fn servers_work_while_the_clock_is_paused() {
    let server = PostgresServer::start().await.unwrap();
    server.kill().await.unwrap();
    server.restart().await.unwrap();
    connect(&server.create_database().await.unwrap()).await;
}

#[tokio::test]
async fn a_proxy_counts_the_round_trips_of_a_statement() {
    let server = PostgresServer::start().await.unwrap();
    let proxy = Proxy::start(("127.0.0.1", server.port())).await.unwrap();
    let mut connection = connect(&proxy.url_for(&server.url("postgres"))).await;
    proxy.reset();
    for _ in 0..10 {
        run(&mut connection, "SELECT 1").await;
    }
    assert_eq!(proxy.round_trips(), 10);
    proxy.reset();
    run(&mut connection, "BEGIN; SELECT 1; SELECT 2; COMMIT").await;
    assert_eq!(proxy.round_trips(), 1);
}
