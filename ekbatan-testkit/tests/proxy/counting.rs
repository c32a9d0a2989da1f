//! The proxy counts every round trip.

use ekbatan_testkit::Proxy;
use tokio::io::AsyncWriteExt;

use super::{answer, ask, connect, echo_server};

#[tokio::test]
async fn a_request_with_its_answer_counts_once() {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    let mut client = connect(&proxy).await;
    assert_eq!(proxy.round_trips(), 0);
    for asked in 1..=100 {
        ask(&mut client).await.unwrap();
        assert_eq!(proxy.round_trips(), asked);
    }
    proxy.reset();
    assert_eq!(proxy.round_trips(), 0);
    ask(&mut client).await.unwrap();
    assert_eq!(proxy.round_trips(), 1);
}

#[tokio::test]
async fn chunks_in_a_row_count_once() {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    let mut client = connect(&proxy).await;
    for asked in 1..=10 {
        for byte in b"question" {
            client.write_all(&[*byte]).await.unwrap();
            // Lets the proxy read each byte separately.
            tokio::task::yield_now().await;
        }
        answer(&mut client).await.unwrap();
        assert_eq!(proxy.round_trips(), asked);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_are_counted() {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let mut client = connect(&proxy).await;
        clients.spawn(async move {
            for _ in 0..50 {
                ask(&mut client).await.unwrap();
            }
            client
        });
    }
    let clients = clients.join_all().await;
    assert_eq!(proxy.round_trips(), 20 * 50);
    assert_eq!(proxy.connections(), 20);
    drop(clients);
    while proxy.connections() > 0 {
        tokio::task::yield_now().await;
    }
}
