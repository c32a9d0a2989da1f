//! The server as a configuration names it.

use ekbatan_core::config::{
    DataSourceConfig, ExposeSecret, LockProviderKind, LockSettings, TlsMode,
};
use ekbatan_lock::{BuiltIn, LockError, LockProvider, LockRegistry, LockServers};
use redis::{Client, IntoConnectionInfo};

use crate::RedisBackend;
use crate::backend::unreachable;

/// The locks of every shard, as `lock-config` says, Redis among the providers.
pub type KeyedLocks = LockRegistry<WithRedis>;

/// Redis, and the providers of `ekbatan-lock`.
#[derive(Debug, Clone, Copy)]
pub struct WithRedis;

impl LockServers for WithRedis {
    async fn open(settings: &LockSettings) -> Result<LockProvider, LockError> {
        if settings.provider != LockProviderKind::Redis {
            return BuiltIn::open(settings).await;
        }
        let backend = RedisBackend::open(&settings.server, &settings.namespace).await?;
        Ok(LockProvider::new(backend, &settings.zone).renewing(settings.term))
    }
}

pub(crate) fn client(server: &DataSourceConfig) -> Result<Client, LockError> {
    // The address is left out of the message: it may contain a password.
    let failed = |error| unreachable("the address", error);
    let asked_for = !matches!(server.tls_mode, None | Some(TlsMode::Disable | TlsMode::Prefer));
    if asked_for || server.tls_root_cert.is_some() {
        let reason = "the configuration asks for encryption (tls-mode, tls-root-cert), which \
            connections to Redis do not have; leave the keys out on a network that you trust";
        return Err(LockError::Unsafe { reason: reason.to_owned() });
    }
    let address = server.url.as_str().into_connection_info().map_err(failed)?;
    let mut login = address.redis_settings().clone();
    if let Some(username) = &server.username {
        login = login.set_username(username);
    }
    if let Some(password) = &server.password {
        login = login.set_password(password.expose_secret());
    }
    Client::open(address.set_redis_settings(login)).map_err(failed)
}
