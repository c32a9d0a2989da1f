//! How a private server is configured before it starts.

use super::ServerError;
use super::product::Postgres;
use crate::server::Settings;

/// Unless asked otherwise, a server is quick and small. Commits still reach the
/// operating system before they are acknowledged, so they survive a killed
/// server; only a crash of the whole machine would lose them.
const DEFAULTS: [(&str, &str); 8] = [
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("max_connections", "200"),
    ("shared_buffers", "32MB"),
    // In the server's folder instead of the machine's shared memory: a killed
    // server leaves nothing behind.
    ("dynamic_shared_memory_type", "mmap"),
    ("timezone", "UTC"),
    // Any server can be given a replica, which finds what it missed while it, or
    // the way to it, was down.
    ("wal_level", "replica"),
    ("wal_keep_size", "256MB"),
];

/// What a server needs to keep its word when the machine loses power.
const DURABLE: [(&str, &str); 3] =
    [("fsync", "on"), ("full_page_writes", "on"), ("synchronous_commit", "on")];

/// A private server that is yet to start, see
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
#[must_use = "does nothing until it is started"]
pub struct PostgresServerBuilder {
    pub(super) settings: Settings,
}

impl PostgresServerBuilder {
    pub(super) fn new() -> Self {
        Self { settings: Settings::new(&DEFAULTS) }
    }

    /// Makes the server write to disk before it acknowledges a commit, as it
    /// does in production. Off by default, because it costs time and killing a
    /// server does not lose what the operating system already has.
    pub fn durable(mut self) -> Self {
        self.settings.extend(&DURABLE);
        self
    }

    pub(super) fn product(self) -> Result<Postgres, ServerError> {
        Postgres::new(self.settings)
    }
}
