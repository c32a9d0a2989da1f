//! The configuration of a private server before it starts.

use super::product::PostgresProduct;
use crate::server::{ServerError, Settings};

/// By default a server is fast and small. A commit still reaches the operating system before it
/// is acknowledged, so it survives a killed server; only a crash of the machine loses it.
const DEFAULTS: [(&str, &str); 9] = [
    // Otherwise a process starts for one database after the other, hundreds of them in a suite.
    ("autovacuum", "off"),
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("max_connections", "200"),
    ("shared_buffers", "32MB"),
    // In the server's folder instead of shared memory, so that a killed server leaves nothing.
    ("dynamic_shared_memory_type", "mmap"),
    ("timezone", "UTC"),
    // For replicas: a replica can catch up after it, or its connection, was down.
    ("wal_level", "replica"),
    ("wal_keep_size", "256MB"),
];

/// The parameters with which acknowledged commits survive a power loss, and with which a server that runs for long
/// stays small.
const DURABLE: [(&str, &str); 4] = [
    ("autovacuum", "on"),
    ("fsync", "on"),
    ("full_page_writes", "on"),
    ("synchronous_commit", "on"),
];

/// Configures a private server before it starts, see
/// [`PostgresServer::builder`](super::PostgresServer::builder).
///
/// ```no_run
/// # use ekbatan_testkit::{PostgresServer, ServerError};
/// # async fn example() -> Result<(), ServerError> {
/// let server = PostgresServer::builder()
///     .durable()
///     .setting("max_connections", "20")
///     .start()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start`"]
pub struct PostgresServerBuilder {
    pub(super) settings: Settings,
}

impl PostgresServerBuilder {
    pub(super) fn new() -> Self {
        Self { settings: Settings::new(&DEFAULTS) }
    }

    /// Makes the server write to disk before it acknowledges a commit, and clean its tables up, as in
    /// production. Off by default, because both cost time, databases of tests are small, and a killed
    /// server loses nothing that the operating system already has.
    pub fn durable(mut self) -> Self {
        self.settings.extend(&DURABLE);
        self
    }

    pub(super) fn product(self) -> Result<PostgresProduct, ServerError> {
        PostgresProduct::new(self.settings)
    }
}
