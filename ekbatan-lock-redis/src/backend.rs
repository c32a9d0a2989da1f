//! The backend over one Redis or Valkey master.
//!
//! Invariants: there are two connections, however many leases and waiters there are. A lease
//! ends or is extended only by its owner, its term or force.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_core::config::DataSourceConfig;
use ekbatan_lock::{
    Attempt, BackendError, Grant, GrantExtension, GrantRequest, Holder, KeyPoller, LockBackend,
    LockError, Released,
};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::answer::{answered, left, milliseconds};
use crate::client::{self, unreachable};
use crate::commands::Commands;
use crate::listing::{FoundLease, holder, list};
use crate::names::RedisNames;
use crate::passing::{CONFIRM, Passing};
use crate::safety;
use crate::scripts::Scripts;
use crate::subscription::Subscription;
use crate::waited::{LOOK_EVERY, PLACE, POLLS, WaitedKeys};

/// Time between tries for a key without a hint. The subscription and the poller give the hints.
const WITHOUT_HINT: Duration = Duration::from_secs(300);

/// Maximum time until a cancelled try reaches the server.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Grants keys at one Redis or Valkey master. The [crate] documentation lists its guarantees.
pub struct RedisBackend {
    names: RedisNames,
    scripts: Arc<Scripts>,
    commands: Arc<Commands>,
    subscription: Subscription,
    poller: KeyPoller,
    passing: Passing,
    /// This process, in the order of those that wait.
    process: Uuid,
}

impl RedisBackend {
    /// The default namespace.
    pub const NAMESPACE: &'static str = "ekbatan-lock";

    /// Connects to the server at `redis://[user:password@]host[:port][/database]` and checks
    /// it. Processes exclude each other only with the same server and the same namespace.
    ///
    /// Needs a Tokio runtime that lives as long as the backend.
    ///
    /// # Errors
    ///
    /// [`LockError::Unsafe`] for a server that cannot keep locks, with what to do;
    /// [`LockError::Start`] if it cannot be reached.
    pub async fn connect(url: &str, namespace: &str) -> Result<Self, LockError> {
        Self::open(&DataSourceConfig::new(url), namespace).await
    }

    /// Like [`connect`](Self::connect), with the login and encryption of a configuration. Its
    /// pool size is ignored: there are always two connections.
    ///
    /// # Errors
    ///
    /// Like [`connect`](Self::connect).
    pub async fn open(server: &DataSourceConfig, namespace: &str) -> Result<Self, LockError> {
        let names = RedisNames::within(namespace)?;
        let client = client::client(server)?;
        let server = client.get_connection_info().addr().to_string();
        let failed = |error| unreachable(&server, error);
        let commands = Arc::new(Commands::connect(client.clone()).await.map_err(failed)?);
        safety::check(commands.connection()).await?;
        let (scripts, process) = (Arc::new(Scripts::new()), Uuid::new_v4());
        let (unclaimed, returned) = mpsc::unbounded_channel();
        let subscription = Subscription::open(client, names.freed(), process, unclaimed);
        let subscription = subscription.await.map_err(failed)?;
        let (shared, held_by) = (scripts.clone(), commands.clone());
        let states = WaitedKeys::new(names.clone(), shared, held_by, process);
        let poller = KeyPoller::new(states, POLLS);
        let passing = Passing::new(names.clone(), scripts.clone(), commands.clone());
        tokio::spawn(passing.clone().return_unclaimed(returned, process));
        Ok(Self { names, scripts, commands, subscription, poller, passing, process })
    }
}

#[async_trait]
impl LockBackend for RedisBackend {
    fn name(&self) -> &'static str {
        "redis"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let take = self.scripts.take.key(self.names.lock(key));
        let take = take
            .key(self.names.fence(key))
            .key(self.names.waiters(key))
            .key(self.names.given_up(key, request.owner))
            .arg(request.owner.to_string())
            .arg(&request.holder)
            .arg(milliseconds(request.term))
            .arg(self.process.to_string())
            .arg(milliseconds(PLACE))
            .arg(u8::from(request.waits));
        Ok(match answered(self.commands.run::<(bool, i64)>(take).await)? {
            (true, token) => Attempt::Granted(Grant { owner: request.owner, token }),
            // The poller notices when the term ends, but a caller may wait for a shorter time than until
            // its first look.
            (false, rest) => {
                self.poller.busy(key);
                Attempt::Busy(left(rest).filter(|rest| *rest < LOOK_EVERY))
            }
        })
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        let extend = self.scripts.extend.key(self.names.lock(key));
        let extend = extend.arg(grant.owner).arg(milliseconds(term));
        answered(self.commands.run(extend).await)
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        let set_term = self.scripts.extend.key(self.names.lock(key));
        let set_term = set_term.arg(grant.owner).arg(milliseconds(term)).arg("exactly");
        answered(self.commands.run(set_term).await)
    }

    async fn extend_all(&self, extensions: &[GrantExtension]) -> Result<Vec<bool>, BackendError> {
        let extend = |of: &GrantExtension| {
            let extend = self.scripts.extend.key(self.names.lock(&of.key));
            extend.arg(of.grant.owner).arg(milliseconds(of.term))
        };
        let calls: Vec<_> = extensions.iter().map(extend).collect();
        answered(self.commands.run_all(&calls).await)
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        // A token of zero stands for a try whose answer was lost. The try may still be on its
        // way over an abandoned connection and arrive after this release.
        let refused_for = if grant.token == 0 { milliseconds(MAX_DELAY) } else { 0 };
        let released = self.passing.release(key, grant.owner, refused_for).await;
        let (ours, wanted) = answered(released)?;
        Ok(Released { ours, wanted })
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        let inspect = self.scripts.inspect.key(self.names.lock(key));
        let found: FoundLease = answered(self.commands.run(inspect).await)?;
        found.map(|found| holder(&self.names.lock(key), found)).transpose()
    }

    async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        list(&self.names, &self.scripts, &self.commands, prefixes, most).await
    }

    async fn force_release(
        &self,
        key: &str,
        seen: &Grant,
        _why: &str,
    ) -> Result<bool, BackendError> {
        let force = self.scripts.force.key(self.names.lock(key));
        let force = force
            .key(self.names.fence(key))
            .key(self.names.waiters(key))
            .arg(self.names.freed())
            .arg(key)
            .arg(format!("{}|{}|", seen.owner, seen.token))
            .arg(milliseconds(CONFIRM))
            .arg(milliseconds(PLACE));
        answered(self.commands.run(force).await)
    }

    fn frees_by_itself(&self) -> bool {
        true
    }

    async fn freed(&self, key: &str) {
        tokio::select! {
            () = self.subscription.freed(key) => {}
            () = self.poller.freed(key) => {}
        }
    }

    fn poll_interval(&self) -> Duration {
        WITHOUT_HINT
    }

    /// The server passes a key on in the order in which processes came.
    fn give_way(&self) -> Duration {
        Duration::ZERO
    }

    async fn close(&self) {
        self.subscription.stop();
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("names", &self.names).finish_non_exhaustive()
    }
}
