//! Opening HBase for a configuration that names it.

use ekbatan_core::config::{LockProviderKind, LockSettings};
use ekbatan_lock::{BuiltIn, LockError, LockProvider, LockServers};

use crate::HBaseBackend;

/// The lock servers that include HBase: HBase, and those of `ekbatan-lock`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct WithHBase;

impl LockServers for WithHBase {
    async fn open(settings: &LockSettings) -> Result<LockProvider, LockError> {
        if settings.provider != LockProviderKind::HBase {
            return BuiltIn::open(settings).await;
        }
        let backend = HBaseBackend::open(&settings.server, &settings.namespace).await?;
        Ok(LockProvider::new(backend, &settings.zone).configured(settings))
    }
}
