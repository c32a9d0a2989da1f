//! A TCP proxy that stands for the network between a client and a server.
//!
//! It counts round trips, adds latency, and fails on demand: it cuts connections, or
//! stops forwarding without closing them.
//!
//! Invariants: bytes are forwarded unchanged and in order, and never while the proxy is
//! stalled or cut. When a call such as [`Proxy::stall`] returns, it is in force.

mod control;
mod relay;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, ToSocketAddrs, lookup_host};
use tokio::task::JoinHandle;

use crate::database_url::DatabaseUrl;
use control::ProxyControl;

/// The time at which delayed bytes are due must be one that the clock can show.
const LONGEST_DELAY: Duration = Duration::from_secs(365 * 24 * 3600);

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
    control: Arc<ProxyControl>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy to `target`: a `SocketAddr`, or text such as `"127.0.0.1:5432"`.
    ///
    /// The proxy opens one connection to the target per client connection, so the target
    /// may restart while the proxy stays.
    ///
    /// # Errors
    ///
    /// Fails if `target` is not an address or its host is unknown.
    pub async fn start(target: impl ToSocketAddrs) -> io::Result<Self> {
        let target = lookup_host(target).await?.collect();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let control = Arc::new(ProxyControl::new(target));
        let task = tokio::spawn(relay::serve(listener, Arc::clone(&control)));
        Ok(Self { address, control, task })
    }

    /// The address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The port of [`address`](Self::address).
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The same database as `url`, reached through this proxy. Host and port are
    /// replaced; everything else stays.
    ///
    /// # Panics
    ///
    /// Panics if `url` is not the URL of a database server, `scheme://host…`.
    #[track_caller]
    pub fn url_for(&self, url: &str) -> String {
        match url.parse::<DatabaseUrl>() {
            Ok(url) => url.with_address(self.address).to_string(),
            Err(error) => panic!("{error}"),
        }
    }

    /// The number of round trips over all connections, since the start or the last
    /// [`reset`](Self::reset).
    ///
    /// A round trip begins when a client sends bytes after it has received bytes from the
    /// server. Chunks that a client sends without waiting for an answer in between count
    /// once. The first bytes on a connection count, and so does a final message that is
    /// never answered.
    ///
    /// A round trip is counted before its bytes are forwarded, so a client that has its
    /// answer finds it counted.
    pub fn round_trips(&self) -> u64 {
        self.control.round_trips()
    }

    /// Resets the count of round trips to zero.
    pub fn reset(&self) {
        self.control.reset();
    }

    /// Delays bytes that arrive from now on by `delay` in each direction, so a round trip
    /// takes `2 * delay` longer. The bandwidth stays the same. A longer delay than a year is one of
    /// a year.
    pub fn set_delay(&self, delay: Duration) {
        let delay = delay.min(LONGEST_DELAY);
        self.control.update(|state| state.delay = delay);
    }

    /// Closes all connections on both sides, and closes new ones at once, until
    /// [`restore`](Self::restore). Bytes in transit are lost.
    pub fn cut(&self) {
        self.control.update(|state| {
            state.cut = true;
            state.cuts += 1;
            state.open = 0;
        });
    }

    /// Closes new connections at once, until [`restore`](Self::restore). Open ones stay.
    pub fn refuse(&self) {
        self.control.update(|state| state.cut = true);
    }

    /// Accepts new connections again after [`cut`](Self::cut) or [`refuse`](Self::refuse).
    pub fn restore(&self) {
        self.control.update(|state| state.cut = false);
    }

    /// Stops forwarding without closing connections: neither side can tell this from a
    /// slow answer. New connections are accepted and are stalled too.
    pub fn stall(&self) {
        self.control.update(|state| state.stalled = true);
    }

    /// Forwards again after [`stall`](Self::stall), starting with the bytes that were
    /// sent in the meantime.
    pub fn resume(&self) {
        self.control.update(|state| state.stalled = false);
    }

    /// Leads new connections to another target. Open ones stay.
    ///
    /// # Errors
    ///
    /// Fails if `target` is not an address or its host is unknown.
    pub async fn lead_to(&self, target: impl ToSocketAddrs) -> io::Result<()> {
        let target = lookup_host(target).await?.collect();
        self.control.update(|state| state.target = target);
        Ok(())
    }

    /// Has the connections that are open now carry nothing any more, without closing them. New
    /// ones are served, also after [`stall`](Self::stall) and [`resume`](Self::resume).
    pub fn silence(&self) {
        self.control.update(|state| state.silences += 1);
    }

    /// The number of open client connections.
    pub fn connections(&self) -> usize {
        self.control.connections()
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
