//! The task that owns a session. It opens the session when a request needs one. Requests that
//! arrive while the server answers are handled together afterwards.
//!
//! Invariants: there is at most one session. A request that was begun is finished, even if its
//! caller was dropped. Requests that are handled together wait for one attempt to open it. The
//! session does not outlive the task: the grants of a session that nobody serves are lost.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::request::{Batch, Requests, SessionRequest};
use super::server::SessionServer;
use crate::{BackendError, Released};

/// Maximum number of requests that are handled together.
const MAX_BATCH: usize = 200;

/// What the actor and the callers share.
pub(super) struct Common<S: SessionServer> {
    pub(super) server: S,
    current: Mutex<S::Shared>,
}

impl<S: SessionServer> Common<S> {
    pub(super) fn new(server: S, session: &S::Session) -> Self {
        Self { server, current: Mutex::new(S::shared(session)) }
    }

    /// The latest session, which may have ended.
    pub(super) fn current(&self) -> S::Shared {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(super) struct Actor<S: SessionServer> {
    common: Arc<Common<S>>,
    session: Option<S::Session>,
    sender: mpsc::WeakUnboundedSender<SessionRequest>,
    requests: mpsc::UnboundedReceiver<SessionRequest>,
}

impl<S: SessionServer> Actor<S> {
    /// Starts an actor in the current runtime, and returns what sends requests to it. Without a session,
    /// it opens one for the first request that needs it.
    pub(super) fn start(common: &Arc<Common<S>>, session: Option<S::Session>) -> Requests {
        let (sender, requests) = mpsc::unbounded_channel();
        common.server.started(&sender);
        let actor = Self { common: common.clone(), session, sender: sender.downgrade(), requests };
        tokio::spawn(actor.serve());
        sender
    }

    /// Serves requests until every sender is dropped.
    async fn serve(mut self) {
        let common = self.common.clone();
        let mut ping = tokio::time::interval(S::PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let first = tokio::select! {
                first = self.requests.recv() => first,
                _ = ping.tick() => {
                    if let Some(session) = self.living() {
                        common.server.ping(session).await;
                    }
                    continue;
                }
            };
            let Some(first) = first else { return self.close("the locks were dropped").await };
            let mut batch = Batch::default();
            batch.add(first);
            while batch.len() < MAX_BATCH
                && let Ok(next) = self.requests.try_recv()
            {
                batch.add(next);
            }
            let close = batch.close.take();
            self.handle(batch).await;
            if let Some(reply) = close {
                self.close("the locks were closed").await;
                let _ = reply.send(());
                return;
            }
        }
    }

    async fn handle(&mut self, mut batch: Batch) {
        let common = self.common.clone();
        // Without a sender there is no caller, and a grant could not find its way back.
        let Some(requests) = self.sender.upgrade() else { return };
        if let Some(session) = self.living() {
            common.server.release(session, std::mem::take(&mut batch.releases), &requests).await;
        }
        // The locks of a session that has ended are free.
        for (_, _, reply) in batch.releases.drain(..) {
            drop(reply.map(|reply| reply.send(Ok(Released { ours: false, wanted: false }))));
        }
        let mut failed = None;
        batch.takes.retain(|(_, _, reply)| !reply.is_closed());
        if !batch.takes.is_empty() {
            match self.live().await {
                Ok(session) => common.server.take(session, batch.takes, &requests).await,
                Err(error) => {
                    batch.takes.into_iter().for_each(|(_, _, reply)| {
                        let _ = reply.send(Err(error.repeated()));
                    });
                    failed = Some(error);
                }
            }
        }
        for request in batch.others.into_iter().filter(SessionRequest::is_wanted) {
            // A session that could not be opened is not opened for each request again: a server that
            // does not answer takes the whole limit of each attempt.
            if let Some(error) = &failed {
                request.refuse(error.repeated());
                continue;
            }
            match self.live().await {
                Ok(session) => common.server.handle(session, request, &requests).await,
                Err(error) => {
                    request.refuse(error.repeated());
                    failed = Some(error);
                }
            }
        }
        if let Some(session) = self.living() {
            common.server.after_batch(session).await;
        }
    }

    /// The session, if it has not ended.
    fn living(&mut self) -> Option<&mut S::Session> {
        if let Some(session) = &self.session
            && S::grants(&S::shared(session)).is_over()
        {
            // Dropping the session closes its socket.
            self.session = None;
        }
        self.session.as_mut()
    }

    /// The session, or a new one if it has ended.
    async fn live(&mut self) -> Result<&mut S::Session, BackendError> {
        if self.living().is_none() {
            let opened = self.common.server.open().await;
            let session = opened.map_err(|error| S::reopening(error).not_sent())?;
            *self.common.current.lock().unwrap_or_else(PoisonError::into_inner) =
                S::shared(&session);
            self.session = Some(session);
        }
        self.session.as_mut().ok_or_else(|| BackendError::new("there is no lock session"))
    }

    async fn close(&mut self, why: &str) {
        if let Some(session) = self.session.take() {
            self.common.server.close(session, why).await;
        }
    }
}

impl<S: SessionServer> Drop for Actor<S> {
    /// Ends a session that was not closed: the runtime has ended, or the task has panicked.
    fn drop(&mut self) {
        // Callers that come from now on start another actor.
        self.requests.close();
        if let Some(session) = self.session.take() {
            let why = "the task that kept it has ended, with its runtime or by a panic";
            S::grants(&S::shared(&session)).end(why.to_owned());
        }
    }
}
