//! Why a remote call has no outcome.

use std::error::Error;

use uuid::Uuid;

use crate::error::{BoxError, EventsError};

/// How a request to another system failed. Every error that `?` converts to it is
/// [`InDoubt`](Self::InDoubt).
#[derive(Debug)]
pub enum RemoteFailure {
    /// The request certainly had no effect, and never will: the connection was refused, or the other
    /// system says so. The next run of the handler sends it again.
    NotDone(BoxError),
    /// The request may have had an effect, now or later: its answer is missing or says nothing.
    InDoubt(BoxError),
}

impl RemoteFailure {
    /// A failure without an effect.
    pub fn not_done(error: impl Into<BoxError>) -> Self {
        Self::NotDone(error.into())
    }

    /// A failure that may have had an effect.
    pub fn in_doubt(error: impl Into<BoxError>) -> Self {
        Self::InDoubt(error.into())
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for RemoteFailure {
    fn from(error: E) -> Self {
        Self::in_doubt(error)
    }
}

/// Error returned by a [remote call](crate::HandlerContext::remote_call). Return it from the handler:
/// the call goes on from there when the handler runs again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteCallError {
    /// A request was sent, and whether the call happened is not known. It is not sent again before
    /// that is settled.
    #[error(
        "whether the remote call `{name}` of `{handler}` happened is not known: {why}; ask the other system for the key {key}, and settle it by `ekbatan events happened` or `ekbatan events did-not-happen`"
    )]
    #[non_exhaustive]
    InDoubt {
        /// The name of the call.
        name: String,
        /// The handler.
        handler: String,
        /// The key that the other system got.
        key: Uuid,
        /// Why it is not known.
        why: String,
    },
    /// The request failed. It is sent again when the handler runs again.
    #[error("the remote call `{name}` failed: {source}")]
    #[non_exhaustive]
    Failed {
        /// The name of the call.
        name: String,
        /// The cause.
        source: BoxError,
    },
    /// The event is handled, or another node has taken it over. Nothing was sent.
    #[error(
        "the event is handled, or was taken over, so `{handler}` makes no remote call for it any more"
    )]
    #[non_exhaustive]
    DeliveryLost {
        /// The handler.
        handler: String,
    },
    /// The handler has called `finish` already, which is its last action. Nothing was sent.
    #[error(
        "`{handler}` has called `finish` already, which is its last action; nothing was sent. Make the remote call before `finish`"
    )]
    #[non_exhaustive]
    Finished {
        /// The handler.
        handler: String,
    },
    /// The outcome cannot be stored as JSON, or could not be read back, or the stored one does not fit the type of
    /// the code.
    #[error("the outcome of the remote call `{name}`: {source}")]
    #[non_exhaustive]
    Outcome {
        /// The name of the call.
        name: String,
        /// The cause.
        source: serde_json::Error,
    },
    /// The name of the call cannot be stored.
    #[error("the name of a remote call has {bytes} bytes; use 1 to 255, and no NUL")]
    #[non_exhaustive]
    Name {
        /// The length of the name.
        bytes: usize,
    },
    /// What is known of the call cannot be read or written.
    #[error(transparent)]
    Events(#[from] EventsError),
}
