//! The few words that are exchanged with a server to see whether it is there.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// The port of an address that names none.
pub(super) const USUAL_PORT: u16 = 6379;

/// The data folder of the server at `port` on this machine, if it is there and
/// ready for every command.
pub(super) async fn data_folder(port: u16) -> Option<PathBuf> {
    asked(port).await.ok().flatten()
}

async fn asked(port: u16) -> io::Result<Option<PathBuf>> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let mut stream = BufReader::new(stream);
    stream.write_all(b"PING\r\nCONFIG GET dir\r\nQUIT\r\n").await?;
    let mut answers = stream.lines();
    // While it reads what it has kept, it answers otherwise.
    if answers.next_line().await?.as_deref() != Some("+PONG") {
        return Ok(None);
    }
    // An array of two texts, each after a line with its length.
    for expected in ["*2", "$3", "dir"] {
        if answers.next_line().await?.as_deref() != Some(expected) {
            return Ok(None);
        }
    }
    answers.next_line().await?;
    Ok(answers.next_line().await?.map(PathBuf::from))
}
