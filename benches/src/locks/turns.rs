//! How two processes alternate: a process asks for the key again only after the other one
//! holds it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use tokio::net::UdpSocket;

/// One of the two processes.
pub struct Turns {
    socket: UdpSocket,
    other: SocketAddr,
}

impl Turns {
    pub async fn open() -> std::io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let other = socket.local_addr()?;
        Ok(Self { socket, other })
    }

    /// The port that the other process needs.
    pub fn port(&self) -> std::io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    pub fn set_other(&mut self, other: u16) {
        self.other = (Ipv4Addr::LOCALHOST, other).into();
    }

    /// Tells the other process that this one holds the key.
    pub async fn announce(&self) -> std::io::Result<()> {
        // Discard messages of earlier turns.
        while self.socket.try_recv(&mut [0]).is_ok() {}
        // The message is lost if the other process has exited.
        self.socket.send_to(&[0], self.other).await?;
        Ok(())
    }

    /// Waits until the other process holds the key, or until the deadline.
    pub async fn wait_for_other(&self, until: Instant) -> std::io::Result<()> {
        match tokio::time::timeout_at(until.into(), self.socket.recv(&mut [0])).await {
            Ok(received) => received.map(|_| ()),
            Err(_) => Ok(()),
        }
    }
}
