//! The contract of a backend: grant and release keys at one server, and nothing else.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use uuid::Uuid;

/// What is known of a request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The request had no effect, because it did not reach the server or the server undid it.
    /// Repeating it may succeed.
    Unavailable,
    /// The request was sent and no answer came. It may have had its effect. Repeating it may
    /// succeed.
    InDoubt,
    /// The server answered with an error that repeating does not cure.
    Refused,
}

/// Error returned when a backend fails.
#[derive(Debug)]
pub struct BackendError {
    message: String,
    kind: FailureKind,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BackendError {
    /// The cause itself, and not what shares it.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

impl BackendError {
    /// An error with this message, of the kind [`FailureKind::Refused`].
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: FailureKind::Refused, source: None }
    }

    /// An error with this message and its cause, of the kind [`FailureKind::Refused`].
    pub fn caused(
        message: impl fmt::Display,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        let message = format!("{message}: {source}");
        Self { message, kind: FailureKind::Refused, source: Some(Arc::new(source)) }
    }

    /// An error with this message, of the kind [`FailureKind::Unavailable`].
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(message).of_kind(FailureKind::Unavailable)
    }

    /// An error with this message, of the kind [`FailureKind::InDoubt`].
    pub fn in_doubt(message: impl Into<String>) -> Self {
        Self::new(message).of_kind(FailureKind::InDoubt)
    }

    /// The same error, of another kind.
    #[must_use]
    pub fn of_kind(mut self, kind: FailureKind) -> Self {
        self.kind = kind;
        self
    }

    /// What is known of the request.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Whether repeating the request may succeed.
    pub fn may_pass(&self) -> bool {
        matches!(self.kind, FailureKind::Unavailable | FailureKind::InDoubt)
    }

    /// The same error of a request that was not sent: there is no doubt.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn not_sent(self) -> Self {
        match self.kind {
            FailureKind::InDoubt => self.of_kind(FailureKind::Unavailable),
            _ => self,
        }
    }

    /// The same error, with its kind and its cause, for another caller of the same request.
    #[must_use]
    pub fn repeated(&self) -> Self {
        Self { message: self.message.clone(), kind: self.kind, source: self.source.clone() }
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
    /// Whether the caller waits if the key is busy. The backend may then register the request,
    /// and answer [`Attempt::Queued`]. The key is [wanted](Released::wanted) only by callers that
    /// wait.
    pub waits: bool,
}

impl GrantRequest {
    /// A request, for callers that use a backend directly.
    pub fn new(owner: Uuid, holder: impl Into<String>, term: Duration) -> Self {
        Self { owner, holder: holder.into(), term, waits: false }
    }

    /// The same request, of a caller that waits.
    #[must_use]
    pub fn waiting(mut self) -> Self {
        self.waits = true;
        self
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

/// A grant that is to last for at least `term` from now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrantExtension {
    /// The key.
    pub key: String,
    /// The grant.
    pub grant: Grant,
    /// For how long it is to last.
    pub term: Duration,
}

impl GrantExtension {
    /// An extension, for callers that use a backend directly.
    pub fn new(key: impl Into<String>, grant: Grant, term: Duration) -> Self {
        Self { key: key.into(), grant, term }
    }
}

/// A grant that the server has handed over to a registered request. It lasts for a short time
/// only, so that a waiter that has died does not keep the key. [`LockBackend::extend`] makes it
/// last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandOver {
    /// The grant.
    pub grant: Grant,
    /// When the server ends it, or a little earlier.
    pub until: Instant,
}

/// The server's answer to a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attempt {
    /// The key is granted.
    Granted(Grant),
    /// Another holder has the key, for at most this long if the server knows.
    Busy(Option<Duration>),
    /// The request is registered. [`LockBackend::handed_over`] resolves when the server grants
    /// the key to it. `release` by its owner, with a token of zero, removes the registration.
    Queued,
    /// The key was handed over to the request before.
    HandedOver(HandOver),
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
    /// The acquisition that has the key, if the server knows it.
    pub owner: Option<Uuid>,
    /// The token of its grant, without the bits that count hand-offs within a process. Zero if
    /// the server does not know it.
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
        Self {
            holder: holder.into(),
            owner: None,
            token,
            held: None,
            remaining: None,
            waiting_here: 0,
        }
    }

    /// Sets the acquisition that has the key.
    #[must_use]
    pub fn owner(mut self, owner: Uuid) -> Self {
        self.owner = Some(owner);
        self
    }

    /// The grant of the holder, as far as the server knows it: the owner may be nil, and the
    /// token zero.
    pub fn grant(&self) -> Grant {
        Grant { owner: self.owner.unwrap_or_default(), token: self.token }
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

    /// Makes the grant last for at least `term` from now. Returns `false` if the grant is no longer
    /// valid, and never grants the key anew.
    ///
    /// The server may carry a request out late, after another one for a longer term was answered. So
    /// it must not shorten the term, unless the server refuses what is late.
    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError>;

    /// Makes the grant last for `term` from now, also if it would last longer. Otherwise like
    /// [`extend`](Self::extend), and the same where that may shorten a term.
    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError>;

    /// Makes several grants last, as [`extend`](Self::extend) does with one, in one request.
    /// Returns, in their order, which of them it has extended. Those that it leaves out may be
    /// valid nevertheless: the caller then calls `extend` for each. It should wait for no other
    /// grant, so that a key that is slow delays no others.
    async fn extend_all(&self, extensions: &[GrantExtension]) -> Result<Vec<bool>, BackendError> {
        Ok(vec![false; extensions.len()])
    }

    /// Releases the key. A token of zero stands for a grant whose answer was lost: the backend
    /// then goes by the owner alone.
    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError>;

    /// The holder of the key.
    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError>;

    /// The keys that are held and begin with one of the prefixes, with their holders: at most
    /// `most` of them, and any if there are more.
    async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        let _ = (prefixes, most);
        Err(BackendError::new(format!(
            "{} locks do not list their keys; ask for each key by `inspect`",
            self.name()
        )))
    }

    /// Ends the grant that [`inspect`](Self::inspect) has reported, and no other. Returns
    /// `false` if it is over already, also if another grant has followed; also if the connection
    /// broke before the answer, and the repeated request found the grant over.
    async fn force_release(&self, key: &str, seen: &Grant, why: &str)
    -> Result<bool, BackendError>;

    /// Resolves when the key may be free. This is a hint: it can come late or wrongly. A backend
    /// that may lose hints has a short [`poll_interval`](Self::poll_interval).
    /// Listening begins with the first poll.
    async fn freed(&self, key: &str) {
        let _ = key;
        std::future::pending().await
    }

    /// Resolves when the server has handed the key over to a request that is
    /// [`Queued`](Attempt::Queued), or with `None` when the request has to be repeated. Waiting
    /// begins with the first poll, before the request is sent. A backend without registrations
    /// never resolves it.
    async fn handed_over(&self, key: &str, owner: Uuid) -> Option<HandOver> {
        let _ = (key, owner);
        std::future::pending().await
    }

    /// Resolves with the reason when a grant is known to be lost, for example because the
    /// session that held it ended.
    async fn lost(&self, key: &str, grant: &Grant) -> String {
        let _ = (key, grant);
        std::future::pending().await
    }

    /// Whether the server frees a key by itself when its term ends, and
    /// [`set_term`](Self::set_term) can shorten the term. If not, the process itself holds a key
    /// that has to stay taken after its work.
    fn frees_by_itself(&self) -> bool {
        false
    }

    /// Whether processes of all zones can reach the keys. If not, keys of all zones
    /// ([`LockLevel::Global`](crate::LockLevel::Global)) are refused.
    fn spans_zones(&self) -> bool {
        true
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

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io;

    use super::*;

    #[test]
    fn a_repeated_error_has_the_kind_and_the_cause_of_the_first() {
        let first = BackendError::caused("taking a lock", io::Error::other("the disk is full"));
        let repeated = first.of_kind(FailureKind::InDoubt).repeated();
        assert_eq!(repeated.kind(), FailureKind::InDoubt);
        assert_eq!(repeated.to_string(), "taking a lock: the disk is full");
        let cause = repeated.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        assert_eq!(cause.map(ToString::to_string).as_deref(), Some("the disk is full"));
    }
}
