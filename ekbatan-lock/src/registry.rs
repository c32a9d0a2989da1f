//! The locks of every shard.
//!
//! Invariants: a key goes to the locks of its own shard, in every process with the same
//! configuration. Shards with equal lock settings share one provider.

mod error;
mod leases;
pub(crate) mod servers;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ekbatan_core::config::{
    DataSourceConfig, EkbatanConfig, ExposeSecret, LockProviderKind, LockSettings, LockStrategy,
    UnknownShard,
};
use ekbatan_core::domain::ShardIdentifier;
use ekbatan_core::shard::ShardError;
use futures_util::future::join_all;

use error::advice;
pub use error::{KeyedLocksError, ShardLocksError};

use crate::{
    HeldKey, HeldKeys, Holder, KeyedLockProvider, Lease, LockError, LockKey, LockOptions,
    LockProvider, LockServers,
};

/// The locks of every shard: one provider per shard, opened as its `lock-config` says. Cheap
/// to clone.
///
/// A key made from a [`ShardedId`](ekbatan_core::domain::ShardedId) goes to the provider of its
/// shard, any other key to the default shard's provider.
///
/// `S` names the servers that [`connect`](Self::connect) can open. Applications use the alias
/// `ekbatan::lock::KeyedLocks`, which opens every server that their features include.
///
/// ```
/// use std::time::Duration;
///
/// use ekbatan_core::config::{EkbatanConfig, LockConfig, LockProviderKind};
/// use ekbatan_lock::{BuiltIn, KeyedLockProvider, LockRegistry, lock_key};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = EkbatanConfig::single("sqlite:wallet.db")
///     .locks(LockConfig::of(LockProviderKind::InProcess));
/// let locks = LockRegistry::<BuiltIn>::connect(&config).await?;
/// let lease = locks.acquire(&lock_key!("wallet", 17), Duration::from_secs(10)).await?;
/// assert!(lease.release().await);
/// # Ok(())
/// # }
/// ```
pub struct LockRegistry<S> {
    inner: Arc<Registered>,
    servers: PhantomData<fn() -> S>,
}

struct Registered {
    /// Every shard of the configuration: its provider, or the advice for one without locks.
    shards: BTreeMap<ShardIdentifier, Result<LockProvider, String>>,
    default: ShardIdentifier,
    unknown: UnknownShard,
    /// Each provider once, with the number of the place that keeps its locks.
    providers: Vec<(LockProvider, usize)>,
}

impl<S: LockServers> LockRegistry<S> {
    /// Connects, in parallel, to the locks of every shard that has a `lock-config`. Each
    /// provider checks that its server can keep locks safely.
    ///
    /// A shard without a `lock-config` is an error only when one of its keys is used. If no
    /// shard has a `lock-config`, this call fails.
    ///
    /// # Errors
    ///
    /// The configuration is invalid, no shard has locks, or the locks of some shards cannot be
    /// used. The error lists every failure.
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
            match wanted.iter_mut().find(|(known, _)| can_share(known, &settings)) {
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
        let fences: Vec<_> = wanted
            .iter()
            .map(|(settings, _)| fence_server(settings, &wanted, sharding.default_shard))
            .collect();
        let places = places(&wanted);
        for ((((settings, of), opened), fence), place) in
            wanted.into_iter().zip(opened).zip(fences).zip(places)
        {
            match opened {
                Ok(provider) => {
                    let provider = match fence {
                        Some(server) => provider.fenced_as(&server),
                        None => provider,
                    };
                    shards.extend(of.into_iter().map(|shard| (shard, Ok(provider.clone()))));
                    providers.push((provider, place));
                }
                Err(error) => failures.push(error::failure(&of, &settings, error)),
            }
        }
        if !failures.is_empty() {
            join_all(providers.iter().map(|(provider, _)| provider.close())).await;
            return Err(KeyedLocksError::Shards(failures));
        }
        let (default, unknown) = (sharding.default_shard, sharding.unknown_shard);
        let inner = Arc::new(Registered { shards, default, unknown, providers });
        Ok(Self { inner, servers: PhantomData })
    }
}

impl<S> LockRegistry<S> {
    /// The shards that have locks, in order, with their providers.
    pub fn shards(&self) -> impl Iterator<Item = (ShardIdentifier, &LockProvider)> {
        let all = self.inner.shards.iter();
        all.filter_map(|(shard, provider)| Some((*shard, provider.as_ref().ok()?)))
    }

    /// The provider that a key goes to.
    ///
    /// # Errors
    ///
    /// [`LockError::NoLocks`] if the key's shard has no locks, with the configuration to add;
    /// [`LockError::Shard`] if there is no such shard.
    pub fn of(&self, key: &LockKey) -> Result<&LockProvider, LockError> {
        let (inner, shard) = (&self.inner, self.home_of(key));
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

    /// The shard whose locks a key is among.
    fn home_of(&self, key: &LockKey) -> ShardIdentifier {
        let inner = &self.inner;
        let shard = key.shard().unwrap_or(inner.default);
        let is_known = inner.shards.contains_key(&shard);
        if is_known || inner.unknown != UnknownShard::DefaultShard { shard } else { inner.default }
    }

    /// Closes every provider; see [`LockProvider::close`].
    pub async fn close(&self) {
        join_all(self.inner.providers.iter().map(|(provider, _)| provider.close())).await;
    }

    /// The place that keeps the locks of this provider.
    fn place_of(&self, provider: &LockProvider) -> Option<usize> {
        let found = self.inner.providers.iter().find(|(known, _)| known.is_same(provider));
        found.map(|(_, place)| *place)
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

    fn reenter(&self, key: &LockKey) -> Option<Lease> {
        self.of(key).ok()?.reenter(key)
    }

    /// A key without a shard, and one of an unknown shard, can lead to the locks of the default one,
    /// and several shards can have their locks in one place.
    fn named(&self, key: &LockKey) -> LockKey {
        let Ok(provider) = self.of(key) else { return key.clone() };
        let (place, stored) = (self.place_of(provider), provider.stored(key));
        let is_same =
            |other: &LockProvider| self.place_of(other) == place && other.stored(key) == stored;
        let first = self.shards().find(|(_, other)| is_same(other));
        key.clone().on_shard(first.map_or_else(|| self.home_of(key), |(shard, _)| shard))
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, LockError> {
        self.of(key)?.inspect(key).await
    }

    /// Lists the locks of all shards, those of the first shards first. Each key names a shard whose
    /// locks it is among. If the locks of one shard cannot be listed, the call fails. Then call
    /// `list` of the other providers, which [`shards`](LockRegistry::shards) returns.
    async fn list(&self, most: usize) -> Result<HeldKeys, LockError> {
        let (mut all, mut listed) = (HeldKeys::default(), Vec::<(&LockProvider, _)>::new());
        let mut locks = HashSet::new();
        for (shard, provider) in self.shards() {
            if listed.iter().any(|(before, _)| before.is_same(provider)) {
                continue;
            }
            let place = self.place_of(provider);
            // Another provider of its place may have listed the same keys.
            let repeats = listed.iter().any(|(_, before)| *before == place);
            listed.push((provider, place));
            let most_here = if repeats { most } else { most - all.keys.len() };
            let found = provider.list(most_here).await?;
            for held in found.keys {
                if locks.insert((place, provider.stored(&held.key))) {
                    all.keys.push(HeldKey { key: held.key.on_shard(shard), ..held });
                }
            }
            all.more |= found.more || all.keys.len() > most;
            all.keys.truncate(most);
        }
        Ok(all)
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

/// Names a lock server in the names of its fences, because lock servers count tokens
/// independently. The server of the default shard has no name. The name follows from the shards of
/// the server, so that other settings, such as a pool size, do not change it.
fn fence_server(
    settings: &LockSettings,
    wanted: &[(LockSettings, Vec<ShardIdentifier>)],
    default: ShardIdentifier,
) -> Option<String> {
    let at_server = wanted.iter().filter(|(other, _)| have_one_server(settings, other));
    let shards: Vec<_> = at_server.flat_map(|(_, shards)| shards).collect();
    if shards.contains(&&default) { None } else { shards.iter().min().map(ToString::to_string) }
}

/// The place that keeps the locks of each provider, as a number.
fn places(wanted: &[(LockSettings, Vec<ShardIdentifier>)]) -> Vec<usize> {
    let first_there = |(settings, _): &(LockSettings, _)| {
        wanted.iter().take_while(|(other, _)| !have_one_server(settings, other)).count()
    };
    wanted.iter().map(first_there).collect()
}

/// Whether the locks with these settings are kept in the same place.
fn have_one_server(one: &LockSettings, other: &LockSettings) -> bool {
    fn place(of: &LockSettings) -> (LockProviderKind, LockStrategy, &str, String, &str) {
        let provider = match of.provider {
            LockProviderKind::MariaDb => LockProviderKind::MySql,
            provider => provider,
        };
        (provider, of.strategy, &of.namespace, of.place(), &of.server.eventlog)
    }
    // Each provider in the process has keys of its own.
    let in_process = one.provider == LockProviderKind::InProcess;
    if in_process { can_share(one, other) } else { place(one) == place(other) }
}

/// Whether two shards with these settings can share a provider.
fn can_share(one: &LockSettings, other: &LockSettings) -> bool {
    type Common<'s> = (LockProviderKind, &'s str, Option<Duration>, (Duration, Duration), Duration);
    fn common(of: &LockSettings) -> Common<'_> {
        let threshold = of.server.leak_detection_threshold;
        (of.provider, &of.zone, of.term, of.retry_sleep, threshold)
    }
    if common(one) != common(other) || one.provider == LockProviderKind::InProcess {
        return common(one) == common(other);
    }
    let (a, b) = (&one.server, &other.server);
    let password =
        |of: &DataSourceConfig| of.password.as_ref().map(|p| p.expose_secret().to_owned());
    (one.strategy, one.asynchronous, &one.namespace)
        == (other.strategy, other.asynchronous, &other.namespace)
        && (&a.url, &a.username, &a.eventlog) == (&b.url, &b.username, &b.eventlog)
        && password(a) == password(b)
        && (a.tls_mode, &a.tls_root_cert) == (b.tls_mode, &b.tls_root_cert)
        && (a.maximum_pool_size, a.connection_timeout, a.read_timeout, &a.application_name)
            == (b.maximum_pool_size, b.connection_timeout, b.read_timeout, &b.application_name)
}
