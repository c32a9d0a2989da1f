//! The proxy fails on request, and recovers.

use ekbatan_testkit::Proxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::{HOUR, answer, ask, connect, connected_pair, echo_server, end_of};

#[tokio::test(start_paused = true)]
async fn a_stalled_proxy_is_silent_and_loses_nothing() {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    let mut client = connect(&proxy).await;
    ask(&mut client).await.unwrap();

    proxy.stall();
    client.write_all(b"question").await.unwrap();
    let mut byte = [0; 1];
    timeout(HOUR, client.peek(&mut byte)).await.expect_err("nothing comes back");
    assert_eq!(proxy.connections(), 1);

    proxy.resume();
    answer(&mut client).await.unwrap();
    assert_eq!(proxy.round_trips(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_answer_waits() {
    let (proxy, mut client, mut server) = connected_pair().await;

    proxy.stall();
    server.write_all(b"question").await.unwrap();
    drop(server);
    let mut byte = [0; 1];
    timeout(HOUR, client.peek(&mut byte))
        .await
        .expect_err("neither the answer nor the end comes through");

    proxy.resume();
    answer(&mut client).await.unwrap();
    end_of(&mut client).await;
}

#[tokio::test(start_paused = true)]
async fn a_stalled_proxy_does_not_report_a_failed_client() {
    let (proxy, client, mut server) = connected_pair().await;
    server.write_all(b"question").await.unwrap();
    client.peek(&mut [0; 1]).await.unwrap();

    proxy.stall();
    // The client has not read the answer, so it resets the connection.
    drop(client);
    timeout(HOUR, server.read(&mut [0; 1])).await.expect_err("the server sees no failure");

    proxy.resume();
    end_of(&mut server).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_through_a_stalled_proxy_is_silent() {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    proxy.stall();
    let mut client = connect(&proxy).await;
    client.write_all(b"question").await.unwrap();
    timeout(HOUR, client.peek(&mut [0; 1])).await.expect_err("nothing comes back");
    assert_eq!(proxy.connections(), 1);

    proxy.resume();
    answer(&mut client).await.unwrap();
}

#[tokio::test]
async fn a_cut_closes_connections_and_rejects_new_ones() {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    let mut client = connect(&proxy).await;
    ask(&mut client).await.unwrap();
    assert_eq!(proxy.connections(), 1);

    proxy.cut();
    assert_eq!(proxy.connections(), 0);
    end_of(&mut client).await;
    end_of(&mut connect(&proxy).await).await;

    proxy.restore();
    let mut client = connect(&proxy).await;
    ask(&mut client).await.unwrap();
    assert_eq!(proxy.connections(), 1);
}

#[tokio::test]
async fn a_cut_reaches_both_sides_even_if_restored_at_once() {
    let (proxy, mut client, mut server) = connected_pair().await;

    proxy.cut();
    proxy.restore();
    end_of(&mut server).await;
    end_of(&mut client).await;
}

#[tokio::test]
async fn a_stalled_proxy_can_be_cut() {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    let mut client = connect(&proxy).await;
    ask(&mut client).await.unwrap();
    proxy.stall();
    client.write_all(b"question").await.unwrap();
    proxy.cut();
    end_of(&mut client).await;
}

#[tokio::test(start_paused = true)]
async fn a_silenced_connection_carries_nothing_and_new_ones_are_served() {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    let mut silenced = connect(&proxy).await;
    ask(&mut silenced).await.unwrap();
    proxy.stall();
    proxy.silence();
    proxy.resume();
    silenced.write_all(b"question").await.unwrap();
    timeout(HOUR, silenced.peek(&mut [0; 1])).await.expect_err("nothing comes back");
    ask(&mut connect(&proxy).await).await.unwrap();
    proxy.cut();
    end_of(&mut silenced).await;
}

#[tokio::test]
async fn new_connections_lead_to_another_target() {
    let (proxy, _client, _server) = connected_pair().await;
    proxy.lead_to(echo_server().await).await.unwrap();
    ask(&mut connect(&proxy).await).await.unwrap();
}

#[tokio::test]
async fn an_unreachable_server_ends_the_connection() {
    // A port that is bound and not listened to refuses connections.
    let down = TcpSocket::new_v4().unwrap();
    down.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let proxy = Proxy::start(down.local_addr().unwrap()).await.unwrap();
    end_of(&mut connect(&proxy).await).await;
}

#[tokio::test]
async fn a_dropped_proxy_ends_its_connections() {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    let mut client = connect(&proxy).await;
    ask(&mut client).await.unwrap();
    let address = proxy.address();
    drop(proxy);
    end_of(&mut client).await;
    TcpStream::connect(address).await.expect_err("the listener went first");
}
