//! The backend over one HBase cluster.
//!
//! Invariants: there is one connection to each server that has rows of the table, however many
//! leases and waiters there are. A key ends or is extended only by its owner, its term or force. A
//! key that is released belongs at once to the next in its queue.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_core::config::DataSourceConfig;
use ekbatan_lock::{
    Attempt, BackendError, Grant, GrantExtension, GrantRequest, HandOver, Holder, KeyPoller,
    LockBackend, LockError, Pace, Released,
};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::address::Address;
use crate::cleaning::Cleaner;
use crate::client::{Client, milliseconds};
use crate::listing::{self, holder};
use crate::locks::{Locks, PLACE, Taken};
use crate::names::RowNames;
use crate::row::Taker;
use crate::setup;
use crate::waiting::{Waiter, Waiters};
use crate::watched::{UNWATCHED, Watched};

/// How the poller looks for keys that are passed on.
const POLLS: Pace = Pace::new(Duration::from_millis(5), Duration::from_millis(300));

/// How often it looks whether leases stand.
const WATCHES: Pace = Pace::new(Duration::from_secs(1), Duration::from_secs(1));

/// Time between tries for a key without a hint. The poller gives the hints.
const WITHOUT_HINT: Duration = Duration::from_secs(300);

/// The pause before a look that failed is repeated.
const PAUSE: Duration = Duration::from_millis(300);

/// Grants keys at one HBase cluster. The [crate] documentation lists its guarantees.
pub struct HBaseBackend {
    locks: Arc<Locks>,
    waiters: Waiters,
    poller: KeyPoller,
    watched: Watched,
    watcher: KeyPoller,
    cleaner: Arc<Cleaner>,
    spans_zones: bool,
}

impl HBaseBackend {
    /// The default namespace.
    pub const NAMESPACE: &'static str = "ekbatan-lock";

    /// Connects to the cluster at `hbase://[user@]host[:port][,host[:port]]..[/table]`, checks it,
    /// and makes the table if it is missing. Processes exclude each other only with the same
    /// cluster, table and namespace.
    ///
    /// `?cluster=ID` names the cluster that the processes of all zones share. Without it, keys of
    /// all zones are refused. `?via=SERVER:PORT=ADDRESS:PORT` says where a server is reached that
    /// is not at the address that the cluster names; it may occur several times.
    ///
    /// Needs a Tokio runtime that lives as long as the backend.
    ///
    /// # Errors
    ///
    /// [`LockError::Unsafe`] for a cluster, a table or a namespace that cannot keep locks, with what
    /// to do; [`LockError::Start`] if the cluster cannot be reached or refuses the user.
    pub async fn connect(url: &str, namespace: &str) -> Result<Self, LockError> {
        Self::open(&DataSourceConfig::new(url), namespace).await
    }

    /// Like [`connect`](Self::connect), with the user of a configuration. Its pool size is ignored.
    ///
    /// # Errors
    ///
    /// Like [`connect`](Self::connect).
    pub async fn open(server: &DataSourceConfig, namespace: &str) -> Result<Self, LockError> {
        let names = RowNames::within(namespace)?;
        let address = Address::of(server)?;
        let spans_zones = address.cluster().is_some();
        let locks = Arc::new(Locks::new(Client::new(address), names));
        setup::prepare(&locks).await?;
        let (waiters, watched) = (Waiters::new(locks.clone()), Watched::new(locks.clone()));
        Ok(Self {
            poller: KeyPoller::new(waiters.clone(), POLLS),
            watcher: KeyPoller::new(watched.clone(), WATCHES),
            cleaner: Arc::new(Cleaner::new(locks.clone())),
            locks,
            waiters,
            watched,
            spans_zones,
        })
    }

    /// Waits until the key is passed on to one that is in the queue, and takes it.
    async fn wait(&self, key: &str, owner: Uuid) -> Option<HandOver> {
        loop {
            let mut freed = pin!(self.poller.freed(key));
            // Listening begins with the first poll.
            let early = poll_fn(|cx| Poll::Ready(freed.as_mut().poll(cx).is_ready())).await;
            if self.waiters.get(key, owner).is_some() {
                self.poller.busy(key);
            }
            let mut woken = early;
            while !woken {
                // It keeps listening, because a key that is listened to anew is looked at often.
                woken = timeout(PLACE, freed.as_mut()).await.is_ok();
                if self.waiters.get(key, owner).is_some_and(|waiter| waiter.has_ended()) {
                    // The caller asks again, and gets the error if the server is away.
                    return None;
                }
            }
            let Some(waiter) = self.waiters.get(key, owner) else { continue };
            let by = waiter.taker(owner);
            match self.locks.claim(key, &by).await {
                Ok(Some(Taken::Granted(grant, asked))) => {
                    self.waiters.remove(key, owner);
                    // The server caps the term. `asked + waiter.term` would overflow for `Duration::MAX`.
                    let until = asked + Duration::from_millis(by.term);
                    return Some(HandOver { grant, until });
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    // Its place has ended, because it gave no sign of life for too long.
                    self.waiters.remove(key, owner);
                    return None;
                }
                Err(error) if !error.may_pass() => {
                    // The caller asks again, and gets the error.
                    self.waiters.remove(key, owner);
                    return None;
                }
                Err(error) => {
                    tracing::debug!(%error, key, "a waiter could not look at its place");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

#[async_trait]
impl LockBackend for HBaseBackend {
    fn name(&self) -> &'static str {
        "hbase"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let (owner, holder) = (request.owner, request.holder.as_str());
        let by = Taker { owner, holder, term: milliseconds(request.term) };
        let asks_again = request.waits && self.waiters.get(key, owner).is_some();
        let taken = if asks_again {
            self.locks.take_again(key, &by).await?
        } else {
            self.locks.take(key, &by, request.waits).await?
        };
        Ok(match taken {
            Taken::Granted(grant, _) => {
                // It may have waited before.
                self.waiters.remove(key, owner);
                Attempt::Granted(grant)
            }
            Taken::Busy => Attempt::Busy(None),
            Taken::Waits(renewed) => {
                self.waiters.enter(key, owner, Waiter::new(request, renewed));
                self.poller.busy(key);
                Attempt::Queued
            }
        })
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        self.locks.extend(key, grant, milliseconds(term)).await
    }

    /// A request for an extension that comes after a later one finds a changed row, and changes nothing. So an
    /// extension may shorten a term.
    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.extend(key, grant, term).await
    }

    async fn extend_all(&self, extensions: &[GrantExtension]) -> Result<Vec<bool>, BackendError> {
        self.locks.extend_all(extensions).await
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        self.waiters.remove(key, grant.owner);
        let released = self.locks.release(key, grant).await?;
        self.cleaner.released(key);
        Ok(released)
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        Ok(holder(&self.locks.look(key).await?, self.locks.clock.now()))
    }

    async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        listing::list(&self.locks, prefixes, most).await
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
        self.locks.force(key, seen).await
    }

    async fn handed_over(&self, key: &str, owner: Uuid) -> Option<HandOver> {
        self.wait(key, owner).await
    }

    async fn lost(&self, key: &str, grant: &Grant) -> String {
        // Most leases are over by then.
        sleep(UNWATCHED).await;
        let _watch = self.watched.watch(key, *grant);
        loop {
            let mut freed = pin!(self.watcher.freed(key));
            let early = poll_fn(|cx| Poll::Ready(freed.as_mut().poll(cx).is_ready())).await;
            self.watcher.busy(key);
            if !early {
                freed.await;
            }
            match self.locks.look(key).await {
                Ok(row) if row.stands(grant) => {}
                Ok(_) => {
                    return "it does not stand in HBase any more: its term ended there, or an \
                            operator ended it"
                        .to_owned();
                }
                Err(error) => {
                    tracing::debug!(%error, key, "it could not be looked at whether a lease stands");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    fn frees_by_itself(&self) -> bool {
        true
    }

    fn spans_zones(&self) -> bool {
        self.spans_zones
    }

    fn poll_interval(&self) -> Duration {
        WITHOUT_HINT
    }

    /// The server passes a key on in the order in which processes came.
    fn give_way(&self) -> Duration {
        Duration::ZERO
    }

    async fn close(&self) {
        self.locks.client.close();
    }
}

impl fmt::Debug for HBaseBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HBaseBackend").field("names", &self.locks.names).finish_non_exhaustive()
    }
}
