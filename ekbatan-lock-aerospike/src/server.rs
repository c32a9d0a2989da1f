//! Opening Aerospike for a configuration that names it.

use ekbatan_core::config::{LockProviderKind, LockSettings};
use ekbatan_lock::{BuiltIn, LockError, LockProvider, LockServers};

use crate::AerospikeBackend;

/// The lock servers that include Aerospike: Aerospike, and those of `ekbatan-lock`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct WithAerospike;

impl LockServers for WithAerospike {
    async fn open(settings: &LockSettings) -> Result<LockProvider, LockError> {
        if settings.provider != LockProviderKind::Aerospike {
            return BuiltIn::open(settings).await;
        }
        let backend = AerospikeBackend::open(&settings.server, &settings.namespace).await?;
        Ok(LockProvider::new(backend, &settings.zone).configured(settings))
    }
}
