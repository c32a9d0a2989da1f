//! Keyed locks: leases on keys, with one contract over every backend.

#[cfg(any(
    feature = "aerospike",
    feature = "etcd",
    feature = "hbase",
    feature = "mongodb",
    feature = "redis"
))]
use ekbatan_core::config::LockProviderKind;
use ekbatan_core::config::LockSettings;
#[doc(no_inline)]
pub use ekbatan_lock::*;
#[cfg(feature = "aerospike")]
#[doc(no_inline)]
pub use ekbatan_lock_aerospike::{AerospikeBackend, WithAerospike};
#[cfg(feature = "etcd")]
#[doc(no_inline)]
pub use ekbatan_lock_etcd::{EtcdBackend, WithEtcd};
#[cfg(feature = "hbase")]
#[doc(no_inline)]
pub use ekbatan_lock_hbase::{HBaseBackend, WithHBase};
#[cfg(feature = "mongodb")]
#[doc(no_inline)]
pub use ekbatan_lock_mongodb::{MongoDbBackend, WithMongoDb};
#[cfg(feature = "redis")]
#[doc(no_inline)]
pub use ekbatan_lock_redis::{RedisBackend, WithRedis};

/// The locks of every shard, opened as the `lock-config` of each shard says.
///
/// The features of this crate decide which providers `connect` can open. The type is the same
/// with every feature.
///
/// ```
/// use std::time::Duration;
///
/// use ekbatan::config::{LockConfig, LockProviderKind};
/// use ekbatan::prelude::*;
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
pub type KeyedLocks = LockRegistry<CompiledIn>;

/// The lock servers of this build: in-process, those of the enabled database features, and Redis,
/// etcd, MongoDB, Aerospike and HBase with the features `redis`, `etcd`, `mongodb`, `aerospike` and
/// `hbase`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct CompiledIn;

impl LockServers for CompiledIn {
    async fn open(settings: &LockSettings) -> Result<LockProvider, LockError> {
        #[cfg(feature = "aerospike")]
        if settings.provider == LockProviderKind::Aerospike {
            return WithAerospike::open(settings).await;
        }
        #[cfg(feature = "mongodb")]
        if settings.provider == LockProviderKind::MongoDb {
            return WithMongoDb::open(settings).await;
        }
        #[cfg(feature = "etcd")]
        if settings.provider == LockProviderKind::Etcd {
            return WithEtcd::open(settings).await;
        }
        #[cfg(feature = "hbase")]
        if settings.provider == LockProviderKind::HBase {
            return WithHBase::open(settings).await;
        }
        #[cfg(feature = "redis")]
        if settings.provider == LockProviderKind::Redis {
            return WithRedis::open(settings).await;
        }
        BuiltIn::open(settings).await
    }
}
