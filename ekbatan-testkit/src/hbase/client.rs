//! Requests to a server: those that show whether it is ready, and whose it is, and those of tests.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::message::{Value, bytes, count, delimited, field, fields, with_length};

/// The port of a URL without a port.
pub(super) const DEFAULT_PORT: u16 = 16_000;

/// The data folders of the servers that this process has launched, by their ports.
static FOLDERS: LazyLock<Mutex<HashMap<u16, PathBuf>>> = LazyLock::new(Mutex::default);

/// Notes that the server at `port` was launched on this folder.
pub(super) fn remember(port: u16, data: &Path) {
    let mut folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    folders.insert(port, data.to_owned());
}

/// The data folder of the server at `port` on this machine, if it is ready for all
/// requests.
pub(super) async fn data_folder(port: u16) -> Option<PathBuf> {
    let folder = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).get(&port).cloned()?;
    let cluster = cluster(port).await.ok()?;
    // The folder names its cluster.
    let stored = fs::read(folder.join("hbase.id")).ok()?;
    let is_its_own = String::from_utf8_lossy(&stored).contains(&cluster);
    // A master that has not finished its start refuses this.
    master(port, "GetTableDescriptors", &[]).await.ok()?;
    is_its_own.then_some(folder)
}

/// The identity of the cluster.
pub(super) async fn cluster(port: u16) -> io::Result<String> {
    let answer =
        Connection::open(port, "ClientMetaService").await?.call("GetClusterId", &[]).await?;
    Ok(String::from_utf8_lossy(field(&answer, 1)).into_owned())
}

/// The port of the server that has the table of regions.
pub(super) async fn meta_port(port: u16) -> io::Result<u16> {
    let mut registry = Connection::open(port, "ClientMetaService").await?;
    let answer = registry.call("GetMetaRegionLocations", &[]).await?;
    match fields(field(field(&answer, 1), 2), 2).first() {
        Some(Value::Number(port)) => Ok(*port as u16),
        _ => Err(io::Error::other("no server has the table of regions")),
    }
}

/// Sends a request to the master and returns the answer.
pub(super) async fn master(port: u16, method: &str, request: &[u8]) -> io::Result<Vec<u8>> {
    Connection::open(port, "MasterService").await?.call(method, request).await
}

/// A connection to one service, for one request at a time.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    calls: usize,
}

impl Connection {
    pub(super) async fn open(port: u16, service: &str) -> io::Result<Self> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        let header = [bytes(1, bytes(1, "test")), bytes(2, service)].concat();
        let length = (header.len() as u32).to_be_bytes();
        stream.write_all(&[b"HBas\0\x50", &length[..], &header].concat()).await?;
        Ok(Self { stream, calls: 0 })
    }

    /// Sends a request and returns the answer.
    pub(super) async fn call(&mut self, method: &str, request: &[u8]) -> io::Result<Vec<u8>> {
        self.calls += 1;
        // The number of the call, its method, and that a message follows.
        let header = [count(1, self.calls), bytes(3, method), count(4, 1)].concat();
        let frame = [with_length(&header), with_length(request)].concat();
        let length = (frame.len() as u32).to_be_bytes();
        self.stream.write_all(&[&length[..], &frame].concat()).await?;
        let length = self.stream.read_u32().await?;
        let mut answer = vec![0; length.min(1 << 26) as usize];
        self.stream.read_exact(&mut answer).await?;
        let (header, rest) = delimited(&answer).ok_or(io::ErrorKind::InvalidData)?;
        let exception = field(header, 2);
        if !exception.is_empty() {
            let text = String::from_utf8_lossy(field(exception, 2)).into_owned();
            return Err(io::Error::other(text.lines().next().unwrap_or_default().to_owned()));
        }
        Ok(delimited(rest).map(|(message, _)| message.to_vec()).unwrap_or_default())
    }
}
