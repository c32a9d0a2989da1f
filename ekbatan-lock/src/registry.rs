//! The locks of every shard.
//!
//! What always holds: a key goes to the locks of its own shard, on every process that has the
//! same configuration; shards whose configurations are the same share one provider.

mod error;

use std::collections::BTreeMap;
use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_core::config::{
    DataSourceConfig, EkbatanConfig, ExposeSecret, LockProviderKind, LockSettings, UnknownShard,
};
use ekbatan_core::domain::ShardIdentifier;
use ekbatan_core::shard::ShardError;
use futures_util::future::join_all;

use error::advice;
pub use error::{KeyedLocksError, ShardLocksError};

use crate::{
    BuiltIn, Holder, KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockProvider,
    LockServers, RunOnce, RunOnceError, WithLockError, run_once, with_lock, with_locks,
};

/// The locks of every shard, as `lock-config` says, with the providers of this crate.
///
/// `ekbatan-lock-redis` has the same with Redis, and `ekbatan` that of its features.
pub type KeyedLocks = LockRegistry<BuiltIn>;

/// The locks of every shard: a provider for each, made as its `lock-config` says. Cheap to
/// clone.
///
/// A key that was made from a [`ShardedId`](ekbatan_core::domain::ShardedId) goes to the
/// provider of its shard, any other key to the default shard's.
///
/// ```
/// use std::time::Duration;
///
/// use ekbatan_core::config::{EkbatanConfig, LockConfig, LockProviderKind};
/// use ekbatan_lock::{KeyedLockProvider, KeyedLocks, lock_key};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = EkbatanConfig::single("sqlite:wallet.db")
///     .locks(LockConfig::of(LockProviderKind::InProcess));
/// let locks = KeyedLocks::connect(&config).await?;
/// let lease = locks.acquire(&lock_key!("wallet", 17), Duration::from_secs(10)).await?;
/// assert!(lease.release().await);
/// # Ok(())
/// # }
/// ```
pub struct LockRegistry<S> {
    inner: Arc<Inner>,
    servers: PhantomData<fn() -> S>,
}

struct Inner {
    /// One for each shard of the configuration, in their order; none where it has no locks.
    shards: BTreeMap<ShardIdentifier, Result<LockProvider, String>>,
    default: ShardIdentifier,
    unknown: UnknownShard,
    /// Each once.
    providers: Vec<LockProvider>,
}

impl<S: LockServers> LockRegistry<S> {
    /// Connects to the locks of every shard that has a `lock-config`, side by side, and has
    /// each provider make sure that it can keep its promise.
    ///
    /// A shard without one is an error when one of its keys is asked for: nobody may need
    /// them. That no shard has one is an error now.
    ///
    /// # Errors
    ///
    /// When the configuration has mistakes, no shard has locks, or the locks of some shards
    /// cannot be used; each is told.
    pub async fn connect(config: &EkbatanConfig) -> Result<Self, KeyedLocksError> {
        config.check()?;
        let sharding = &config.sharding;
        let mut shards = BTreeMap::new();
        let mut wanted: Vec<(LockSettings, Vec<ShardIdentifier>)> = Vec::new();
        for (shard, member) in sharding.shards() {
            let Some(settings) = member.locks() else {
                shards.insert(shard, Err(advice(member)));
                continue;
            };
            match wanted.iter_mut().find(|(known, _)| same(known, &settings)) {
                Some((_, shards)) => shards.push(shard),
                None => wanted.push((settings, vec![shard])),
            }
        }
        if wanted.is_empty() {
            let advice = sharding.member(sharding.default_shard).map(advice).unwrap_or_default();
            return Err(KeyedLocksError::NoLocks { advice });
        }
        let opened = join_all(wanted.iter().map(|(settings, _)| S::open(settings))).await;
        let mut providers = Vec::new();
        let mut failures = Vec::new();
        for ((settings, of), opened) in wanted.into_iter().zip(opened) {
            match opened {
                Ok(provider) => {
                    shards.extend(of.into_iter().map(|shard| (shard, Ok(provider.clone()))));
                    providers.push(provider);
                }
                Err(error) => failures.push(error::failure(&of, &settings, error)),
            }
        }
        if !failures.is_empty() {
            join_all(providers.iter().map(LockProvider::close)).await;
            return Err(KeyedLocksError::Shards(failures));
        }
        let (default, unknown) = (sharding.default_shard, sharding.unknown_shard);
        let inner = Arc::new(Inner { shards, default, unknown, providers });
        Ok(Self { inner, servers: PhantomData })
    }
}

impl<S> LockRegistry<S> {
    /// The shards that have locks, in their order, with their providers.
    pub fn shards(&self) -> impl Iterator<Item = (ShardIdentifier, &LockProvider)> {
        let all = self.inner.shards.iter();
        all.filter_map(|(shard, provider)| Some((*shard, provider.as_ref().ok()?)))
    }

    /// The locks that a key goes to.
    ///
    /// # Errors
    ///
    /// [`LockError::NoLocks`] if its shard has none, with what to add to the configuration;
    /// [`LockError::Shard`] if there is no such shard.
    pub fn of(&self, key: &LockKey) -> Result<&LockProvider, LockError> {
        let inner = &self.inner;
        let mut shard = key.shard().unwrap_or(inner.default);
        if !inner.shards.contains_key(&shard) && inner.unknown == UnknownShard::DefaultShard {
            shard = inner.default;
        }
        match inner.shards.get(&shard) {
            Some(Ok(provider)) => Ok(provider),
            Some(Err(advice)) => {
                Err(LockError::NoLocks { key: key.clone(), shard, advice: advice.clone() })
            }
            None => {
                let known = inner.shards.keys().copied().collect();
                let source = ShardError::Unknown { shard, known };
                Err(LockError::Shard { key: key.clone(), source })
            }
        }
    }

    /// Takes the lock, runs the work, and gives the lock back, also when the work fails,
    /// panics or is dropped; see [`LockProvider::with_lock`].
    ///
    /// # Errors
    ///
    /// The work's own; or those of the lock, and the work did not begin.
    pub async fn with_lock<F, T, E>(
        &self,
        key: &LockKey,
        options: LockOptions,
        work: impl FnOnce(Lease) -> F,
    ) -> Result<T, WithLockError<E>>
    where
        F: IntoFuture<Output = Result<T, E>>,
    {
        with_lock(self.of(key)?, key, options, work).await
    }

    /// Takes the locks on all of the keys or on none, and runs the work; see
    /// [`LockProvider::with_locks`].
    ///
    /// # Errors
    ///
    /// The work's own; or those of the locks, and the work did not begin.
    pub async fn with_locks<F, T, E>(
        &self,
        keys: &[LockKey],
        options: LockOptions,
        work: impl FnOnce(Vec<Lease>) -> F,
    ) -> Result<T, WithLockError<E>>
    where
        S: 'static,
        F: IntoFuture<Output = Result<T, E>>,
    {
        with_locks(self, keys, options, work).await
    }

    /// Runs the work if nobody holds the key, and skips it otherwise; see
    /// [`LockProvider::run_once`].
    ///
    /// # Errors
    ///
    /// The work's own, those of the lock, or that the work had to be stopped.
    pub async fn run_once<F, T, E>(
        &self,
        key: &LockKey,
        at_least: Duration,
        at_most: Duration,
        work: impl FnOnce(Lease) -> F,
    ) -> Result<RunOnce<T>, RunOnceError<E>>
    where
        F: IntoFuture<Output = Result<T, E>>,
    {
        run_once(self.of(key)?, key, at_least, at_most, work).await
    }

    /// Refuses whoever waits, gives back what is held, and ends; see [`LockProvider::close`].
    pub async fn close(&self) {
        join_all(self.inner.providers.iter().map(LockProvider::close)).await;
    }
}

#[async_trait]
impl<S: 'static> KeyedLockProvider for LockRegistry<S> {
    async fn acquire(&self, key: &LockKey, max_hold: Duration) -> Result<Lease, LockError> {
        self.of(key)?.acquire(key, max_hold).await
    }

    async fn take(&self, key: &LockKey, options: &LockOptions) -> Result<Option<Lease>, LockError> {
        self.of(key)?.take(key, options).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, LockError> {
        self.of(key)?.inspect(key).await
    }

    async fn force_release(&self, key: &LockKey, why: &str) -> Result<bool, LockError> {
        self.of(key)?.force_release(key, why).await
    }
}

impl<S> Clone for LockRegistry<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), servers: PhantomData }
    }
}

impl<S> fmt::Debug for LockRegistry<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.shards()).finish()
    }
}

/// Whether two shards may share a provider.
fn same(one: &LockSettings, other: &LockSettings) -> bool {
    type Common<'s> = (LockProviderKind, &'s str, Option<Duration>);
    fn common(of: &LockSettings) -> Common<'_> {
        (of.provider, &of.zone, of.term)
    }
    if common(one) != common(other) || one.provider == LockProviderKind::InProcess {
        return common(one) == common(other);
    }
    let (a, b) = (&one.server, &other.server);
    let password =
        |of: &DataSourceConfig| of.password.as_ref().map(|p| p.expose_secret().to_owned());
    (one.strategy, &one.namespace) == (other.strategy, &other.namespace)
        && (&a.url, &a.username, &a.eventlog) == (&b.url, &b.username, &b.eventlog)
        && password(a) == password(b)
        && (a.tls_mode, &a.tls_root_cert) == (b.tls_mode, &b.tls_root_cert)
        && (a.maximum_pool_size, a.connection_timeout, &a.application_name)
            == (b.maximum_pool_size, b.connection_timeout, &b.application_name)
}
