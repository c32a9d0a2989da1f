//! Opening etcd for a configuration that names it.

use ekbatan_core::config::{LockProviderKind, LockSettings};
use ekbatan_lock::{BuiltIn, LockError, LockProvider, LockServers};

use crate::EtcdBackend;

/// The lock servers that include etcd: etcd, and those of `ekbatan-lock`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct WithEtcd;

impl LockServers for WithEtcd {
    async fn open(settings: &LockSettings) -> Result<LockProvider, LockError> {
        if settings.provider != LockProviderKind::Etcd {
            return BuiltIn::open(settings).await;
        }
        let backend = EtcdBackend::open(&settings.server, &settings.namespace).await?;
        Ok(LockProvider::new(backend, &settings.zone).configured(settings))
    }
}
