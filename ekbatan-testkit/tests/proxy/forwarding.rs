//! Bytes arrive unchanged, in order, and with the configured delay.

use std::time::Duration;

use ekbatan_testkit::Proxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};

use super::{HOUR, answer, ask, connect, echo_server};

#[tokio::test]
async fn forwards_large_messages_unchanged() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
    let client = connect(&proxy).await;
    let (server, _) = listener.accept().await.unwrap();
    let server = tokio::spawn(async move {
        let (mut from_client, mut to_client) = server.into_split();
        tokio::io::copy(&mut from_client, &mut to_client).await
    });

    // Larger than all buffers in transit, and no two chunks are equal.
    let message: Vec<u8> = (0..8_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let sent = message.clone();
    let (mut from_server, mut to_server) = client.into_split();
    let sender = tokio::spawn(async move {
        to_server.write_all(&sent).await.unwrap();
        to_server.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    from_server.read_to_end(&mut received).await.unwrap();
    assert!(received == message);
    sender.await.unwrap();
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_end_of_one_direction_keeps_the_other() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
    let mut client = connect(&proxy).await;
    client.write_all(b"all of it").await.unwrap();
    client.shutdown().await.unwrap();

    let (mut server, _) = listener.accept().await.unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    server.write_all(&received).await.unwrap();
    drop(server);

    let mut answered = Vec::new();
    client.read_to_end(&mut answered).await.unwrap();
    assert_eq!(answered, b"all of it");
}

#[tokio::test(start_paused = true)]
async fn each_direction_is_delayed() {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    let mut client = connect(&proxy).await;
    let start = Instant::now();
    ask(&mut client).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);

    proxy.set_delay(HOUR);
    ask(&mut client).await.unwrap();
    assert!(start.elapsed() >= 2 * HOUR, "{:?}", start.elapsed());

    proxy.set_delay(Duration::ZERO);
    let start = Instant::now();
    ask(&mut client).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn delays_do_not_accumulate() {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    let mut client = connect(&proxy).await;
    ask(&mut client).await.unwrap();
    proxy.set_delay(HOUR);
    let start = Instant::now();
    for _ in 0..100 {
        client.write_all(b"question").await.unwrap();
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        answer(&mut client).await.unwrap();
    }
    assert!(start.elapsed() >= 2 * HOUR, "{:?}", start.elapsed());
    assert!(start.elapsed() < 100 * HOUR, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_longest_delay_ends_no_connection() {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    let mut client = connect(&proxy).await;
    proxy.set_delay(Duration::MAX);
    client.write_all(b"question").await.unwrap();
    timeout(HOUR, client.peek(&mut [0; 1])).await.expect_err("neither an answer nor an end");
}

#[tokio::test]
async fn url_for_replaces_the_address() {
    let proxy = Proxy::start("127.0.0.1:5432").await.unwrap();
    let port = proxy.port();
    assert_eq!(
        proxy.url_for("postgres://me:secret@127.0.0.1:5432/shop?sslmode=disable"),
        format!("postgres://me:secret@127.0.0.1:{port}/shop?sslmode=disable")
    );
}
