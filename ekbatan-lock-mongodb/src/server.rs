//! Opening MongoDB for a configuration that names it.

use ekbatan_core::config::{LockProviderKind, LockSettings};
use ekbatan_lock::{BuiltIn, LockError, LockProvider, LockServers};

use crate::MongoDbBackend;

/// The lock servers that include MongoDB: MongoDB, and those of `ekbatan-lock`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct WithMongoDb;

impl LockServers for WithMongoDb {
    async fn open(settings: &LockSettings) -> Result<LockProvider, LockError> {
        if settings.provider != LockProviderKind::MongoDb {
            return BuiltIn::open(settings).await;
        }
        let backend = MongoDbBackend::open(&settings.server, &settings.namespace).await?;
        Ok(LockProvider::new(backend, &settings.zone).configured(settings))
    }
}
