//! A TCP proxy that stands for the network between a client and its server.
//!
//! It counts round trips, adds latency, and fails on demand: connections are
//! cut, or go silent without closing. What always holds: bytes are forwarded
//! unchanged and in order, never in a direction or at a time when the proxy was
//! told not to, and when a call such as [`Proxy::stall`] has returned, what it
//! asked for is in force.

mod link;
mod relay;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, ToSocketAddrs, lookup_host};
use tokio::task::JoinHandle;

use crate::database_url::DatabaseUrl;
use link::Link;

/// A TCP proxy on a free port of 127.0.0.1, stopped when it is dropped.
///
/// ```
/// # use ekbatan_testkit::Proxy;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let proxy = Proxy::start("127.0.0.1:5432").await?;
/// let url = proxy.url_for("postgres://postgres@127.0.0.1:5432/shop");
/// assert_eq!(url, format!("postgres://postgres@127.0.0.1:{}/shop", proxy.port()));
/// assert_eq!(proxy.round_trips(), 0);
/// # Ok(())
/// # }
/// ```
pub struct Proxy {
    address: SocketAddr,
    link: Arc<Link>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy to `target`: a `SocketAddr`, or text such as
    /// `"127.0.0.1:5432"`.
    ///
    /// The target is connected to once per client connection, so that it may
    /// come and go while the proxy stays.
    ///
    /// # Errors
    ///
    /// When `target` is no address or names no known host.
    pub async fn start(target: impl ToSocketAddrs) -> io::Result<Self> {
        let target: Vec<SocketAddr> = lookup_host(target).await?.collect();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let link = Arc::new(Link::new());
        let task = tokio::spawn(relay::serve(listener, target, Arc::clone(&link)));
        Ok(Self { address, link, task })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The port of [`address`](Self::address).
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The same database as `url`, reached through this proxy: host and port
    /// are exchanged, everything else stays.
    ///
    /// # Panics
    ///
    /// When `url` is no address of a database server, `scheme://host…`.
    #[track_caller]
    pub fn url_for(&self, url: &str) -> String {
        match url.parse::<DatabaseUrl>() {
            Ok(url) => url.with_address(self.address).to_string(),
            Err(error) => panic!("{error}"),
        }
    }

    /// How often a client spoke after it had heard the server's last bytes, over
    /// all connections since the start or the last [`reset`](Self::reset).
    ///
    /// This is what a client waits for: chunks that it sends in a row, without
    /// waiting for an answer in between, count once. The first words on a
    /// connection count, and so does a farewell that is never answered.
    ///
    /// A round trip is counted before its bytes are forwarded, so that a client
    /// that has its answer finds it counted.
    pub fn round_trips(&self) -> u64 {
        self.link.round_trips()
    }

    /// Starts counting from zero again.
    pub fn reset(&self) {
        self.link.reset();
    }

    /// Holds bytes that arrive from now on for this long, each way: a round
    /// trip takes twice as long more. Bandwidth is not reduced.
    pub fn set_delay(&self, delay: Duration) {
        self.link.update(|state| state.delay = delay);
    }

    /// Ends all connections, on both sides, and closes new ones as soon as they
    /// are made, until [`restore`](Self::restore). Bytes on their way are lost.
    pub fn cut(&self) {
        self.link.update(|state| {
            state.cut = true;
            state.cuts += 1;
            state.open = 0;
        });
    }

    /// Lets new connections through again after [`cut`](Self::cut).
    pub fn restore(&self) {
        self.link.update(|state| state.cut = false);
    }

    /// Forwards nothing more, without closing anything: neither side can tell
    /// the other's silence from a slow answer. New connections are accepted, and
    /// are silent too.
    pub fn stall(&self) {
        self.link.update(|state| state.stalled = true);
    }

    /// Forwards again after [`stall`](Self::stall), beginning with what was sent
    /// in the meantime.
    pub fn resume(&self) {
        self.link.update(|state| state.stalled = false);
    }

    /// How many client connections are open now.
    pub fn connections(&self) -> usize {
        self.link.connections()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The task owns the listener and all connections.
        self.task.abort();
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Proxy")
            .field("address", &self.address)
            .field("connections", &self.connections())
            .field("round_trips", &self.round_trips())
            .finish_non_exhaustive()
    }
}
