//! Private NATS servers start, crash and restart on request, and leave nothing behind.

use std::path::PathBuf;

use ekbatan_testkit::NatsServer;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

/// What a server says first, if it is there.
async fn info(server: &NatsServer) -> Option<String> {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).await.ok()?;
    BufReader::new(stream).lines().next_line().await.ok()?
}

async fn data_of(server: &NatsServer) -> PathBuf {
    let info = info(server).await.unwrap();
    let (_, rest) = info.split_once(r#""server_name":""#).unwrap();
    PathBuf::from(rest.split('"').next().unwrap())
}

#[tokio::test]
async fn a_server_is_configured_killed_and_restarted() {
    let server = NatsServer::builder().setting("max_payload", "2048").start().await.unwrap();
    let port = server.port();
    assert_eq!(server.url(), format!("nats://127.0.0.1:{port}"));
    assert!(info(&server).await.unwrap().contains(r#""max_payload":2048"#));
    let data = data_of(&server).await;
    server.kill().await.unwrap();
    assert!(info(&server).await.is_none(), "the server is down");
    server.restart().await.unwrap();
    assert_eq!((server.port(), data_of(&server).await), (port, data.clone()));
    // An orderly restart behaves the same way.
    server.restart().await.unwrap();
    assert_eq!(data_of(&server).await, data);
}

#[tokio::test]
async fn a_stopped_or_dropped_server_leaves_nothing() {
    let (stopped, dropped) = tokio::join!(NatsServer::start(), NatsServer::start());
    let (stopped, dropped) = (stopped.unwrap(), dropped.unwrap());
    assert_ne!(stopped.port(), dropped.port());
    let folders = [data_of(&stopped).await, data_of(&dropped).await];
    assert!(folders.iter().all(|data| data.exists()));
    stopped.stop().await.unwrap();
    drop(dropped);
    for data in folders {
        assert!(!data.parent().unwrap().exists());
    }
}
