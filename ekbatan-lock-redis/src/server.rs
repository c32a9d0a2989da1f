//! Opening Redis for a configuration that names it.

use ekbatan_core::config::{LockProviderKind, LockSettings};
use ekbatan_lock::{BuiltIn, LockError, LockProvider, LockServers};

use crate::RedisBackend;

/// The lock servers that include Redis: Redis, and those of `ekbatan-lock`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct WithRedis;

impl LockServers for WithRedis {
    async fn open(settings: &LockSettings) -> Result<LockProvider, LockError> {
        if settings.provider != LockProviderKind::Redis {
            return BuiltIn::open(settings).await;
        }
        let backend = RedisBackend::open(&settings.server, &settings.namespace).await?;
        Ok(LockProvider::new(backend, &settings.zone).configured(settings))
    }
}
