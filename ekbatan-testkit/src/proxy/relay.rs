//! Moving bytes between clients and the server.
//!
//! Invariants: a sender may keep sending while earlier bytes are delayed, up to the size
//! of a buffer. The end of one direction is passed on without ending the other. All tasks
//! of a proxy belong to the task that runs [`serve`] and end with it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::control::{OpenConnection, ProxyControl};

/// The size of one read.
const CHUNK_BYTES: usize = 16 * 1024;
/// How many chunks may be in transit in one direction before the sender waits.
const CHUNKS_UNDERWAY: usize = 256;
/// How long to wait before the next `accept` if the system is out of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Accepts clients and connects each of them to the first address that answers.
pub(super) async fn serve(listener: TcpListener, control: Arc<ProxyControl>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    let control = Arc::clone(&control);
                    connections.spawn(async move { carry(client, &control).await });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Carries one connection until it ends.
async fn carry(client: TcpStream, control: &ProxyControl) {
    let Some(connection) = control.open() else {
        return;
    };
    let target = control.target();
    tokio::select! {
        () = exchange(client, &target, &connection) => {}
        () = connection.cut() => {}
    }
}

/// Connects a client to the server and moves bytes until both sides have finished. On any
/// error it closes both sides, as a network would. While the proxy is stalled, it closes
/// nothing.
async fn exchange(client: TcpStream, target: &[SocketAddr], connection: &OpenConnection<'_>) {
    connection.flowing().await;
    let Ok(server) = TcpStream::connect(target).await else {
        connection.flowing().await;
        return;
    };
    // Fails only on a failed socket, which the transfer then reports.
    let _ = client.set_nodelay(true).and(server.set_nodelay(true));
    let (mut from_client, to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    let (mut to_client, mut to_server) = (Some(to_client), Some(to_server));
    // Round trips are counted at the client's end: when its bytes arrive, and when it
    // receives those of the server.
    let there = transfer(
        &mut from_client,
        &mut to_server,
        connection,
        Ends { on_arrival: || connection.client_spoke(), on_delivery: || {} },
    );
    let back = transfer(
        &mut from_server,
        &mut to_client,
        connection,
        Ends { on_arrival: || {}, on_delivery: || connection.server_spoke() },
    );
    let _ = tokio::try_join!(there, back);
    connection.flowing().await;
}

/// What to record at each end of a direction.
struct Ends<A, D> {
    on_arrival: A,
    on_delivery: D,
}

/// Bytes in transit, and when they may arrive.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
}

/// Carries one direction until its sender has finished. Then it drops `to`, which signals
/// the end to the receiver.
async fn transfer(
    from: &mut OwnedReadHalf,
    to: &mut Option<OwnedWriteHalf>,
    connection: &OpenConnection<'_>,
    ends: Ends<impl Fn(), impl Fn()>,
) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel(CHUNKS_UNDERWAY);
    tokio::try_join!(
        collect(from, sender, connection, ends.on_arrival),
        deliver(receiver, to, connection, ends.on_delivery),
    )?;
    Ok(())
}

async fn collect(
    from: &mut OwnedReadHalf,
    chunks: mpsc::Sender<Chunk>,
    connection: &OpenConnection<'_>,
    on_arrival: impl Fn(),
) -> io::Result<()> {
    loop {
        let mut bytes = Vec::with_capacity(CHUNK_BYTES);
        if from.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        on_arrival();
        let due = Instant::now() + connection.delay();
        // The receiver is dropped only after an error, which it reports itself.
        if chunks.send(Chunk { due, bytes }).await.is_err() {
            return Ok(());
        }
    }
}

async fn deliver(
    mut chunks: mpsc::Receiver<Chunk>,
    to: &mut Option<OwnedWriteHalf>,
    connection: &OpenConnection<'_>,
    on_delivery: impl Fn(),
) -> io::Result<()> {
    while let Some(Chunk { due, bytes }) = chunks.recv().await {
        // A timer that is already due takes up to a millisecond to fire.
        if due > Instant::now() {
            tokio::time::sleep_until(due).await;
        }
        let mut rest = bytes.as_slice();
        while let Some(to) = to.as_ref().filter(|_| !rest.is_empty()) {
            connection.flowing().await;
            to.writable().await?;
            let written = connection.if_flowing(|| {
                // Before the write, because the client's next request may arrive right
                // after it.
                on_delivery();
                to.try_write(rest)
            });
            match written {
                Some(Ok(count)) => rest = &rest[count..],
                Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Some(Err(_)) | None => {}
            }
        }
    }
    while to.is_some() {
        connection.flowing().await;
        connection.if_flowing(|| drop(to.take()));
    }
    Ok(())
}
