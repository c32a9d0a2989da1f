//! What a database server implements so that its sessions can hold locks.

use std::future::Future;
use std::hash::Hash;
use std::time::Duration;

use super::grants::SessionGrants;
use super::request::{ReleaseRequest, Requests, SessionRequest, TakeRequest};
use crate::backends::to_the_end::ToTheEnd;
use crate::{BackendError, Holder};

pub(crate) trait SessionServer: Send + Sync + 'static {
    /// The name of the backend.
    const NAME: &'static str;
    /// Time between the pings of a session.
    const PING: Duration;
    /// See [`LockBackend::poll_interval`](crate::LockBackend::poll_interval).
    const POLL_INTERVAL: Duration;
    /// See [`LockBackend::give_way`](crate::LockBackend::give_way).
    const GIVE_WAY: Duration;
    /// Where operators see the sessions of the server.
    const SESSION_LIST: &'static str;

    /// Identifies a lock at the server.
    type Lock: Eq + Hash + Send + 'static;
    /// A session, which the actor owns.
    type Session: Send + 'static;
    /// The part of a session that callers see.
    type Shared: Clone + Send + Sync + 'static;
    /// Error of opening a session.
    type Error: Send;

    fn lock_of(key: &str) -> Self::Lock;

    fn open(&self) -> impl Future<Output = Result<Self::Session, Self::Error>> + Send;

    /// The error of opening a session again.
    fn reopening(error: Self::Error) -> BackendError;

    /// Called for each actor, before its first request.
    fn started(&self, requests: &Requests) {
        let _ = requests;
    }

    fn shared(session: &Self::Session) -> Self::Shared;

    fn grants(shared: &Self::Shared) -> &SessionGrants<Self::Lock>;

    /// The work for a request that needs no actor. Returns the request if it needs one.
    fn handle_directly(
        &self,
        shared: &Self::Shared,
        request: SessionRequest,
        requests: &Requests,
    ) -> Result<ToTheEnd, SessionRequest> {
        let _ = (shared, requests);
        Err(request)
    }

    /// Tries to take locks, and replies.
    fn take(
        &self,
        session: &mut Self::Session,
        takes: Vec<TakeRequest>,
        requests: &Requests,
    ) -> impl Future<Output = ()> + Send;

    /// Releases locks, and replies.
    fn release(
        &self,
        session: &mut Self::Session,
        releases: Vec<ReleaseRequest>,
        requests: &Requests,
    ) -> impl Future<Output = ()> + Send;

    /// Handles an inspection, a look or a release by force, and replies.
    fn handle(
        &self,
        session: &mut Self::Session,
        request: SessionRequest,
        requests: &Requests,
    ) -> impl Future<Output = ()> + Send;

    /// Called after every batch of requests.
    fn after_batch(&self, session: &mut Self::Session) -> impl Future<Output = ()> + Send {
        let _ = session;
        std::future::ready(())
    }

    /// Ends the session if the server does not answer.
    fn ping(&self, session: &mut Self::Session) -> impl Future<Output = ()> + Send;

    fn close(&self, session: Self::Session, why: &str) -> impl Future<Output = ()> + Send;

    /// See [`LockBackend::list`](crate::LockBackend::list).
    fn list(
        &self,
        shared: &Self::Shared,
        prefixes: &[String],
        most: usize,
    ) -> impl Future<Output = Result<Vec<(String, Holder)>, BackendError>> + Send;

    /// See [`LockBackend::freed`](crate::LockBackend::freed).
    fn freed(&self, key: &str) -> impl Future<Output = ()> + Send {
        let _ = key;
        std::future::pending()
    }
}
