//! The proxy counts exactly, and each of its calls takes effect at once.
//!
//! Some tests pause tokio's clock. It then advances only when no task can run and no
//! socket is ready, so waiting an hour means: until nothing happens any more.

mod counting;
mod failures;
mod forwarding;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ekbatan_testkit::Proxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const HOUR: Duration = Duration::from_secs(3600);
const REQUEST: usize = 8;

/// An echo server: it answers each request of [`REQUEST`] bytes with the same bytes.
async fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut request = [0; REQUEST];
                while client.read_exact(&mut request).await.is_ok() {
                    client.write_all(&request).await.unwrap();
                }
            });
        }
    });
    address
}

async fn connect(proxy: &Proxy) -> TcpStream {
    let client = TcpStream::connect(proxy.address()).await.unwrap();
    client.set_nodelay(true).unwrap();
    client
}

async fn ask(client: &mut TcpStream) -> io::Result<()> {
    client.write_all(b"question").await?;
    answer(client).await
}

async fn answer(client: &mut TcpStream) -> io::Result<()> {
    let mut answer = [0; REQUEST];
    client.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"question");
    Ok(())
}

/// Waits for the end of a connection, which may be an error.
async fn end_of(client: &mut TcpStream) {
    let mut rest = [0; 1];
    assert_eq!(client.read(&mut rest).await.unwrap_or(0), 0);
}

/// A client and a server, connected through the proxy, after one request.
async fn connected_pair() -> (Proxy, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
    let mut client = connect(&proxy).await;
    client.write_all(b"question").await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    server.read_exact(&mut [0; REQUEST]).await.unwrap();
    (proxy, client, server)
}
