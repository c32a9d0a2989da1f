//! The client of the server that a configuration names.
//!
//! Invariant: a connection is never less encrypted than configured.

use ekbatan_core::config::{DataSourceConfig, ExposeSecret, TlsMode};
use ekbatan_lock::{BackendError, LockError};
use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, TlsCertificates,
};
use rustls::crypto::{CryptoProvider, ring};

pub(crate) fn client(server: &DataSourceConfig) -> Result<Client, LockError> {
    // The message omits the address, which may contain a password.
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

/// The TLS mode, or `None` for plain text. Redis cannot report whether it supports encryption,
/// so `prefer` follows the address.
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
            "tls-mode is `disable` and the address begins with rediss://; remove the key, or \
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
        (Some(TlsMode::Require), _) | (None | Some(TlsMode::Prefer), Some(TlsMode::Require))
            if server.tls_root_cert.is_some() =>
        {
            Err(refused(
                "tls-root-cert is given and the certificate is not verified; write tls-mode: \
                 verify-full",
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
        _ => return Err(refused("a Unix socket is not encrypted; remove tls-mode")),
    };
    // The driver uses the default provider of the process, and panics if there is none and
    // several are compiled in.
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

/// Error for a server that cannot be reached.
pub(crate) fn unreachable(what: &str, error: RedisError) -> LockError {
    LockError::Start { source: BackendError::caused(format!("Redis, {what}"), error) }
}
