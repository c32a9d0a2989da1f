//! The ports that private servers listen on.
//!
//! What always holds: a port that is handed out was free a moment ago. Somebody
//! may be quicker to use it, in which case the server ends and gets another one.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use super::ServerError;

/// Servers listen below the ports that systems hand out for outgoing
/// connections, or a stopped server might not get its port back.
const PORTS: Range<u16> = 10_000..32_000;
/// How many ports to try before asking what is wrong with this machine.
const TRIES: usize = 1_000;

/// Whether somebody listens on `port` now.
pub(super) fn is_taken(port: u16) -> bool {
    bind(port).is_err()
}

/// A port on which nobody listens now.
pub(super) fn free() -> Result<u16, ServerError> {
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

fn bind(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}
