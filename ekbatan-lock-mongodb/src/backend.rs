//! The backend over one MongoDB deployment.
//!
//! Invariants: a key ends or is extended only by its owner, its term or force. A key that is
//! released belongs at once to the first that waits. Nothing is kept for a caller that has gone.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_core::config::DataSourceConfig;
use ekbatan_lock::{
    Attempt, BackendError, Grant, GrantExtension, GrantRequest, HandOver, Holder, KeyPoller,
    LockBackend, LockError, Released,
};
use uuid::Uuid;

use crate::address::Address;
use crate::client::Commands;
use crate::documents::Documents;
use crate::safety;
use crate::waiting::{POLLS, WaitedKeys, Waiting};

/// Grants keys at one MongoDB deployment. The [crate] documentation lists its guarantees.
pub struct MongoDbBackend {
    documents: Arc<Documents>,
    waiting: Arc<Waiting>,
    poller: KeyPoller,
}

impl MongoDbBackend {
    /// The default namespace: the name of the collection.
    pub const NAMESPACE: &'static str = "ekbatan-lock";

    /// Connects to the deployment at `mongodb://[user:password@]host[:port][,host..][/database]`
    /// and checks it. Processes exclude each other only with the same deployment, the same database
    /// (`ekbatan` if none is named) and the same namespace.
    ///
    /// Needs a Tokio runtime that lives as long as the backend.
    ///
    /// # Errors
    ///
    /// [`LockError::Unsafe`] for a deployment or an address that cannot keep locks, with what to do;
    /// [`LockError::Start`] if it cannot be reached or refuses the login.
    pub async fn connect(url: &str, namespace: &str) -> Result<Self, LockError> {
        Self::open(&DataSourceConfig::new(url), namespace).await
    }

    /// Like [`connect`](Self::connect), with the login, the encryption and the pool size of a
    /// configuration.
    ///
    /// # Errors
    ///
    /// Like [`connect`](Self::connect).
    pub async fn open(server: &DataSourceConfig, namespace: &str) -> Result<Self, LockError> {
        let Address { options, database } = Address::of(server).await?;
        let collection = safety::collection(namespace)?;
        let commands = Commands::connect(options, database, collection).await;
        let commands = commands.map_err(|source| LockError::Start { source })?;
        let documents = Arc::new(Documents::new(commands));
        safety::check(&documents).await?;
        let waiting = Arc::new(Waiting::default());
        let keys = WaitedKeys { documents: documents.clone(), waiting: waiting.clone() };
        Ok(Self { documents, waiting, poller: KeyPoller::new(keys, POLLS) })
    }
}

#[async_trait]
impl LockBackend for MongoDbBackend {
    fn name(&self) -> &'static str {
        "mongodb"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        Ok(match self.documents.take(key, request).await? {
            Some(token) => Attempt::Granted(Grant { owner: request.owner, token }),
            None if request.waits => {
                self.poller.busy(key);
                Attempt::Queued
            }
            None => Attempt::Busy(None),
        })
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        self.documents.extend(key, grant, term).await
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.documents.set_term(key, grant, term).await
    }

    async fn extend_all(&self, extensions: &[GrantExtension]) -> Result<Vec<bool>, BackendError> {
        self.documents.extend_all(extensions).await
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let ours = self.documents.release(key, grant).await?;
        Ok(Released { ours, wanted: false })
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        self.documents.holder(key).await
    }

    async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        self.documents.list(prefixes, most).await
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
        self.documents.force(key, seen).await
    }

    fn frees_by_itself(&self) -> bool {
        true
    }

    /// Resolves when a look shows that the request has the key, or has to be repeated. The
    /// repetition confirms the grant, for its whole term, with the majority.
    async fn handed_over(&self, key: &str, owner: Uuid) -> Option<HandOver> {
        let _place = self.waiting.enter(key, owner);
        self.poller.freed(key).await;
        None
    }

    /// The server passes a key on in the order in which processes came.
    fn give_way(&self) -> Duration {
        Duration::ZERO
    }

    async fn close(&self) {
        self.documents.commands().close().await;
    }
}

impl fmt::Debug for MongoDbBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let collection = self.documents.commands().collection();
        f.debug_struct("MongoDbBackend").field("collection", &collection).finish_non_exhaustive()
    }
}
