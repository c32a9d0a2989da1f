//! Moving bytes between clients and the server.
//!
//! What always holds: whoever sends bytes over a slow line may go on sending
//! while they travel, within the bounds of a buffer, and the end of one
//! direction is passed on without ending the other. All tasks of a proxy belong
//! to the one that runs [`serve`] and end with it.

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

use super::link::{Link, OpenConnection};

/// How much is read at a time.
const CHUNK_BYTES: usize = 16 * 1024;
/// How many chunks travel in one direction before the sender has to wait.
const CHUNKS_UNDERWAY: usize = 256;
/// How long to wait with the next connection when the system has no room for it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Accepts clients and connects each to the first address that answers.
pub(super) async fn serve(listener: TcpListener, target: Vec<SocketAddr>, link: Arc<Link>) {
    let target: Arc<[SocketAddr]> = target.into();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    let (target, link) = (Arc::clone(&target), Arc::clone(&link));
                    connections.spawn(async move { carry(client, &target, &link).await });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Carries one connection to its end.
async fn carry(client: TcpStream, target: &[SocketAddr], link: &Link) {
    let Some(connection) = link.open() else {
        return;
    };
    tokio::select! {
        () = exchange(client, target, &connection) => {}
        () = connection.cut() => {}
    }
}

/// Connects a client to the server and moves bytes until both have finished.
/// Whatever else ends it, all that can be done is to close both sides, as the
/// network would; but on a stalled line they do not hear of that either.
async fn exchange(client: TcpStream, target: &[SocketAddr], connection: &OpenConnection<'_>) {
    connection.flowing().await;
    let Ok(server) = TcpStream::connect(target).await else {
        connection.flowing().await;
        return;
    };
    // Fails only on sockets that have failed, which moving bytes will find out.
    let _ = client.set_nodelay(true).and(server.set_nodelay(true));
    let (mut from_client, to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    let (mut to_client, mut to_server) = (Some(to_client), Some(to_server));
    // The client's turn is judged at the client's end of the line: when its
    // bytes come in, and when it is given the server's.
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

/// What is noted about bytes at either end of the line.
struct Ends<A, D> {
    on_arrival: A,
    on_delivery: D,
}

/// Bytes on their way, and when they may arrive.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
}

/// Carries one direction until its sender has finished, then takes `to` away,
/// which tells the receiver.
async fn transfer(
    from: &mut OwnedReadHalf,
    to: &mut Option<OwnedWriteHalf>,
    connection: &OpenConnection<'_>,
    ends: Ends<impl Fn(), impl Fn()>,
) -> io::Result<()> {
    let (put, take) = mpsc::channel(CHUNKS_UNDERWAY);
    tokio::try_join!(
        collect(from, put, connection, ends.on_arrival),
        deliver(take, to, connection, ends.on_delivery),
    )?;
    Ok(())
}

async fn collect(
    from: &mut OwnedReadHalf,
    line: mpsc::Sender<Chunk>,
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
        // The other end hangs up only when it has failed, and says so itself.
        if line.send(Chunk { due, bytes }).await.is_err() {
            return Ok(());
        }
    }
}

async fn deliver(
    mut line: mpsc::Receiver<Chunk>,
    to: &mut Option<OwnedWriteHalf>,
    connection: &OpenConnection<'_>,
    on_delivery: impl Fn(),
) -> io::Result<()> {
    while let Some(Chunk { due, bytes }) = line.recv().await {
        // A timer that is due still takes up to a millisecond to go off.
        if due > Instant::now() {
            tokio::time::sleep_until(due).await;
        }
        let mut rest = bytes.as_slice();
        while let Some(to) = to.as_ref().filter(|_| !rest.is_empty()) {
            connection.flowing().await;
            to.writable().await?;
            let written = connection.if_flowing(|| {
                // Before the write: the answer to it may be quicker than we are.
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
