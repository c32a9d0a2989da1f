//! How two processes pass the key to each other in turn: who had it asks again when it is told
//! that the other one has it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use tokio::net::UdpSocket;

/// One side of two.
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

    /// What the other side has to know of this one.
    pub fn port(&self) -> std::io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    pub fn meet(&mut self, other: u16) {
        self.other = (Ipv4Addr::LOCALHOST, other).into();
    }

    /// Tells the other one that the key is here.
    pub async fn have(&self) -> std::io::Result<()> {
        // What it said before is of earlier turns.
        while self.socket.try_recv(&mut [0]).is_ok() {}
        // One that has ended does not hear it.
        self.socket.send_to(&[0], self.other).await?;
        Ok(())
    }

    /// Waits until the other one has the key, or until it is too late to go on.
    pub async fn await_other(&self, until: Instant) -> std::io::Result<()> {
        match tokio::time::timeout_at(until.into(), self.socket.recv(&mut [0])).await {
            Ok(heard) => heard.map(|_| ()),
            Err(_) => Ok(()),
        }
    }
}
