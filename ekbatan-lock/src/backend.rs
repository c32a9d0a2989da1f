//! What a provider has to implement: grant and release at one server, and nothing else.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

/// A backend that failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct BackendError {
    message: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl BackendError {
    /// A failure that says what happened.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    /// A failure with what is behind it.
    pub fn caused(
        message: impl fmt::Display,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self { message: format!("{message}: {source}"), source: Some(Box::new(source)) }
    }
}

/// What a backend is asked for.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GrantRequest {
    /// Who asks: a token of this one acquisition, never of a host or a thread.
    pub owner: Uuid,
    /// Who asks, for people.
    pub holder: String,
    /// After how long the server frees the key by itself.
    pub term: Duration,
}

impl GrantRequest {
    /// A request, for those who speak to a backend themselves.
    pub fn new(owner: Uuid, holder: impl Into<String>, term: Duration) -> Self {
        Self { owner, holder: holder.into(), term }
    }
}

/// A key that the server has granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Who has it.
    pub owner: Uuid,
    /// Grows with every grant of the key, for ever.
    pub token: i64,
}

/// What a server answered to a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The key is ours.
    Granted(Grant),
    /// Somebody else has it, at most for so long if that is known.
    Busy(Option<Duration>),
}

/// What a server answered to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// Whether the key was still ours.
    pub ours: bool,
    /// Whether another process is known to wait for it.
    pub wanted: bool,
}

/// Who holds a key, as the server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The holder's own name of itself.
    pub holder: String,
    /// The token of its lease, before what this process counts behind it.
    pub token: i64,
    /// How long it has held the key, where the server knows.
    pub held: Option<Duration>,
    /// How long the server lets it, where the server bounds it.
    pub remaining: Option<Duration>,
    /// How many wait for it in this process.
    pub waiting_here: usize,
}

impl Holder {
    /// A holder of whom nothing else is known.
    pub fn new(holder: impl Into<String>, token: i64) -> Self {
        Self { holder: holder.into(), token, held: None, remaining: None, waiting_here: 0 }
    }

    /// How long it has held the key.
    #[must_use]
    pub fn held(mut self, held: Option<Duration>) -> Self {
        self.held = held;
        self
    }

    /// How long the server lets it.
    #[must_use]
    pub fn remaining(mut self, remaining: Option<Duration>) -> Self {
        self.remaining = remaining;
        self
    }
}

/// One server that grants keys. Every call is one try; whoever waits, queues and re-enters
/// does so in front of it.
///
/// A call that is dropped or fails leaves it open whether the server carried it out; a grant
/// that nobody heard of must end by itself, or be found by its owner and released.
#[async_trait]
pub trait LockBackend: Send + Sync + 'static {
    /// What messages call it.
    fn name(&self) -> &'static str;

    /// Takes the key if it is free.
    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError>;

    /// Lets the grant last for `term` from now; `false` if it is no longer ours. Never takes
    /// a key that is not ours.
    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError>;

    /// Gives the key back.
    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError>;

    /// Who holds the key.
    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError>;

    /// Ends somebody's grant; `false` if there was none.
    async fn force_release(&self, key: &str, why: &str) -> Result<bool, BackendError>;

    /// Resolves when the key may have become free. A hint: it may come late, in vain or never.
    async fn freed(&self, key: &str) {
        let _ = key;
        std::future::pending().await
    }

    /// Resolves with the reason when a grant is known to be lost, such as by the end of the
    /// session that held it.
    async fn lost(&self, key: &str, grant: &Grant) -> String {
        let _ = (key, grant);
        std::future::pending().await
    }

    /// Whether the server frees a key by itself when its term is over, and
    /// [`extend`](Self::extend) may shorten the term. Where it does not, a key that is to stay
    /// taken for a while after its work is held by the process for so long.
    fn frees_by_itself(&self) -> bool {
        false
    }

    /// How long to wait between tries, as long as no hint comes.
    fn poll_interval(&self) -> Duration {
        Duration::from_millis(20)
    }

    /// How long to stay away from a key that was given back while another process waited for
    /// it: long enough for that one to notice.
    fn give_way(&self) -> Duration {
        self.poll_interval() * 2
    }

    /// Ends what the backend has running.
    async fn close(&self) {}
}
