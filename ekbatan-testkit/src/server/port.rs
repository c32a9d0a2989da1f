//! The ports of private servers.
//!
//! Invariants: a returned port was free when it was checked. If another process takes it
//! first, the server fails to start and gets another port.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use super::error::ServerError;

/// Below the range for outgoing connections. Otherwise such a connection could take the
/// port of a stopped server.
const PORTS: Range<u16> = 10_000..32_000;
/// Above that range, for what a server needs beside its port.
const SECOND_PORTS: u16 = 61_000;
/// How many ports to try before reporting an error.
const TRIES: usize = 1_000;

/// Whether a process listens on `port`.
pub(super) fn is_taken(port: u16) -> bool {
    bind(port).is_err()
}

/// A port on which no process listens.
pub(crate) fn free() -> Result<u16, ServerError> {
    let mut tries = TRIES;
    loop {
        let port = fastrand::u16(PORTS);
        match bind(port) {
            Ok(_) => return Ok(port),
            Err(error) if tries == 0 => return Err(ServerError::NoPort(error)),
            Err(_) => tries -= 1,
        }
    }
}

/// One of two further ports of the server at `port`. Likely to be free: other private servers
/// have others, and no outgoing connection takes it.
pub(crate) fn second(port: u16, nth: u16) -> u16 {
    SECOND_PORTS + port % 2_000 * 2 + nth
}

fn bind(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}
