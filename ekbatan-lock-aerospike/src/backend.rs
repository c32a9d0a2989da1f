//! The backend over one namespace of an Aerospike cluster.
//!
//! Invariant: a key ends or is extended only by its owner, its term or force.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_core::config::DataSourceConfig;
use ekbatan_lock::{
    Attempt, BackendError, Grant, GrantExtension, GrantRequest, Holder, KeyPoller, KeyState,
    KeyStates, LockBackend, LockError, Pace, Released,
};

use crate::address::Address;
use crate::client::Commands;
use crate::records::Records;
use crate::safety;

/// How the poller looks.
const POLLS: Pace = Pace::new(Duration::from_millis(5), Duration::from_millis(300));

/// Time between tries for a key without a hint. The poller gives the hints.
const WITHOUT_HINT: Duration = Duration::from_secs(300);

/// How long this process does not try for a key that it released and that others want.
const GIVE_WAY: Duration = Duration::from_millis(40);

/// Grants keys in one namespace of an Aerospike cluster. The [crate] documentation lists its
/// guarantees.
pub struct AerospikeBackend {
    records: Arc<Records>,
    poller: KeyPoller,
    is_consistent: bool,
}

impl AerospikeBackend {
    /// The default namespace of locks: the name of the set.
    pub const NAMESPACE: &'static str = "ekbatan-lock";

    /// Connects to the cluster at `aerospike://[user:password@]host[:port][,host..]/NAMESPACE` and
    /// checks it. That namespace is the one of the cluster; `set` is the set of records in it.
    /// Processes exclude each other only with the same cluster, namespace and set.
    ///
    /// Needs a Tokio runtime that lives as long as the backend.
    ///
    /// # Errors
    ///
    /// [`LockError::Unsafe`] for a namespace that cannot keep locks, with what to do;
    /// [`LockError::Start`] if the cluster cannot be reached or refuses the login.
    pub async fn connect(url: &str, set: &str) -> Result<Self, LockError> {
        Self::open(&DataSourceConfig::new(url), set).await
    }

    /// Like [`connect`](Self::connect), with the login and the pool size of a configuration.
    ///
    /// # Errors
    ///
    /// Like [`connect`](Self::connect).
    pub async fn open(server: &DataSourceConfig, set: &str) -> Result<Self, LockError> {
        let (address, set) = (Address::of(server)?, safety::set(set)?);
        let commands = Commands::connect(address, set).await?;
        let is_consistent = safety::check_namespace(&commands).await?;
        if is_consistent {
            commands.set_consistent();
        }
        let records = Records::new(commands, !is_consistent);
        safety::check_locks(&records).await?;
        Ok(Self::over(records, is_consistent))
    }

    pub(crate) fn over(records: Records, is_consistent: bool) -> Self {
        let records = Arc::new(records);
        let poller = KeyPoller::new(WaitedKeys(records.clone()), POLLS);
        Self { records, poller, is_consistent }
    }
}

/// What the poller asks the server.
struct WaitedKeys(Arc<Records>);

#[async_trait]
impl KeyStates for WaitedKeys {
    async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
        self.0.look(keys).await
    }
}

#[async_trait]
impl LockBackend for AerospikeBackend {
    fn name(&self) -> &'static str {
        "aerospike"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        if let Some(token) = self.records.take(key, request).await? {
            return Ok(Attempt::Granted(Grant { owner: request.owner, token }));
        }
        if request.waits
            && let Err(error) = self.records.mark(key).await
        {
            // The try itself was answered, and the poller marks the key at its next look.
            tracing::debug!(%error, "a key that is waited for was not marked");
        }
        // The poller notices when the term ends.
        self.poller.busy(key);
        Ok(Attempt::Busy(None))
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        self.records.extend(key, grant, term).await
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.records.set_term(key, grant, term).await
    }

    async fn extend_all(&self, extensions: &[GrantExtension]) -> Result<Vec<bool>, BackendError> {
        self.records.extend_all(extensions).await
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let (ours, wanted) = self.records.release(key, grant).await?;
        Ok(Released { ours, wanted })
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        self.records.holder(key).await
    }

    async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        self.records.list(prefixes, most).await
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
        self.records.force(key, seen).await
    }

    fn frees_by_itself(&self) -> bool {
        true
    }

    /// Between clusters, only a namespace that is strongly consistent has one value for a key.
    fn spans_zones(&self) -> bool {
        self.is_consistent
    }

    async fn freed(&self, key: &str) {
        self.poller.freed(key).await;
    }

    fn poll_interval(&self) -> Duration {
        WITHOUT_HINT
    }

    fn give_way(&self) -> Duration {
        GIVE_WAY
    }

    async fn close(&self) {
        self.records.commands().close().await;
    }
}

impl fmt::Debug for AerospikeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commands = self.records.commands();
        f.debug_struct("AerospikeBackend")
            .field("namespace", &commands.namespace())
            .field("set", &commands.set())
            .finish_non_exhaustive()
    }
}
