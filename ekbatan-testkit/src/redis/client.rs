//! The commands that check whether a server is ready.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// The port of a URL without a port.
pub(super) const DEFAULT_PORT: u16 = 6379;

/// The data folder of the server at `port` on this machine, if it is ready for all
/// commands.
pub(super) async fn data_folder(port: u16) -> Option<PathBuf> {
    ask(port).await.ok().flatten()
}

async fn ask(port: u16) -> io::Result<Option<PathBuf>> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let mut stream = BufReader::new(stream);
    stream.write_all(b"PING\r\nCONFIG GET dir\r\nQUIT\r\n").await?;
    let mut answers = stream.lines();
    // While the server loads its data, it answers with an error instead.
    if answers.next_line().await?.as_deref() != Some("+PONG") {
        return Ok(None);
    }
    // An array of two strings, each after a line with its length.
    for expected in ["*2", "$3", "dir"] {
        if answers.next_line().await?.as_deref() != Some(expected) {
            return Ok(None);
        }
    }
    answers.next_line().await?;
    Ok(answers.next_line().await?.map(PathBuf::from))
}
