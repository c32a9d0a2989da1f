//! The socket of a connection, by which the connection is ended whatever the server does.
//!
//! The client has a thread for each connection, which ends with the socket. It waits for ever for a server that
//! accepts a connection and says nothing, and writes nothing to one that has blocked the connection, not
//! even that it closes it.

use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lapin::AsyncTcpStream;
use lapin::tcp::OwnedTLSConfig;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties};
use socket2::{SockRef, Socket};

/// The socket of a connection.
#[derive(Default)]
pub(crate) struct ConnectionSocket(Mutex<SocketState>);

#[derive(Default)]
enum SocketState {
    #[default]
    NotConnected,
    Connected(Socket),
    Ended,
}

/// Ends a socket when it is dropped.
pub(crate) struct EndsSocket<'s>(pub(crate) &'s ConnectionSocket);

impl Drop for EndsSocket<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl ConnectionSocket {
    /// Ends the connection, and keeps it from being made if it is not yet.
    pub(crate) fn end(&self) {
        if let SocketState::Connected(socket) =
            std::mem::replace(&mut *self.state(), SocketState::Ended)
        {
            // It may have ended by itself.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Whether the connection was ended here.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(*self.state(), SocketState::Ended)
    }

    /// Notes the socket of a connection that is being made.
    fn is(&self, socket: SockRef<'_>) -> io::Result<()> {
        let mut state = self.state();
        if let SocketState::Ended = *state {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        *state = SocketState::Connected(socket.try_clone()?);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, SocketState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects to a server, over this socket.
pub(crate) async fn connect(
    uri: AMQPUri,
    tls: OwnedTLSConfig,
    properties: ConnectionProperties,
    socket: Arc<ConnectionSocket>,
) -> lapin::Result<Connection> {
    let runtime = lapin::runtime::default_runtime()?;
    let of_socket = runtime.clone();
    let connect = async move |uri: AMQPUri, _| {
        let (host, port) = (uri.authority.host.as_str(), uri.authority.port);
        let addresses: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
        let stream = AsyncTcpStream::connect(&of_socket, addresses).await?;
        if let AsyncTcpStream::Plain(plain) = &stream {
            socket.is(SockRef::from(plain.get_ref()))?;
        }
        Ok(match uri.scheme {
            AMQPScheme::AMQP => stream,
            AMQPScheme::AMQPS => stream.into_tls(host, tls.as_ref()).await?,
        })
    };
    Connection::connector(uri, runtime, connect, properties).await
}
