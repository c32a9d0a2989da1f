//! The backend over one etcd cluster.
//!
//! Invariants: there is one connection, however many leases and waiters there are. A key ends or
//! is extended only by its owner, its term or force. A key that is released belongs at once to
//! the next in its queue.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_core::config::DataSourceConfig;
use ekbatan_lock::{
    Attempt, BackendError, FailureKind, Grant, GrantRequest, HandOver, Holder, LockBackend,
    LockError, Released,
};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::address::Address;
use crate::answer::{is_no_lease, seconds};
use crate::client::Client;
use crate::leases::{self, Leases};
use crate::listing::list;
use crate::names::EtcdNames;
use crate::places::{Entered, PLACE, Places, Waiting};
use crate::queue::{Look, Made, Place, Queue};
use crate::safety;
use crate::spare_leases::SpareLeases;
use crate::watches::Watches;

/// How long a grant is held before it is watched. Most are over by then.
const UNWATCHED: Duration = Duration::from_millis(200);

/// The first and the longest pause before a look that failed is repeated.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// Grants keys at one etcd cluster. The [crate] documentation lists its guarantees.
pub struct EtcdBackend {
    queue: Queue,
    leases: Arc<Leases>,
    spares: Arc<SpareLeases>,
    places: Places,
    watches: Watches,
}

impl EtcdBackend {
    /// The default namespace.
    pub const NAMESPACE: &'static str = "ekbatan-lock";

    /// Connects to the cluster at `etcd://[user:password@]host[:port][,host[:port]]..`, or
    /// `etcds://..` for encryption, and checks it. Processes exclude each other only with the same
    /// cluster and the same namespace.
    ///
    /// Needs a Tokio runtime that lives as long as the backend.
    ///
    /// # Errors
    ///
    /// [`LockError::Unsafe`] for a cluster or a namespace that cannot keep locks, with what to do;
    /// [`LockError::Start`] if it cannot be reached or refuses the login.
    pub async fn connect(url: &str, namespace: &str) -> Result<Self, LockError> {
        Self::open(&DataSourceConfig::new(url), namespace).await
    }

    /// Like [`connect`](Self::connect), with the login and encryption of a configuration. Its
    /// pool size is ignored: there is always one connection.
    ///
    /// # Errors
    ///
    /// Like [`connect`](Self::connect).
    pub async fn open(server: &DataSourceConfig, namespace: &str) -> Result<Self, LockError> {
        let names = EtcdNames::within(namespace)?;
        let client = Arc::new(Client::new(Address::of(server)?));
        client.begin_with(&safety::check(&client).await?);
        let queue = Queue::open(client.clone(), names).await;
        let queue = queue.map_err(|source| LockError::Start { source })?;
        let leases = Arc::new(Leases::new(client.clone()));
        let spares = SpareLeases::new(leases.clone());
        let (places, watches) = (Places::new(leases.clone()), Watches::new(client));
        Ok(Self { queue, leases, spares, places, watches })
    }

    /// Takes a key that was free a moment ago. Returns the token, or `None`.
    async fn take(&self, key: &str, request: &GrantRequest) -> Result<Option<i64>, BackendError> {
        let (owner, term) = (request.owner, seconds(request.term));
        let lease = self.spares.of_take(owner, term);
        if !lease.is_granted {
            self.leases.grant(lease.id, term).await?;
        }
        let mut taken = self.queue.take(key, owner, &request.holder, lease.id).await;
        if lease.is_granted && taken.as_ref().is_err_and(is_no_lease) {
            // It was revoked by somebody else, or the server has lost it.
            self.leases.grant(lease.id, term).await?;
            taken = self.queue.take(key, owner, &request.holder, lease.id).await;
        }
        let taken = taken?;
        if taken.is_none() {
            // At once: the same owner may try again, perhaps with a lease of the same number.
            self.leases.revoke(lease.id).await?;
        }
        self.spares.answered(owner);
        Ok(taken)
    }

    /// Enters the queue of a key.
    async fn enter(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let (owner, lease) = (request.owner, leases::of_waiter(request.owner));
        let until = self.leases.grant(lease, seconds(PLACE)).await?;
        let Made { created, token } = self.queue.enter(key, owner, &request.holder, lease).await?;
        if let Some(token) = token {
            let grant = Grant { owner, token };
            return Ok(Attempt::HandedOver(HandOver { grant, until }));
        }
        self.places.entered(owner, Entered { created, lease, until });
        Ok(Attempt::Queued)
    }

    /// The answer to a request that the server has granted before.
    async fn granted_before(&self, place: Place) -> Result<Attempt, BackendError> {
        let grant = Grant { owner: place.owner, token: place.token };
        let until = self.leases.keep_alive(vec![place.lease]).await?.remove(&place.lease).flatten();
        match until {
            Some(_) if place.lease != leases::of_waiter(place.owner) => Ok(Attempt::Granted(grant)),
            Some(until) => Ok(Attempt::HandedOver(HandOver { grant, until })),
            None => Err(BackendError::unavailable("etcd: the lease of a grant has just ended")),
        }
    }

    /// Waits until the place is the first of its key, or has ended.
    async fn wait(&self, key: &str, owner: Uuid, mut place: Waiting<'_>) -> Option<HandOver> {
        let Entered { created, .. } = place.place().await?;
        let (mut pause, mut last) = (PAUSE.0, None);
        loop {
            match self.queue.look(key, owner, created).await {
                Ok(Look::First { token }) => {
                    // By now the server may have had a sign of life since it was noted.
                    let until = place.place().await?.until;
                    let grant = Grant { owner, token };
                    return (until > Instant::now()).then_some(HandOver { grant, until });
                }
                Ok(Look::Behind { place: before, revision }) => {
                    if last.as_ref() == Some(&before) {
                        // The watch ended without the place.
                        pause_for(&mut pause).await;
                    } else {
                        (pause, last) = (PAUSE.0, Some(before.clone()));
                    }
                    tokio::select! {
                        () = self.watches.deleted(before, revision + 1) => {}
                        () = place.ended() => return None,
                    }
                }
                Ok(Look::Gone) => return None,
                // The caller asks again, and gets the error.
                Err(error) if !error.may_pass() => return None,
                Err(error) => {
                    tracing::debug!(%error, key, "a waiter could not look at its place");
                    tokio::select! {
                        () = pause_for(&mut pause) => {}
                        () = place.ended() => return None,
                    }
                }
            }
        }
    }
}

/// Pauses with jitter, so that processes do not repeat in step. The next pause is longer.
async fn pause_for(pause: &mut Duration) {
    sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    *pause = (*pause * 2).min(PAUSE.1);
}

#[async_trait]
impl LockBackend for EtcdBackend {
    fn name(&self) -> &'static str {
        "etcd"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        match self.queue.first(key).await? {
            Some(first) if first.owner == request.owner => {
                let granted = self.granted_before(first).await?;
                self.spares.answered(request.owner);
                return Ok(granted);
            }
            Some(_) => {}
            None => {
                if let Some(token) = self.take(key, request).await? {
                    return Ok(Attempt::Granted(Grant { owner: request.owner, token }));
                }
            }
        }
        if request.waits { self.enter(key, request).await } else { Ok(Attempt::Busy(None)) }
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        // The time of a lease cannot be changed. The place moves to another one.
        let lease = fastrand::i64(1..);
        let unused = self.leases.discarded_on_drop(lease);
        self.leases.grant(lease, seconds(term)).await?;
        // From now on the place may be attached to it.
        unused.keep();
        match self.queue.attach(key, grant, lease).await {
            Ok(left) => {
                self.leases.discard(left.unwrap_or(lease));
                Ok(left.is_some())
            }
            Err(error) => {
                if error.kind() != FailureKind::InDoubt {
                    self.leases.discard(lease);
                }
                Err(error)
            }
        }
    }

    /// A request for an extension that comes after a later one names an older revision, and changes nothing. So
    /// an extension may shorten a term.
    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.extend(key, grant, term).await
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let (left, wanted) = self.queue.leave(key, grant).await?;
        if grant.token == 0 {
            // The try may still be on its way over an abandoned connection. Without its lease it
            // has no effect when it arrives.
            let held = self.spares.unanswered(grant.owner);
            let waited = leases::of_waiter(grant.owner);
            let (held, waited) = tokio::join!(self.leases.revoke(held), self.leases.revoke(waited));
            held.and(waited)?;
            self.spares.answered(grant.owner);
        }
        // An extension may have moved the place to another lease.
        if let Some(left) = &left {
            self.leases.discard(left.lease);
        }
        Ok(Released { ours: left.is_some_and(|left| left.was_first), wanted })
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        let Some(first) = self.queue.first(key).await? else { return Ok(None) };
        let remaining = self.leases.remaining(first.lease).await?;
        Ok(Some(first.holder().remaining(Some(remaining))))
    }

    async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        list(&self.queue, &self.leases, prefixes, most).await
    }

    async fn force_release(
        &self,
        key: &str,
        seen: &Grant,
        _why: &str,
    ) -> Result<bool, BackendError> {
        if seen.token == 0 {
            return Ok(false);
        }
        let (left, _) = self.queue.leave(key, seen).await?;
        if let Some(left) = &left {
            self.leases.discard(left.lease);
        }
        Ok(left.is_some())
    }

    async fn handed_over(&self, key: &str, owner: Uuid) -> Option<HandOver> {
        self.wait(key, owner, self.places.wait(owner)).await
    }

    async fn lost(&self, key: &str, grant: &Grant) -> String {
        sleep(UNWATCHED).await;
        let (mut pause, mut watched) = (PAUSE.0, None);
        loop {
            match self.queue.stands(key, grant).await {
                Ok((true, revision)) => {
                    match watched.replace(Instant::now()) {
                        // The watch ended without the place.
                        Some(since) if since.elapsed() < PAUSE.1 => pause_for(&mut pause).await,
                        _ => pause = PAUSE.0,
                    }
                    let place = self.queue.names().place(key, grant.owner);
                    self.watches.deleted(place, revision + 1).await;
                }
                Ok((false, _)) => {
                    return "its place at etcd is gone: its term ended there, or an operator \
                            ended it"
                        .to_owned();
                }
                Err(error) => {
                    tracing::debug!(%error, key, "it could not be looked at whether a lease stands");
                    pause_for(&mut pause).await;
                }
            }
        }
    }

    fn frees_by_itself(&self) -> bool {
        true
    }

    /// The server passes a key on in the order in which processes came.
    fn give_way(&self) -> Duration {
        Duration::ZERO
    }

    async fn close(&self) {
        self.watches.stop();
        self.spares.close();
        self.leases.close().await;
    }
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBackend").field("names", self.queue.names()).finish_non_exhaustive()
    }
}
