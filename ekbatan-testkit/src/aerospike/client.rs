//! Requests for information, which are lines of text in frames.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The port of a URL without a port.
pub(super) const DEFAULT_PORT: u16 = 3000;

/// Version 2 and type 1 of the protocol, above the length of the text.
const FRAME: u64 = 0x0201 << 48;

/// The data folder of the server at `port` on this machine, if it is ready for all requests.
pub(super) async fn data_folder(port: u16) -> Option<PathBuf> {
    // A server that starts answers, and has no partitions yet.
    let cluster = info(port, "cluster-stable:").await.ok()?;
    if cluster.contains("ERROR") {
        return None;
    }
    let config = info(port, "get-config:context=service").await.ok()?;
    let folder = config.split(';').find_map(|setting| setting.strip_prefix("work-directory="));
    folder.map(PathBuf::from)
}

/// The answer to a request, without its name.
pub(super) async fn info(port: u16, command: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let text = format!("{command}\n");
    let length = u64::try_from(text.len()).map_err(io::Error::other)?;
    stream.write_all(&(FRAME | length).to_be_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    let length = stream.read_u64().await? & 0xffff_ffff_ffff;
    let mut answer = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    stream.read_exact(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let answer = answer.strip_prefix(command).unwrap_or(&answer);
    Ok(answer.trim().to_owned())
}
