//! The line that a server sends first, which tells whether it is ready.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

/// The port of a URL without a port.
pub(super) const DEFAULT_PORT: u16 = 4222;

/// The data folder of the server at `port` on this machine, if it is ready for streams.
pub(super) async fn data_folder(port: u16) -> Option<PathBuf> {
    ask(port).await.ok().flatten()
}

async fn ask(port: u16) -> io::Result<Option<PathBuf>> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let mut lines = BufReader::new(stream).lines();
    let Some(info) = lines.next_line().await? else { return Ok(None) };
    if !info.contains(r#""jetstream":true"#) {
        return Ok(None);
    }
    // The server has its folder as its name.
    let name = info.split_once(r#""server_name":""#).and_then(|(_, rest)| rest.split_once('"'));
    Ok(name.map(|(name, _)| PathBuf::from(name)))
}
