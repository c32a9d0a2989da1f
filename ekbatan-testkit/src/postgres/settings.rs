//! How a private server is configured before it starts.
//!
//! What always holds: a setting that a test asks for wins over the defaults, and
//! the few that make a server private (its address, port and socket) win over
//! both.

use super::{PostgresServer, ServerError};

/// Unless asked otherwise, a server is quick and small. Commits still reach the
/// operating system before they are acknowledged, so they survive a killed
/// server; only a crash of the whole machine would lose them.
const DEFAULTS: [(&str, &str); 6] = [
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("max_connections", "200"),
    ("shared_buffers", "32MB"),
    // In the server's folder instead of the machine's shared memory: a killed
    // server leaves nothing behind.
    ("dynamic_shared_memory_type", "mmap"),
    ("timezone", "UTC"),
];

/// What a server needs to keep its word when the machine loses power.
const DURABLE: [(&str, &str); 3] =
    [("fsync", "on"), ("full_page_writes", "on"), ("synchronous_commit", "on")];

/// A private server that is yet to start, see [`PostgresServer::builder`].
#[derive(Debug, Clone)]
#[must_use = "does nothing until it is started"]
pub struct PostgresServerBuilder {
    settings: Settings,
}

impl PostgresServerBuilder {
    pub(super) fn new() -> Self {
        Self { settings: Settings { chosen: Vec::from(DEFAULTS.map(owned)) } }
    }

    /// Sets a parameter of the server's configuration. The last value given for
    /// a parameter counts, except for the addresses at which the server listens,
    /// which are always its own.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.chosen.push((name.into(), value.into()));
        self
    }

    /// Makes the server write to disk before it acknowledges a commit, as it
    /// does in production. Off by default, because it costs time and killing a
    /// server does not lose what the operating system already has.
    pub fn durable(mut self) -> Self {
        self.settings.chosen.extend(DURABLE.map(owned));
        self
    }

    /// Starts the server and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// When PostgreSQL is not installed, or the server does not start.
    pub async fn start(self) -> Result<PostgresServer, ServerError> {
        PostgresServer::start_with(self.settings).await
    }
}

/// The parameters that a server is given on its command line.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    chosen: Vec<(String, String)>,
}

impl Settings {
    /// The arguments for `postgres`. Of several values for one parameter it
    /// takes the last, so what must hold comes last.
    pub(super) fn arguments<'a>(
        &'a self,
        private: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = String> + 'a {
        self.chosen
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .chain(private.iter().copied())
            .flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")])
    }
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
