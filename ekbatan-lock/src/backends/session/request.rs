//! The requests to a session, and their replies.
//!
//! Invariants: a grant reaches its caller or is released. A request that was begun is finished
//! even if its caller was dropped.

use tokio::sync::{mpsc, oneshot};

use crate::backends::key_poller::KeyState;
use crate::{Attempt, BackendError, Grant, GrantRequest, Holder, Released};

pub(crate) type Reply<T> = oneshot::Sender<Result<T, BackendError>>;
pub(crate) type Requests = mpsc::UnboundedSender<SessionRequest>;

pub(crate) enum SessionRequest {
    Take {
        key: String,
        request: GrantRequest,
        reply: Reply<TryOutcome>,
    },
    Release {
        key: String,
        grant: Grant,
        reply: Option<Reply<Released>>,
    },
    Inspect {
        key: String,
        reply: Reply<Option<Holder>>,
    },
    /// The states of keys that this process waits for, if the server does not notify it.
    Look {
        keys: Vec<String>,
        reply: Reply<Vec<KeyState>>,
    },
    /// Ends the grant that was seen. `ending` is the session that was already told to end.
    Force {
        key: String,
        seen: Grant,
        ending: Option<i64>,
        reply: Reply<Forced>,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
}

/// Waits for the reply to a request that was sent. If the actor ends without a reply, the session has
/// ended, too.
pub(crate) async fn reply_of<T>(
    replied: oneshot::Receiver<Result<T, BackendError>>,
    requests: &Requests,
) -> Result<T, BackendError> {
    let ended = || Err(BackendError::unavailable("the lock session was closed"));
    tokio::select! {
        biased;
        reply = replied => reply.unwrap_or_else(|_| ended()),
        // A request that was sent at this moment may stay in the channel.
        () = requests.closed() => ended(),
    }
}

impl SessionRequest {
    /// Whether a caller waits for the answer, or the request has to be handled in any case.
    pub(crate) fn is_wanted(&self) -> bool {
        match self {
            Self::Take { reply, .. } => !reply.is_closed(),
            Self::Inspect { reply, .. } => !reply.is_closed(),
            Self::Look { reply, .. } => !reply.is_closed(),
            Self::Force { .. } | Self::Release { .. } | Self::Close { .. } => true,
        }
    }

    /// Replies with an error.
    pub(crate) fn refuse(self, error: BackendError) {
        match self {
            Self::Take { reply, .. } => drop(reply.send(Err(error))),
            Self::Release { reply, .. } => drop(reply.map(|reply| reply.send(Err(error)))),
            Self::Inspect { reply, .. } => drop(reply.send(Err(error))),
            Self::Look { reply, .. } => drop(reply.send(Err(error))),
            Self::Force { reply, .. } => drop(reply.send(Err(error))),
            Self::Close { reply } => drop(reply.send(())),
        }
    }
}

/// The result of a release by force.
pub(crate) enum Forced {
    /// The key is free. The flag says whether a grant was ended.
    Free(bool),
    /// The server was told to end this session, which holds the key.
    Ending(i64),
}

/// The result of a try. Dropping it without [`claim`](Self::claim) releases its grant.
pub(crate) struct TryOutcome {
    grant: Option<(String, Grant)>,
    requests: Requests,
}

impl TryOutcome {
    pub(crate) fn granted(key: String, grant: Grant, requests: Requests) -> Self {
        Self { grant: Some((key, grant)), requests }
    }

    pub(crate) fn busy(requests: Requests) -> Self {
        Self { grant: None, requests }
    }

    pub(crate) fn claim(mut self) -> Attempt {
        match self.grant.take() {
            Some((_, grant)) => Attempt::Granted(grant),
            None => Attempt::Busy(None),
        }
    }
}

impl Drop for TryOutcome {
    fn drop(&mut self) {
        if let Some((key, grant)) = self.grant.take() {
            // If the actor is gone, so is the session, and with it the lock.
            let _ = self.requests.send(SessionRequest::Release { key, grant, reply: None });
        }
    }
}

pub(crate) type TakeRequest = (String, GrantRequest, Reply<TryOutcome>);
pub(crate) type ReleaseRequest = (String, Grant, Option<Reply<Released>>);

/// Requests that are handled together: releases first, then takes, then the others.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) releases: Vec<ReleaseRequest>,
    pub(crate) takes: Vec<TakeRequest>,
    /// Inspections, looks and releases by force.
    pub(crate) others: Vec<SessionRequest>,
    /// Set if the session is to be closed after the batch.
    pub(crate) close: Option<oneshot::Sender<()>>,
}

impl Batch {
    pub(crate) fn add(&mut self, request: SessionRequest) {
        match request {
            SessionRequest::Take { key, request, reply } => self.takes.push((key, request, reply)),
            SessionRequest::Release { key, grant, reply } => {
                self.releases.push((key, grant, reply));
            }
            SessionRequest::Close { reply } => self.close = Some(reply),
            other => self.others.push(other),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.releases.len() + self.takes.len() + self.others.len()
    }
}
