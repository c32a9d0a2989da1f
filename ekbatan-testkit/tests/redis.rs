//! Private Redis servers start, crash and restart on request, and leave nothing behind.

use std::path::Path;

use ekbatan_testkit::RedisServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends a command and returns the whole answer.
async fn ask(server: &RedisServer, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await?;
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.trim_end_matches("+OK\r\n").to_owned())
}

async fn asked(server: &RedisServer, command: &str) -> String {
    ask(server, command).await.unwrap()
}

async fn data_of(server: &RedisServer) -> String {
    asked(server, "CONFIG GET dir").await.lines().last().unwrap().to_owned()
}

#[tokio::test]
async fn a_server_answers_at_its_address() {
    let server = RedisServer::start().await.unwrap();
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}/0", server.port()));
    assert_eq!(asked(&server, "PING").await, "+PONG\r\n");
    assert!(asked(&server, "CONFIG GET bind").await.ends_with("127.0.0.1\r\n"));
}

#[tokio::test]
async fn a_server_keeps_its_data_only_if_configured() {
    let forgetful = RedisServer::start().await.unwrap();
    let keeping = RedisServer::builder().setting("appendonly", "yes").start().await.unwrap();
    for (server, kept) in [(&forgetful, "$-1\r\n"), (&keeping, "$1\r\n1\r\n")] {
        let port = server.port();
        asked(server, "SET a 1").await;
        server.kill().await.unwrap();
        ask(server, "PING").await.expect_err("the server is down");
        server.restart().await.unwrap();
        assert_eq!(server.port(), port);
        assert_eq!(asked(server, "GET a").await, kept);
        // An orderly restart behaves the same way.
        asked(server, "SET a 1").await;
        server.restart().await.unwrap();
        assert_eq!(asked(server, "GET a").await, kept);
    }
}

#[tokio::test]
async fn servers_are_independent() {
    let (one, other) = tokio::join!(RedisServer::start(), RedisServer::start());
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_ne!(one.port(), other.port());
    asked(&one, "SET a 1").await;
    assert_eq!(asked(&other, "GET a").await, "$-1\r\n");
    one.kill().await.unwrap();
    assert_eq!(asked(&other, "PING").await, "+PONG\r\n");
}

/// Ports from 32,768 to 60,999 may belong to outgoing connections.
#[tokio::test]
async fn no_outgoing_connection_takes_the_ports_of_a_cluster() {
    let server = RedisServer::builder().setting("cluster-enabled", "yes").start().await.unwrap();
    let nodes = asked(&server, "CLUSTER NODES").await;
    let (_, bus) = nodes.split_once(&format!("{}@", server.port())).unwrap();
    let bus: u16 = bus.split([' ', ',']).next().unwrap().parse().unwrap();
    assert!(server.port() < 32_768 && bus >= 61_000, "{nodes}");
}

#[tokio::test]
async fn a_stopped_or_dropped_server_leaves_nothing() {
    let (stopped, dropped) = (RedisServer::start().await.unwrap(), RedisServer::start().await);
    let dropped = dropped.unwrap();
    let (one, other) = (data_of(&stopped).await, data_of(&dropped).await);
    stopped.stop().await.unwrap();
    drop(dropped);
    for data in [one, other] {
        assert!(!Path::new(&data).parent().unwrap().exists());
    }
}

#[tokio::test]
async fn the_shared_server_is_one_server() {
    let (one, other) = tokio::join!(RedisServer::shared(), RedisServer::shared());
    assert_eq!(one.unwrap().port(), other.unwrap().port());
}

#[tokio::test]
async fn an_invalid_setting_is_reported_with_the_output_of_the_server() {
    let error = RedisServer::builder().setting("maxmemory", "lots").start().await.unwrap_err();
    assert!(error.to_string().contains("maxmemory"), "{error}");
}
