//! The contract of a backend: grant and release keys at one server, and nothing else.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

/// Error returned when a backend fails.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct BackendError {
    message: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl BackendError {
    /// An error with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    /// An error with this message and its cause.
    pub fn caused(
        message: impl fmt::Display,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self { message: format!("{message}: {source}"), source: Some(Box::new(source)) }
    }
}

/// A request for a key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GrantRequest {
    /// Identifies this acquisition; never a host or a thread.
    pub owner: Uuid,
    /// The name of the holder, for operators.
    pub holder: String,
    /// The time after which the server frees the key by itself.
    pub term: Duration,
}

impl GrantRequest {
    /// A request, for callers that use a backend directly.
    pub fn new(owner: Uuid, holder: impl Into<String>, term: Duration) -> Self {
        Self { owner, holder: holder.into(), term }
    }
}

/// A key that the server has granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The acquisition that has the key.
    pub owner: Uuid,
    /// Grows with every grant of the key, without end.
    pub token: i64,
}

/// The server's answer to a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attempt {
    /// The key is granted.
    Granted(Grant),
    /// Another holder has the key, for at most this long if the server knows.
    Busy(Option<Duration>),
}

/// The server's answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// Whether the grant was still valid.
    pub ours: bool,
    /// Whether another process is known to wait for the key.
    pub wanted: bool,
}

/// The holder of a key, as the server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The name that the holder gave itself.
    pub holder: String,
    /// The token of its grant, without the bits that count hand-offs within a process.
    pub token: i64,
    /// How long it has held the key, if the server knows.
    pub held: Option<Duration>,
    /// The rest of its term, if the server ends terms.
    pub remaining: Option<Duration>,
    /// Number of waiters in this process.
    pub waiting_here: usize,
}

impl Holder {
    /// A holder with nothing else known about it.
    pub fn new(holder: impl Into<String>, token: i64) -> Self {
        Self { holder: holder.into(), token, held: None, remaining: None, waiting_here: 0 }
    }

    /// Sets how long it has held the key.
    #[must_use]
    pub fn held(mut self, held: Option<Duration>) -> Self {
        self.held = held;
        self
    }

    /// Sets the rest of its term.
    #[must_use]
    pub fn remaining(mut self, remaining: Option<Duration>) -> Self {
        self.remaining = remaining;
        self
    }
}

/// One server that grants keys. Every call is one try. Waiting, queueing and re-entry are the
/// provider's part.
///
/// If a call is dropped or fails, it is unknown whether the server executed it. A grant whose
/// answer was lost must end by itself, or `release` must find it by its owner.
#[async_trait]
pub trait LockBackend: Send + Sync + 'static {
    /// The name of the backend in messages.
    fn name(&self) -> &'static str;

    /// Takes the key if it is free.
    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError>;

    /// Makes the grant last for `term` from now. Returns `false` if the grant is no longer
    /// valid, and never grants the key anew.
    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError>;

    /// Releases the key. A token of zero stands for a grant whose answer was lost: the backend
    /// then goes by the owner alone.
    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError>;

    /// The holder of the key.
    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError>;

    /// Ends the grant of the current holder. Returns `false` if there was none.
    async fn force_release(&self, key: &str, why: &str) -> Result<bool, BackendError>;

    /// Resolves when the key may be free. This is a hint: it can come late, wrongly or never.
    /// Listening begins with the first poll.
    async fn freed(&self, key: &str) {
        let _ = key;
        std::future::pending().await
    }

    /// Resolves with the reason when a grant is known to be lost, for example because the
    /// session that held it ended.
    async fn lost(&self, key: &str, grant: &Grant) -> String {
        let _ = (key, grant);
        std::future::pending().await
    }

    /// Whether the server frees a key by itself when its term ends, and
    /// [`extend`](Self::extend) can shorten the term. If not, the process itself holds a key
    /// that has to stay taken after its work.
    fn frees_by_itself(&self) -> bool {
        false
    }

    /// Time between tries while no hint comes.
    fn poll_interval(&self) -> Duration {
        Duration::from_millis(20)
    }

    /// How long this process does not try for a key that it released while another process
    /// waited: long enough for that process to notice.
    fn give_way(&self) -> Duration {
        self.poll_interval() * 2
    }

    /// Stops the tasks of the backend.
    async fn close(&self) {}
}
