//! The server as a configuration names it.
//!
//! What always holds: a connection is never less encrypted than what was asked for.

use ekbatan_core::config::{
    DataSourceConfig, ExposeSecret, LockProviderKind, LockSettings, TlsMode,
};
use ekbatan_lock::{BackendError, BuiltIn, LockError, LockProvider, LockServers};
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};

use crate::RedisBackend;
use crate::backend::unreachable;

/// Redis, and the providers of `ekbatan-lock`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
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
    let address = server.url.as_str().into_connection_info().map_err(failed)?;
    let mut login = address.redis_settings().clone();
    if let Some(username) = &server.username {
        login = login.set_username(username);
    }
    if let Some(password) = &server.password {
        login = login.set_password(password.expose_secret());
    }
    let address = address.set_redis_settings(login);
    match encryption(&address, server)? {
        None => Client::open(address).map_err(failed),
        Some(mode) => encrypted(address, mode, server),
    }
}

/// Whether the connection is encrypted, and how the certificate is looked at. Redis cannot be
/// asked whether it encrypts, so `prefer` is what the address says.
fn encryption(
    address: &ConnectionInfo,
    server: &DataSourceConfig,
) -> Result<Option<TlsMode>, LockError> {
    let by_address = match address.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } => Some(TlsMode::Require),
        ConnectionAddr::TcpTls { .. } => Some(TlsMode::VerifyFull),
        _ => None,
    };
    match (server.tls_mode, by_address) {
        (Some(TlsMode::Disable), Some(_)) => Err(refused(
            "tls-mode is `disable` and the address is one of encryption; leave the key out, or \
             write redis://..",
        )),
        (None | Some(TlsMode::Disable | TlsMode::Prefer), None)
            if server.tls_root_cert.is_some() =>
        {
            Err(refused(
                "tls-root-cert is given and the connection is not encrypted; write rediss://.., or \
                 tls-mode: verify-full",
            ))
        }
        (None | Some(TlsMode::Disable | TlsMode::Prefer), by_address) => Ok(by_address),
        (Some(mode), _) => Ok(Some(mode)),
    }
}

fn encrypted(
    address: ConnectionInfo,
    mode: TlsMode,
    server: &DataSourceConfig,
) -> Result<Client, LockError> {
    let (host, port) = match address.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            (host.clone(), *port)
        }
        _ => return Err(refused("a socket of this machine is not encrypted; leave tls-mode out")),
    };
    // The driver takes the one of the process, and panics where two might be meant.
    if CryptoProvider::get_default().is_none() {
        let _ = ring::default_provider().install_default();
    }
    let insecure = mode == TlsMode::Require;
    let root_cert = match &server.tls_root_cert {
        None => None,
        Some(file) => Some(std::fs::read(file).map_err(|error| {
            let what = format!("the certificates of tls-root-cert, `{}`", file.display());
            LockError::Start { source: BackendError::caused(what, error) }
        })?),
    };
    let failed = |error| unreachable("encryption", error);
    let plain = ConnectionAddr::TcpTls { host, port, insecure, tls_params: None };
    let certificates = TlsCertificates { client_tls: None, root_cert };
    let client = Client::build_with_tls(address.set_addr(plain), certificates).map_err(failed)?;
    let address = client.get_connection_info();
    let mut place = address.addr().clone();
    place.set_danger_accept_invalid_hostnames(mode == TlsMode::VerifyCa);
    Client::open(address.clone().set_addr(place)).map_err(failed)
}

fn refused(reason: &str) -> LockError {
    LockError::Unsafe { reason: reason.to_owned() }
}
